"""Reads NVML through its real library. No call here changes a GPU.

Each call is announced with the time that it may take, so that the parent can tell a hang from a slow start. This runs
in a probe's process: a call may never return.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from laggard.kit.words import lazy_pattern
from laggard.probes.nvml.model import (
    CALL_LIMIT_SECONDS,
    DAMAGE_OF_LINKS,
    IMPLAUSIBLE,
    NOT_IN_NVIDIA_ML_PY,
    UNSUPPORTED,
    Gpu,
    GpuFabricInfo,
    GpuProcess,
    Nvml,
    RemappedRows,
    Repair,
    error_name,
    sysfs_bus_id,
)

# Names what a call into NVML failed with, whatever nvidia-ml-py is installed.
#
# Each of its versions lacks what its driver did not have yet: functions (nvmlDeviceGetMarginTemperature before 12.570),
# structures, classes of errors. A missing name costs the field that needs it, and no other.

T = TypeVar("T")

_OTHER_VERSION: Final = frozenset(
    {"FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT", NOT_IN_NVIDIA_ML_PY}
)
"""The errors which say that the call, or the version of its argument, is unknown to this driver or to this
nvidia-ml-py."""


class Failed(NamedTuple):
    """Stands in the place of a value that could not be read."""

    error: str


def failure_name(error: Exception) -> str:
    """The name for Gpu.errors: NVML's own for pynvml.NVMLError, NOT_IN_NVIDIA_ML_PY for a name that pynvml lacks, else
    the type and text of the error."""
    code = getattr(error, "value", None)
    if isinstance(code, int):
        return error_name(code)
    if isinstance(error, AttributeError):
        return NOT_IN_NVIDIA_ML_PY
    return f"{type(error).__name__}: {error}"[:100]


def _attempt(read: Callable[..., T], *of: Any) -> T | Failed:
    try:
        return read(*of)
    except Exception as error:
        return Failed(failure_name(error))


def _successes(found: Mapping[str, Any]) -> dict[str, Any]:
    """What was read, without what failed."""
    return {name: value for name, value in found.items() if not isinstance(value, Failed)}


def _first_known(*reads: Callable[[], T]) -> T:
    """The value of the first of `reads` that this driver and this nvidia-ml-py know: the newest comes first. Raises
    what the last one raises."""
    for read in reads[:-1]:
        try:
            return read()
        except Exception as error:
            if failure_name(error) not in _OTHER_VERSION:
                raise
    return reads[-1]()


# The structures are laggard's own, after nvml.h. nvidia-ml-py's of the fabric has 80 bytes for the 16 of the cluster's
# UUID before 12.570, so that all that follows is read from the wrong place; the form with a health summary came with
# 13. That of the SRAM's errors only some of its versions have.

_FABRIC: Final[tuple[tuple[str, Any], ...]] = (
    ("cluster_uuid", ctypes.c_ubyte * 16),
    ("status", ctypes.c_int),
    ("clique", ctypes.c_uint),
    ("state", ctypes.c_ubyte),
    ("health_mask", ctypes.c_uint),
    ("health_summary", ctypes.c_ubyte),
)


def _structure(version: int, *fields: tuple[str, Any]) -> Any:
    """A structure with these fields. It begins with its version (NVML_STRUCT_VERSION); 0: it has none."""
    head = [("version", ctypes.c_uint)] if version else []
    made: Any = type("Structure", (ctypes.Structure,), {"_fields_": [*head, *fields]})()
    if version:
        made.version = ctypes.sizeof(made) | version << 24
    return made


def _fabric(nvml: Any, handle: Any) -> GpuFabricInfo:
    """The fabric's state by the newest form that driver and nvidia-ml-py know: with a health summary (driver 580 and
    newer), with a health mask (550), or without."""

    def read(call: str, version: int, fields: int) -> GpuFabricInfo:
        info = _structure(version, *_FABRIC[:fields])
        getattr(nvml, call)(handle, ctypes.byref(info))
        uuid = bytes(info.cluster_uuid).hex()
        return GpuFabricInfo(
            state=info.state,
            status=info.status,
            health_mask=getattr(info, "health_mask", None),
            health_summary=getattr(info, "health_summary", None),
            cluster_uuid=uuid if uuid.strip("0") else "",
            clique=info.clique,
        )

    return _first_known(
        lambda: read("nvmlDeviceGetGpuFabricInfoV", 3, 6),
        lambda: read("nvmlDeviceGetGpuFabricInfoV", 2, 5),
        lambda: read("nvmlDeviceGetGpuFabricInfo", 0, 4),
    )


def _sram_threshold_exceeded(nvml: Any, handle: Any) -> bool:
    """Whether the SRAM has had more uncorrected errors than NVIDIA's field diagnostics let pass."""
    errors = _structure(1, ("counts", ctypes.c_ulonglong * 11), ("threshold_exceeded", ctypes.c_uint))
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(errors))
    return bool(errors.threshold_exceeded)


# Refuses values that no GPU can have, so that what NVML returns for a broken one is unknown and accuses nobody.
#
# The limits are far outside of what any board reaches. They catch a value of the wrong type (a negative one read
# without its sign), a sentinel (NVML_VALUE_NOT_AVAILABLE is -1), and a register of a GPU that is off the bus, which
# reads as all ones.

_BUS_ID = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_COUNT: Final = (0, 1 << 62)
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "minor": (0, 1 << 20),
    "ecc_volatile": _COUNT,
    "ecc_aggregate": _COUNT,
    "recovery_action": (0, 254),  # 255 is the driver's own "not known yet" (GPU_RECOVERY_ACTION_UNKNOWN)
    "clocks_event_reasons": (0, 1 << 32),
    "margin_celsius": (-200, 200),
    "_celsius": (-100, 300),
    "_mhz": (0, 20_000),
    "_ratio": (0, 1),
    "_watts": (0, 20_000),
}
"""By the end of a field's name, the first that fits: mostly its unit."""

_MAX_ROWS: Final = 1 << 20
_FABRIC_STATES: Final = range(4)  # NVML_GPU_FABRIC_STATE_*


def _plausible(name: str, value: Any) -> Any:
    """The value; Failed where no GPU can have it."""
    is_kept = isinstance(value, Failed) or _is_plausible(name, value)
    return value if is_kept else Failed(f"{IMPLAUSIBLE} {value!r}"[:100])


def _is_plausible(name: str, value: Any) -> bool:
    for ending, (least, most) in _RANGES.items():
        if name.endswith(ending):
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


# Reads values with nvmlDeviceGetFieldValues: many in one call, each with an error of its own.

_PLAIN: Final = {  # NVML_FI_DEV_* of nvml.h
    "memory_temperature_celsius": 82,
    "slowdown_margin_celsius": 194,
    "gpu_max_margin_celsius": 196,
    "recovery_action": 230,
    "pcie_replays": 94,
}
_RETIRED: Final = (29, 30)  # pages, for single and for double bit errors
_RETIREMENT_PENDING: Final = 31
_THROTTLED: Final = {"sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}  # nanoseconds in all
_LINK_ERRORS: Final = {  # for the link in scopeId, the first field that answers; Blackwell has none of 161 to 163
    "replay": (161,),
    "recovery": (162, 215),  # 215: how often the link went from up to recovery, successful or not
    "crc": (163,),
    **{name: (206 + place,) for place, name in enumerate(DAMAGE_OF_LINKS)},  # NVLink 5, as effective errors
    "effective": (219,),
}
_LINK_TOTALS: Final = {"replay": 52, "recovery": 59, "crc": 38}
_POLICIES: Final = {"thermal": 1, "board_limit": 3}  # NVML_PERF_POLICY_*
_FORMATS: Final = ("d", "I", "L", "Q", "q", "i", "H")  # of struct, by NVML_VALUE_TYPE_*


def _fields(nvml: Any, handle: Any, links: int) -> dict[str, Any]:
    """The values by the names of Gpu's fields. `links`: how many NVLinks the GPU has."""
    ids = [*_PLAIN.values(), *_THROTTLED.values(), *_LINK_TOTALS.values(), *_RETIRED, _RETIREMENT_PENDING]
    answers = dict(zip(ids, _answers(nvml, handle, ids), strict=True))
    found: dict[str, Any] = {name: answers[field] for name, field in _PLAIN.items()}
    found["throttled_nanoseconds"] = _successes({name: answers[field] for name, field in _THROTTLED.items()})
    pages = [answer for answer in map(answers.__getitem__, _RETIRED) if isinstance(answer, int)]
    found["retired_pages"] = sum(pages) if pages else answers[_RETIRED[0]]
    pending = answers[_RETIREMENT_PENDING]
    found["retirement_pending"] = pending if isinstance(pending, Failed) else bool(pending)
    if links:
        totals = {name: answers[_LINK_TOTALS[name]] if name in _LINK_TOTALS else None for name in _LINK_ERRORS}
        errors = {name: _by_link(nvml, handle, name, links, totals[name]) for name in _LINK_ERRORS}
        found["link_errors"] = _successes(errors) or errors["replay"]
    return found


def _by_link(nvml: Any, handle: Any, name: str, links: int, total: int | Failed | None) -> tuple[int, ...] | Failed:
    """The errors called `name` by link, else the total of all links, where there is one."""
    for field in _LINK_ERRORS[name]:
        answers = _answers(nvml, handle, [(field, link) for link in range(links)])
        numbers = tuple(answer for answer in answers if isinstance(answer, int))
        if len(numbers) == links:
            return numbers
    return (total,) if isinstance(total, int) else total or Failed(UNSUPPORTED)


def _violations(nvml: Any, handle: Any) -> dict[str, int] | Failed:
    """The throttle counters of older drivers. They only tell heat from the limits of the board."""

    def nanoseconds(policy: int) -> int:
        return int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)

    found = {name: _attempt(nanoseconds, policy) for name, policy in _POLICIES.items()}
    return _successes(found) or found["board_limit"]  # type: ignore[return-value]


def _answers(nvml: Any, handle: Any, ids: Sequence[int | tuple[int, int]]) -> list[int | Failed]:
    """The answer for each of `ids`: a field, or a field and its scope."""

    def ask() -> list[int | Failed]:
        return [_answer(value) for _, value in zip(ids, nvml.nvmlDeviceGetFieldValues(handle, list(ids)), strict=True)]

    answers = _attempt(ask)
    return [answers for _ in ids] if isinstance(answers, Failed) else answers


def _answer(value: Any) -> int | Failed:
    """The union is decoded from its bytes, since older versions of nvidia-ml-py lack its newer members."""
    if value.nvmlReturn:
        return Failed(error_name(value.nvmlReturn))
    if not 0 <= value.valueType < len(_FORMATS):
        return Failed(f"{IMPLAUSIBLE} of type {value.valueType}")
    (number,) = struct.unpack_from(_FORMATS[value.valueType], bytes(value.value))
    if isinstance(number, int) or abs(number) < 1 << 62:
        return int(number)
    return Failed(f"{IMPLAUSIBLE} {number}")


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

    def start() -> int:
        announce("nvmlInit", CALL_LIMIT_SECONDS + start_seconds)
        pynvml.nvmlInit()
        announce("nvmlDeviceGetCount", CALL_LIMIT_SECONDS)
        return int(pynvml.nvmlDeviceGetCount())

    count = _attempt(start)
    if isinstance(count, Failed):
        return Nvml(error=count.error)
    if not 0 <= count <= _MAX_GPUS:
        return Nvml(error=f"{IMPLAUSIBLE} {count} of nvmlDeviceGetCount")
    handles = []
    for index in range(count):  # this call starts the GPU, and nvmlInit does not (nvml.h, nvmlDeviceGetHandleBy*)
        announce(f"nvmlDeviceGetHandleByIndex of GPU {index}", CALL_LIMIT_SECONDS + start_seconds)
        handles.append(_attempt(lambda number: pynvml.nvmlDeviceGetHandleByIndex(number), index))
    gpus = tuple(_gpu(pynvml, index, handle, announce) for index, handle in enumerate(handles))
    announce("nvmlDeviceGetP2PStatus", CALL_LIMIT_SECONDS)
    read, read_error = _p2p(pynvml, handles, _READ)
    write, write_error = _p2p(pynvml, handles, _WRITE)
    announce("nvmlSystemGetConfComputeState", CALL_LIMIT_SECONDS)
    version = _attempt(lambda: _text(pynvml.nvmlSystemGetDriverVersion()))
    return Nvml(
        driver_version="" if isinstance(version, Failed) else version,
        gpus=gpus,
        p2p_read=read,
        p2p_write=write,
        p2p_error=read_error or write_error,
        **_successes({name: _attempt(read, pynvml) for name, read in _OF_THE_SYSTEM.items()}),
    )


def _gpu(nvml: Any, index: int, handle: Any, announce: Announce) -> Gpu:
    if isinstance(handle, Failed):
        return Gpu(index=index, errors={"handle": handle.error})
    found: dict[str, Any] = {}
    for name, read in _READINGS.items():
        announce(f"{name} of GPU {index}", CALL_LIMIT_SECONDS)
        found[name] = _attempt(read, nvml, handle)
    if found["mig"] is True:
        found["mig_devices"] = _mig_devices(nvml, handle)
    links = found["links"]
    announce(f"nvmlDeviceGetFieldValues of GPU {index}", CALL_LIMIT_SECONDS)
    found["link_errors"] = links  # the error of the links, where there are none
    found |= _fields(nvml, handle, 0 if isinstance(links, Failed) else len(links))
    if not found["throttled_nanoseconds"]:
        announce(f"nvmlDeviceGetViolationStatus of GPU {index}", CALL_LIMIT_SECONDS)
        found["throttled_nanoseconds"] = _violations(nvml, handle)
    found = {name: _plausible(name, value) for name, value in found.items()}
    errors = {name: value.error for name, value in found.items() if isinstance(value, Failed)}
    return Gpu(index=index, errors=errors, **_successes(found))


def _mig_devices(nvml: Any, handle: Any) -> int | Failed:
    """The number of the GPU's MIG devices."""
    most = _attempt(lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)))
    if isinstance(most, Failed):
        return most
    found = [_attempt(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(most)]
    unknown = [it for it in found if isinstance(it, Failed) and it.error != "NOT_FOUND"]
    return unknown[0] if unknown else sum(not isinstance(it, Failed) for it in found)


def _memory_used_ratio(nvml: Any, handle: Any) -> float:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.used / memory.total)


def _inforom_is_valid(nvml: Any, handle: Any) -> bool:
    try:
        nvml.nvmlDeviceValidateInforom(handle)
    except Exception as error:
        if failure_name(error) != "CORRUPTED_INFOROM":
            raise
        return False
    return True


def _confidential_ready(nvml: Any) -> bool | None:
    """None where confidential computing is off."""
    is_on = nvml.nvmlSystemGetConfComputeState().ccFeature
    return bool(nvml.nvmlSystemGetConfComputeGpusReadyState()) if is_on else None


_OF_THE_SYSTEM: Final[dict[str, Callable[[Any], Any]]] = {
    "confidential_ready": _confidential_ready,
    "nvlink_bandwidth_mode": lambda nvml: int(nvml.nvmlSystemGetNvlinkBwMode()),  # Hopper
}


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
        if source is target or isinstance(source, Failed) or isinstance(target, Failed):
            return None
        answer = _attempt(lambda: int(nvml.nvmlDeviceGetP2PStatus(source, target, index)))
        if isinstance(answer, Failed):
            error = answer.error
            return None
        return answer

    return tuple(tuple(status(source, target) for target in handles) for source in handles), error


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _rows(correctable: int, uncorrectable: int, pending: int, failed: int) -> RemappedRows:
    return RemappedRows(
        correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failed=bool(failed)
    )


def _repair(channel: int, tpc: int) -> Repair:
    return Repair(channel=bool(channel), tpc=bool(tpc))


def _processes(found: Sequence[Any]) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(pid=process.pid, used_bytes=process.usedGpuMemory) for process in found)


def _newest(nvml: Any, *names: str) -> Callable[..., Any]:
    """The first of these calls that this driver and this nvidia-ml-py know."""
    return lambda *of: _first_known(*(partial(_called, nvml, name, *of) for name in names))


def _called(nvml: Any, name: str, *of: Any) -> Any:
    return getattr(nvml, name)(*of)


# The newest form of a call, and those of drivers before 535, 570 (nvml.h 13.0 calls it deprecated) and 510.
_CLOCKS_EVENT_REASONS: Final = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_TEMPERATURE: Final = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
_PROCESSES: Final = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")

_READINGS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "bus_id": lambda nvml, handle: sysfs_bus_id(_text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)),
    "uuid": lambda nvml, handle: _text(nvml.nvmlDeviceGetUUID(handle)),
    "name": lambda nvml, handle: _text(nvml.nvmlDeviceGetName(handle)),
    "board_part": lambda nvml, handle: _text(nvml.nvmlDeviceGetBoardPartNumber(handle)),
    "vbios": lambda nvml, handle: _text(nvml.nvmlDeviceGetVbiosVersion(handle)),
    "minor": lambda nvml, handle: nvml.nvmlDeviceGetMinorNumber(handle),
    "mig": lambda nvml, handle: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
    "memory_used_ratio": _memory_used_ratio,
    "persistence": lambda nvml, handle: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
    "ecc_volatile": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE),
    "ecc_aggregate": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _AGGREGATE),
    "sram_threshold_exceeded": _sram_threshold_exceeded,
    "rows": lambda nvml, handle: _rows(*nvml.nvmlDeviceGetRemappedRows(handle)),
    "inforom_valid": _inforom_is_valid,
    "repair": lambda nvml, handle: _repair(*nvml.nvmlDeviceGetRepairStatus(handle)),  # driver 580 and newer
    # From 590 on.
    "unrepairable_memory": lambda nvml, handle: bool(nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle)),
    "clocks_event_reasons": lambda nvml, handle: int(_newest(nvml, *_CLOCKS_EVENT_REASONS)(handle)),
    "temperature_celsius": lambda nvml, handle: int(_newest(nvml, *_TEMPERATURE)(handle, 0)),
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
    "processes": lambda nvml, handle: _processes(_newest(nvml, *_PROCESSES)(handle)),
    "links": _links,
    "fabric": _fabric,
}
