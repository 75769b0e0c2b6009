"""NVML read call by call, with a stand-in for pynvml: what a missing or failing call costs, which form of a call is
asked, and which values are refused. test_live.py has the real pynvml."""

import ctypes
import struct
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from laggard.probes.nvml.live import read_nvml
from laggard.probes.nvml.model import (
    CALL_LIMIT_SECONDS,
    DAMAGE_OF_LINKS,
    IMPLAUSIBLE,
    NOT_IN_NVIDIA_ML_PY,
    GpuProcess,
    Nvml,
)

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 13, 15


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def fails(code: int) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise NvmlError(code)

    return call


def field(number: int) -> Any:
    """An answer of NVML_VALUE_TYPE_UNSIGNED_LONG_LONG."""
    return SimpleNamespace(nvmlReturn=0, valueType=3, value=struct.pack("Q", number))


class Library(ModuleType):
    """Two healthy GPUs with two links each, and a driver without the newest calls. `of` replaces calls; None: there is
    no such name."""

    def __init__(self, **of: Callable[..., Any] | None) -> None:
        super().__init__("pynvml")
        calls: dict[str, Callable[..., Any] | None] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlSystemGetDriverVersion": lambda: b"550.54.15",
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}".encode(),
            "nvmlDeviceGetPciInfo_v3": lambda handle: SimpleNamespace(busId=b"00000000:9B:00.%d" % int(handle[-1:])),
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{int(handle[-1:])}",
            "nvmlDeviceGetName": lambda _: b"H100",
            "nvmlDeviceGetMigMode": lambda _: [0, 0],
            "nvmlDeviceGetTotalEccErrors": lambda *_: 0,
            "nvmlDeviceGetRemappedRows": lambda _: (1, 0, 0, 0),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 4,
            "nvmlDeviceGetTemperature": lambda *_: 41,
            "nvmlDeviceGetComputeRunningProcesses_v3": lambda _: [SimpleNamespace(pid=7, usedGpuMemory=1 << 30)],
            "nvmlDeviceGetNvLinkState": self._link,
            "nvmlDeviceGetPowerManagementLimit": lambda _: 700_000,
            "nvmlDeviceGetGpuFabricInfo": self._fabric,
            "nvmlDeviceGetFieldValues": lambda _, ids: [field(5)] * len(ids),
            "nvmlDeviceGetP2PStatus": lambda *_: 0,
            **of,
        }
        self.__dict__.update({name: call for name, call in calls.items() if call is not None})

    @staticmethod
    def _link(_: object, link: int) -> int:
        if link >= 2:
            raise NvmlError(NOT_SUPPORTED)
        return 1

    @staticmethod
    def _fabric(_: object, info: Any) -> None:
        info._obj.state = 3
        info._obj.cluster_uuid = (ctypes.c_ubyte * 16)(*range(16))


Read = Callable[..., Nvml]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads NVML with these calls replaced."""

    def made(announce: Callable[[str, float], None] = lambda *_: None, **of: Callable[..., Any] | None) -> Nvml:
        monkeypatch.setitem(sys.modules, "pynvml", Library(**of))
        return read_nvml(announce, 60.0)

    return made


def test_a_healthy_machine_is_read_as_values(read: Read) -> None:
    found = read()
    assert (found.error, found.driver_version, found.p2p_error) == ("", "550.54.15", "")
    assert found.p2p_read == found.p2p_write == ((None, 0), (0, None))
    first, second = found.gpus
    assert (first.bus_id, second.bus_id, second.index) == ("0000:9b:00.0", "0000:9b:00.1", 1)
    assert (first.temperature_celsius, first.clocks_event_reasons, first.power_limit_watts) == (41, 4, 700)
    assert first.processes == (GpuProcess(pid=7, used_bytes=1 << 30),) and first.links == (True, True)
    assert first.link_errors == dict.fromkeys(("replay", "recovery", "crc", *DAMAGE_OF_LINKS, "effective"), (5, 5))
    assert first.fabric is not None and (first.fabric.state, first.fabric.cluster_uuid[:4]) == (3, "0001")
    assert first.throttled_nanoseconds == {"sw_thermal": 5, "hw_thermal": 5, "hw_power_brake": 5}


def test_a_name_that_nvidia_ml_py_lacks_costs_its_field_alone(read: Read) -> None:
    gpu = read(nvmlDeviceGetUUID=None, nvmlDeviceGetFieldValues=None).gpus[0]
    for name in ("uuid", "persistence", "link_errors", "recovery_action", "throttled_nanoseconds"):
        assert gpu.errors[name] == NOT_IN_NVIDIA_ML_PY, name
    assert gpu.name == "H100" and gpu.links == (True, True)


def test_an_error_is_named_and_costs_its_field_alone(read: Read) -> None:
    found = read(nvmlDeviceGetTotalEccErrors=fails(GPU_IS_LOST), nvmlDeviceGetP2PStatus=fails(GPU_IS_LOST))
    assert found.gpus[0].errors["ecc_volatile"] == found.p2p_error == "GPU_IS_LOST"
    assert found.gpus[0].ecc_volatile is None and found.gpus[0].temperature_celsius == 41
    assert found.p2p_read == ((None, None), (None, None))


def test_an_older_form_of_a_call_is_asked_only_where_the_newest_is_not_known(read: Read) -> None:
    newest = {"nvmlDeviceGetTemperatureV": fails(FUNCTION_NOT_FOUND)}
    assert read(**newest).gpus[0].temperature_celsius == 41
    newest = {"nvmlDeviceGetTemperatureV": fails(GPU_IS_LOST)}
    gpu = read(**newest).gpus[0]
    assert gpu.temperature_celsius is None and gpu.errors["temperature_celsius"] == "GPU_IS_LOST"
    gpu = read(nvmlDeviceGetComputeRunningProcesses_v3=None, nvmlDeviceGetComputeRunningProcesses_v2=lambda _: []).gpus[
        0
    ]
    assert gpu.processes == ()


def test_a_gpu_without_a_handle_hides_no_other(read: Read) -> None:
    def handle(index: int) -> Any:
        return fails(GPU_IS_LOST)() if index == 0 else b"handle 1"

    found = read(nvmlDeviceGetHandleByIndex=handle)
    assert found.gpus[0].errors == {"handle": "GPU_IS_LOST"} and found.gpus[1].uuid == "GPU-1"
    assert found.p2p_read == ((None, None), (None, None)) and found.p2p_error == ""


@pytest.mark.parametrize(
    ("of", "error"),
    [
        ({"nvmlInit": fails(9)}, "DRIVER_NOT_LOADED"),
        ({"nvmlDeviceGetCount": fails(999)}, "UNKNOWN"),
        ({"nvmlDeviceGetCount": lambda: -1}, f"{IMPLAUSIBLE} -1 of nvmlDeviceGetCount"),
        ({"nvmlDeviceGetCount": lambda: 1 << 20}, f"{IMPLAUSIBLE} 1048576 of nvmlDeviceGetCount"),
        ({"nvmlInit": None}, NOT_IN_NVIDIA_ML_PY),
    ],
)
def test_nvml_that_cannot_be_used_says_why(read: Read, of: dict[str, Any], error: str) -> None:
    assert read(**of) == Nvml(error=error)


def test_without_nvidia_ml_py_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml(lambda *_: None, 60.0).error.startswith("nvidia-ml-py is not installed: ")


@pytest.mark.parametrize(
    ("call", "value", "name"),
    [
        ("nvmlDeviceGetTemperature", 4294967295, "temperature_celsius"),
        ("nvmlDeviceGetTotalEccErrors", -1, "ecc_aggregate"),
        ("nvmlDeviceGetUUID", " ", "uuid"),
        ("nvmlDeviceGetPciInfo_v3", SimpleNamespace(busId=b"FFFFFFFF"), "bus_id"),
        ("nvmlDeviceGetRemappedRows", (0xFFFFFFFF, 0, 0, 0), "rows"),
        ("nvmlDeviceGetPowerManagementLimit", 0xFFFFFFFF, "power_limit_watts"),
    ],
)
def test_a_value_that_no_gpu_can_have_is_unknown(read: Read, call: str, value: Any, name: str) -> None:
    gpu = read(**{call: lambda *_: value}).gpus[0]
    assert gpu.errors[name].startswith(IMPLAUSIBLE) and getattr(gpu, name) in (None, "", ())


def test_each_call_is_announced_before_it_with_the_time_that_it_may_take(read: Read) -> None:
    said: list[tuple[str, float]] = []
    made: list[str] = []

    def init() -> None:
        made.append(said[-1][0])

    read(lambda call, seconds: said.append((call, seconds)), nvmlInit=init)
    assert made == ["nvmlInit"]
    seconds = dict(said)
    assert seconds["nvmlInit"] == seconds["nvmlDeviceGetHandleByIndex of GPU 1"] == CALL_LIMIT_SECONDS + 60
    assert seconds["temperature_celsius of GPU 0"] == seconds["nvmlDeviceGetP2PStatus"] == CALL_LIMIT_SECONDS
