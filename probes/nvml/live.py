"""Reads NVML through its real library. No call here changes a GPU.

Each call is announced with the time that it may take, so that the parent can tell a hang from a slow start. This runs
in a probe's process: a call may never return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from laggard.probes.nvml import fields as nvml_fields
from laggard.probes.nvml.fabric import read_fabric
from laggard.probes.nvml.failure import failure_name, first_known
from laggard.probes.nvml.memory_health import read_repair, read_sram_threshold_exceeded, read_unrepairable_memory
from laggard.probes.nvml.model import CALL_LIMIT_SECONDS, IMPLAUSIBLE, Gpu, GpuProcess, Nvml, RemappedRows, sysfs_bus_id
from laggard.probes.nvml.plausible import drop_implausible

Announce = Callable[[str, float], None]
"""Announces the next call, and how many seconds it may take."""

_IMPORT_LIMIT_SECONDS: Final = 60.0  # longer than any deadline: a slow file system is no fault of the driver
_MAX_GPUS: Final = 256  # many times what a node has
_MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS
_NO_SUCH_LINK: Final = frozenset({"INVALID_ARGUMENT", "NOT_SUPPORTED"})
_READ, _WRITE = 0, 1  # NVML_P2P_CAPS_INDEX_*; pynvml's READ is a tuple by mistake
_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
_SM, _MEMORY = 1, 2  # nvmlClockType_t


def read_nvml(announce: Announce, start_seconds: float) -> Nvml:
    """NVML's readings of all GPUs. `announce` is called before each call into NVML. `start_seconds`: how much longer
    than other calls those may take that start the driver or a GPU. Raises nothing."""
    announce("importing pynvml", _IMPORT_LIMIT_SECONDS)
    try:
        import pynvml
    except ImportError as error:
        return Nvml(error=f"nvidia-ml-py is not installed: {error}")
    except Exception as error:  # a damaged one, or something else of that name
        return Nvml(error=f"nvidia-ml-py cannot be imported: {failure_name(error)}")
    announce("nvmlInit", CALL_LIMIT_SECONDS + start_seconds)
    try:
        pynvml.nvmlInit()
        announce("nvmlDeviceGetCount", CALL_LIMIT_SECONDS)
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:
        return Nvml(error=failure_name(error))
    if not 0 <= count <= _MAX_GPUS:
        return Nvml(error=f"{IMPLAUSIBLE} {count} of nvmlDeviceGetCount")
    handles = [_handle(pynvml, index, announce, start_seconds) for index in range(count)]
    gpus = tuple(_gpu(pynvml, index, handle, announce) for index, handle in enumerate(handles))
    announce("nvmlDeviceGetP2PStatus", CALL_LIMIT_SECONDS)
    read, read_error = _p2p(pynvml, handles, _READ)
    write, write_error = _p2p(pynvml, handles, _WRITE)
    return Nvml(
        driver_version=_driver_version(pynvml),
        gpus=gpus,
        p2p_read=read,
        p2p_write=write,
        p2p_error=read_error or write_error,
    )


def _driver_version(nvml: Any) -> str:
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except Exception:
        return ""


def _handle(nvml: Any, index: int, announce: Announce, start_seconds: float) -> Any:
    """The GPU's handle, or the name of the error. This call starts the GPU, and nvmlInit does not (nvml.h: "GPUs are
    discovered and initialized in nvmlDeviceGetHandleBy*")."""
    announce(f"nvmlDeviceGetHandleByIndex of GPU {index}", CALL_LIMIT_SECONDS + start_seconds)
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        return failure_name(error)


def _gpu(nvml: Any, index: int, handle: Any, announce: Announce) -> Gpu:
    if isinstance(handle, str):
        return Gpu(index=index, errors={"handle": handle})
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, read in _READINGS.items():
        announce(f"{name} of GPU {index}", CALL_LIMIT_SECONDS)
        try:
            values[name] = read(nvml, handle)
        except Exception as error:
            errors[name] = failure_name(error)
    announce(f"nvmlDeviceGetFieldValues of GPU {index}", CALL_LIMIT_SECONDS)
    fields, field_errors = nvml_fields.read_fields(nvml, handle, len(values.get("links") or ()))
    if not fields.get("throttled_nanoseconds"):
        fields.pop("throttled_nanoseconds", None)
        announce(f"nvmlDeviceGetViolationStatus of GPU {index}", CALL_LIMIT_SECONDS)
        nvml_fields.read_violations(nvml, handle, fields, field_errors)
    if not values.get("links"):
        field_errors["link_errors"] = errors.get("links", "NOT_SUPPORTED")
    values, errors = drop_implausible({**values, **fields}, {**errors, **field_errors})
    return Gpu(index=index, errors=errors, **values)


def _rows(nvml: Any, handle: Any) -> RemappedRows:
    correctable, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return RemappedRows(
        correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failed=bool(failed)
    )


def _clocks_event_reasons(nvml: Any, handle: Any) -> int:
    return int(
        first_known(
            lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # before driver 535
        )
    )


def _temperature(nvml: Any, handle: Any) -> int:
    return int(
        first_known(
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, 0),
            lambda: nvml.nvmlDeviceGetTemperature(handle, 0),  # before driver 570; nvml.h 13.0 calls it deprecated
        )
    )


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found = first_known(
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),  # before driver 510
    )
    return tuple(GpuProcess(pid=process.pid, used_bytes=process.usedGpuMemory) for process in found)


def _links(nvml: Any, handle: Any) -> tuple[bool, ...]:
    """The links of a GPU: whether each NVLink is up, as far as it has them. An error for the first link is the error of
    all."""
    states: list[bool] = []
    for link in range(_MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except Exception as error:
            if not states or failure_name(error) not in _NO_SUCH_LINK:
                raise
            break
    return tuple(states)


def _p2p(nvml: Any, handles: list[Any], index: int) -> tuple[tuple[tuple[int | None, ...], ...], str]:
    error = ""

    def status(source: Any, target: Any) -> int | None:
        nonlocal error
        if source is target or isinstance(source, str) or isinstance(target, str):
            return None
        try:
            return int(nvml.nvmlDeviceGetP2PStatus(source, target, index))
        except Exception as failure:
            error = failure_name(failure)
            return None

    return tuple(tuple(status(source, target) for target in handles) for source in handles), error


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_READINGS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "bus_id": lambda nvml, handle: sysfs_bus_id(_text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)),
    "uuid": lambda nvml, handle: _text(nvml.nvmlDeviceGetUUID(handle)),
    "name": lambda nvml, handle: _text(nvml.nvmlDeviceGetName(handle)),
    "board_part": lambda nvml, handle: _text(nvml.nvmlDeviceGetBoardPartNumber(handle)),
    "vbios": lambda nvml, handle: _text(nvml.nvmlDeviceGetVbiosVersion(handle)),
    "minor": lambda nvml, handle: nvml.nvmlDeviceGetMinorNumber(handle),
    "mig": lambda nvml, handle: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
    "persistence": lambda nvml, handle: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
    "ecc_volatile": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE),
    "ecc_aggregate": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _AGGREGATE),
    "sram_threshold_exceeded": read_sram_threshold_exceeded,
    "rows": _rows,
    "repair": read_repair,
    "unrepairable_memory": read_unrepairable_memory,
    "clocks_event_reasons": _clocks_event_reasons,
    "temperature_celsius": _temperature,
    "shutdown_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperatureThreshold(handle, 0),
    "slowdown_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperatureThreshold(handle, 1),
    "memory_max_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperatureThreshold(handle, 2),
    "gpu_max_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperatureThreshold(handle, 3),
    "margin_celsius": lambda nvml, handle: nvml.nvmlDeviceGetMarginTemperature(handle),
    "max_sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, _SM),
    "max_memory_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY),
    "application_sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetApplicationsClock(handle, _SM),
    "application_memory_mhz": lambda nvml, handle: nvml.nvmlDeviceGetApplicationsClock(handle, _MEMORY),
    "default_sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, _SM),
    "sm_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, _SM),
    "power_limit_watts": lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
    "enforced_power_limit_watts": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "default_power_limit_watts": lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
    "processes": _processes,
    "links": _links,
    "fabric": read_fabric,
}
