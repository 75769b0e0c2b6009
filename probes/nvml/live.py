"""Reads NVML through its real library. No call here changes a GPU.

Each call is announced with the time that it may take, so that the parent can tell a hang from a slow start. This runs
in a probe's process: a call may never return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from laggard.probes.nvml import fields as nvml_fields
from laggard.probes.nvml.model import Gpu, GpuFabricInfo, GpuProcess, Nvml, RemappedRows, error_name, sysfs_bus_id

Announce = Callable[[str, float], None]
"""Announces the next call, and how many seconds it may take."""

CALL_LIMIT_SECONDS: Final = 3.0
"""A reading takes milliseconds once the driver is up. A call that exceeds this limit is waiting for the GPU's firmware,
for which the driver's own timeout is 6 s (`Timeout after 6s of waiting for RPC response`, Xid 119)."""

_MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS
_READ, _WRITE = 0, 1  # NVML_P2P_CAPS_INDEX_*; pynvml's READ is a tuple by mistake
_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
_SM, _MEMORY = 1, 2  # nvmlClockType_t


def read_nvml(announce: Announce, init_limit_seconds: float) -> Nvml:
    """NVML's readings of all GPUs. `announce` is called before each call into NVML. Raises nothing."""
    announce("importing pynvml", CALL_LIMIT_SECONDS)
    try:
        import pynvml
    except ImportError as error:
        return Nvml(error=f"nvidia-ml-py is not installed: {error}")
    announce("nvmlInit", init_limit_seconds)
    try:
        pynvml.nvmlInit()
        announce("nvmlDeviceGetCount", CALL_LIMIT_SECONDS)
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return Nvml(error=error_name(error.value))
    handles = [_handle(pynvml, index, announce) for index in range(count)]
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
    except nvml.NVMLError:
        return ""


def _handle(nvml: Any, index: int, announce: Announce) -> Any:
    """The GPU's handle, or the name of the error."""
    announce(f"nvmlDeviceGetHandleByIndex of GPU {index}", CALL_LIMIT_SECONDS)
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return error_name(error.value)


def _gpu(nvml: Any, index: int, handle: Any, announce: Announce) -> Gpu:
    if isinstance(handle, str):
        return Gpu(index=index, errors={"handle": handle})
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, read in _READINGS.items():
        announce(f"{name} of GPU {index}", CALL_LIMIT_SECONDS)
        try:
            values[name] = read(nvml, handle)
        except nvml.NVMLError as error:
            errors[name] = error_name(error.value)
    announce(f"nvmlDeviceGetFieldValues of GPU {index}", CALL_LIMIT_SECONDS)
    fields, field_errors = nvml_fields.read_fields(nvml, handle, len(values.get("links") or ()))
    if not fields.get("throttled_nanoseconds"):
        fields.pop("throttled_nanoseconds", None)
        announce(f"nvmlDeviceGetViolationStatus of GPU {index}", CALL_LIMIT_SECONDS)
        nvml_fields.read_violations(nvml, handle, fields, field_errors)
    return Gpu(index=index, errors={**errors, **field_errors}, **values, **fields)


def _rows(nvml: Any, handle: Any) -> RemappedRows:
    correctable, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return RemappedRows(
        correctable=correctable, uncorrectable=uncorrectable, pending=bool(pending), failed=bool(failed)
    )


def _clocks_event_reasons(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:  # before driver 535
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    except nvml.NVMLError_FunctionNotFound:  # before driver 510
        found = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    return tuple(GpuProcess(pid=process.pid, used_bytes=process.usedGpuMemory) for process in found)


def _links(nvml: Any, handle: Any) -> tuple[bool, ...]:
    """Whether each NVLink is up, as far as the GPU has them. An error for the first link is the error of all."""
    states: list[bool] = []
    for link in range(_MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            if not states:
                raise
            break
    return tuple(states)


def _fabric(nvml: Any, handle: Any) -> GpuFabricInfo:
    try:
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, nvml.byref(info))
        mask = int(info.healthMask)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):  # before driver 550
        info, mask = nvml.c_nvmlGpuFabricInfo_t(), None
        nvml.nvmlDeviceGetGpuFabricInfo(handle, nvml.byref(info))
    uuid = bytes(info.clusterUuid).hex()
    return GpuFabricInfo(
        state=info.state & 0xFF,  # one byte in nvml.h, four in pynvml
        status=info.status,
        health_mask=mask,
        cluster_uuid=uuid if uuid.strip("0") else "",
        clique=info.cliqueId,
    )


def _p2p(nvml: Any, handles: list[Any], index: int) -> tuple[tuple[tuple[int | None, ...], ...], str]:
    error = ""

    def status(source: Any, target: Any) -> int | None:
        nonlocal error
        if source is target or isinstance(source, str) or isinstance(target, str):
            return None
        try:
            return int(nvml.nvmlDeviceGetP2PStatus(source, target, index))
        except nvml.NVMLError as failure:
            error = error_name(failure.value)
            return None

    return tuple(tuple(status(source, target) for target in handles) for source in handles), error


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_READINGS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "bus_id": lambda nvml, handle: sysfs_bus_id(_text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)),
    "uuid": lambda nvml, handle: _text(nvml.nvmlDeviceGetUUID(handle)),
    "name": lambda nvml, handle: _text(nvml.nvmlDeviceGetName(handle)),
    "minor": lambda nvml, handle: nvml.nvmlDeviceGetMinorNumber(handle),
    "mig": lambda nvml, handle: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
    "persistence": lambda nvml, handle: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
    "ecc_volatile": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE),
    "ecc_aggregate": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _AGGREGATE),
    "rows": _rows,
    "clocks_event_reasons": _clocks_event_reasons,
    "temperature_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, 0),
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
    "default_power_limit_watts": lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
    "processes": _processes,
    "links": _links,
    "fabric": _fabric,
}
