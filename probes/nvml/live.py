"""Reads NVML through its real library. No call here changes a GPU.

Each call is announced with the time that it may take, so that the parent can tell a hang from a slow start. This runs
in a probe's process: a call may never return.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Final

from laggard.kit.words import lazy_pattern
from laggard.probes.nvml import fields as nvml_fields
from laggard.probes.nvml.fields import failure_name, first_known
from laggard.probes.nvml.model import (
    CALL_LIMIT_SECONDS,
    IMPLAUSIBLE,
    Gpu,
    GpuFabricInfo,
    GpuProcess,
    Nvml,
    RemappedRows,
    Repair,
    sysfs_bus_id,
)

# Reads a GPU's registration with the NVLink fabric.
#
# The structures are laggard's own, after nvml.h: nvidia-ml-py's have 80 bytes for the 16 of the cluster's UUID before
# 12.570, so that all that follows is read from the wrong place; the form with a health summary came with 13.

_BODY: Any = [
    ("cluster_uuid", ctypes.c_ubyte * 16),
    ("status", ctypes.c_int),
    ("clique", ctypes.c_uint),
    ("state", ctypes.c_ubyte),
]


class _Info(ctypes.Structure):  # nvmlGpuFabricInfo_t
    _fields_ = _BODY


class _InfoV2(ctypes.Structure):  # nvmlGpuFabricInfo_v2_t
    _fields_ = [("version", ctypes.c_uint), *_BODY, ("health_mask", ctypes.c_uint)]


class _InfoV3(ctypes.Structure):  # nvmlGpuFabricInfo_v3_t
    _fields_ = [*_InfoV2._fields_, ("health_summary", ctypes.c_ubyte)]


def read_fabric(nvml: Any, handle: Any) -> GpuFabricInfo:
    """The fabric's state by the newest form that driver and nvidia-ml-py know: with a health summary (driver 580 and
    newer), with a health mask (550), or without. Raises what pynvml raises."""
    return first_known(
        lambda: _read_version(nvml, handle, _InfoV3(), 3),
        lambda: _read_version(nvml, handle, _InfoV2(), 2),
        lambda: _read_old(nvml, handle),
    )


def _read_version(nvml: Any, handle: Any, info: Any, version: int) -> GpuFabricInfo:
    info.version = ctypes.sizeof(info) | version << 24  # NVML_STRUCT_VERSION
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return _value(info)


def _read_old(nvml: Any, handle: Any) -> GpuFabricInfo:
    info = _Info()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return _value(info)


def _value(info: Any) -> GpuFabricInfo:
    uuid = bytes(info.cluster_uuid).hex()
    return GpuFabricInfo(
        state=info.state,
        status=info.status,
        health_mask=getattr(info, "health_mask", None),
        health_summary=getattr(info, "health_summary", None),
        cluster_uuid=uuid if uuid.strip("0") else "",
        clique=info.clique,
    )


# Reads the states of a GPU's memories for which NVIDIA repairs or replaces it.
#
# The structure of the SRAM's errors is laggard's own, after nvml.h: nvidia-ml-py asks for a pointer to one, and only
# some of its versions have it.

_COUNTS: Final = (
    "aggregate_parity",
    "aggregate_secded",
    "aggregate_corrected",
    "volatile_parity",
    "volatile_secded",
    "volatile_corrected",
    "aggregate_l2",
    "aggregate_sm",
    "aggregate_pcie",
    "aggregate_microcontroller",
    "aggregate_other",
)


class _SramErrors(ctypes.Structure):  # nvmlEccSramErrorStatus_v1_t
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in _COUNTS),
        ("threshold_exceeded", ctypes.c_uint),
    ]


def read_sram_threshold_exceeded(nvml: Any, handle: Any) -> bool:
    """Whether the SRAM has had more uncorrected errors than NVIDIA's field diagnostics let pass. Raises what pynvml
    raises."""
    errors = _SramErrors()
    errors.version = ctypes.sizeof(errors) | 1 << 24  # NVML_STRUCT_VERSION
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(errors))
    return bool(errors.threshold_exceeded)


def read_repair(nvml: Any, handle: Any) -> Repair:
    """The repairs that wait for a reset (driver 580 and newer). Raises what pynvml raises."""
    channel, tpc = nvml.nvmlDeviceGetRepairStatus(handle)
    return Repair(channel=bool(channel), tpc=bool(tpc))


def read_unrepairable_memory(nvml: Any, handle: Any) -> bool:
    """Whether a part of the memory cannot be repaired (driver 590 and newer). Raises what pynvml raises."""
    return bool(nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle))


# Refuses values that no GPU can have, so that what NVML returns for a broken one is unknown and accuses nobody.
#
# The limits are far outside of what any board reaches. They catch a value of the wrong type (a negative one read
# without its sign), a sentinel (NVML_VALUE_NOT_AVAILABLE is -1), and a register of a GPU that is off the bus, which
# reads as all ones.

_BUS_ID = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CELSIUS: Final = (-100, 300)
_MARGIN: Final = (-200, 200)
_MHZ: Final = (0, 20_000)
_WATTS: Final = (0, 20_000)
_COUNT: Final = (0, 1 << 62)
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "minor": (0, 1 << 20),
    "ecc_volatile": _COUNT,
    "ecc_aggregate": _COUNT,
    "recovery_action": (0, 254),  # 255 is the driver's own "not known yet" (GPU_RECOVERY_ACTION_UNKNOWN)
    "clocks_event_reasons": (0, 1 << 32),
    **dict.fromkeys(("temperature_celsius", "memory_temperature_celsius"), _CELSIUS),
    **dict.fromkeys(("shutdown_celsius", "slowdown_celsius", "gpu_max_celsius", "memory_max_celsius"), _CELSIUS),
    **dict.fromkeys(("margin_celsius", "slowdown_margin_celsius", "gpu_max_margin_celsius"), _MARGIN),
    **dict.fromkeys(("max_sm_mhz", "max_memory_mhz", "application_sm_mhz", "application_memory_mhz"), _MHZ),
    **dict.fromkeys(("default_sm_mhz", "sm_mhz"), _MHZ),
    **dict.fromkeys(("power_limit_watts", "enforced_power_limit_watts", "default_power_limit_watts"), _WATTS),
}
_MAX_ROWS: Final = 1 << 20
_FABRIC_STATES: Final = range(4)  # NVML_GPU_FABRIC_STATE_*


def drop_implausible(values: Mapping[str, Any], errors: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """`values` and `errors`, by the names of Gpu's fields, with each value that cannot be turned into an error."""
    refused = {
        name: f"{IMPLAUSIBLE} {value!r}"[:100] for name, value in values.items() if not _is_plausible(name, value)
    }
    kept = {name: value for name, value in values.items() if name not in refused}
    return kept, {**errors, **refused}


def _is_plausible(name: str, value: Any) -> bool:
    if name in _RANGES:
        least, most = _RANGES[name]
        return bool(least <= value <= most)  # False for a value that is not a number
    if name == "bus_id":
        return bool(_BUS_ID.fullmatch(value))
    if name in ("uuid", "name", "board_part", "vbios"):
        return bool(value.strip())
    if isinstance(value, RemappedRows):
        return max(value.correctable, value.uncorrectable) <= _MAX_ROWS
    if isinstance(value, GpuFabricInfo):
        return value.state in _FABRIC_STATES
    return _counts_are_plausible(value) if name in ("throttled_nanoseconds", "link_errors") else True


def _counts_are_plausible(counts: Mapping[str, int | tuple[int, ...]]) -> bool:
    numbers = [number for value in counts.values() for number in ((value,) if isinstance(value, int) else value)]
    return all(_COUNT[0] <= number <= _COUNT[1] for number in numbers)


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
