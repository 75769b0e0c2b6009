"""NVML's readings of a machine as plain values: read live, or from the file NVML_PATH of a recorded machine.

Where NVML returned an error instead of a value, the field is None and `errors` has the error, so that "this board has
no ECC" and "the GPU fell off the bus in this very call" can be told apart. Units are in the names; numbers without a
unit are NVML's own constants (nvml.h).
"""

from __future__ import annotations

from typing import Final

import msgspec

from laggard.probes.tables import meanings

NVML_PATH: Final = "/laggard/nvml.json"

CALL_LIMIT_SECONDS: Final = 8.0
"""The time that one call may take. A reading takes milliseconds once the driver is up, and seconds where it waits for
the driver's locks. A call that exceeds this limit waits for the GPU's firmware, for which the driver's own timeout is 6
s (`Timeout after 6s of waiting for RPC response`, Xid 119), or for a lock that nobody gives back."""

LOST_ERRORS: Final = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})
"""The errors which say that the GPU no longer works."""

HANDLE_FAULTS: Final = LOST_ERRORS | {"UNKNOWN", "IRQ_ISSUE", "INSUFFICIENT_POWER"}
"""The errors that nvmlDeviceGetHandleByIndex returns for a faulty GPU (nvml.h). UNKNOWN is the common one of a GPU that
fell off the bus (NVIDIA/dcgm-exporter#604, NVIDIA/open-gpu-kernel-modules#387)."""

UNSUPPORTED: Final = "NOT_SUPPORTED"
"""The error which says that the GPU does not have what was asked for. FUNCTION_NOT_FOUND proves nothing: an old library
lacks the call. Neither does DEPRECATED: the driver is newer than the call."""

NOT_IN_NVIDIA_ML_PY: Final = "NOT_IN_NVIDIA_ML_PY"
"""The error where nvidia-ml-py, and not the driver, lacks the call."""

IMPLAUSIBLE: Final = "IMPLAUSIBLE_VALUE"
"""The beginning of the error where NVML returned a value that cannot be; the value follows."""


DAMAGE_OF_LINKS: Final = ("malformed", "overrun", "receive", "remote", "general", "integrity")
"""What NVLink 5 counts of damaged packets, in the order of NVML's fields 206 to 211."""


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    pass


class RemappedRows(_Value, frozen=True):
    """Row remapping of HBM (Ampere and newer): rows remapped for correctable and uncorrectable errors; whether a
    remapping waits for a reset (`pending`), and whether one failed."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


class Repair(_Value, frozen=True):
    """Repairs of a GPU's memory (`channel`) or of its processors (`tpc`) that take effect at the next reset (Blackwell
    and newer)."""

    channel: bool = False
    tpc: bool = False


class GpuProcess(_Value, frozen=True):
    """A process with a compute context on a GPU."""

    pid: int
    used_bytes: int | None = None


class GpuFabricInfo(_Value, frozen=True):
    """nvmlGpuFabricInfo: the GPU's registration with the NVLink fabric. Its constants are NVML_GPU_FABRIC_*."""

    state: int  # 0 not supported, 1 not started, 2 in progress, 3 completed
    status: int = 0  # an nvmlReturn_t; valid once the registration is completed
    health_mask: int | None = None
    health_summary: int | None = None
    cluster_uuid: str = ""
    clique: int = 0


class Gpu(_Value, frozen=True):
    """One GPU. `errors` holds, by field, why there is no value: the error that NVML returned, mostly. With an error for
    "handle" there is no other value."""

    index: int
    errors: dict[str, str] = {}
    bus_id: str | None = None  # as sysfs names it: 0000:9b:00.0
    uuid: str | None = None
    name: str | None = None
    board_part: str | None = None  # the part number of the board
    vbios: str | None = None  # the version of its firmware
    minor: int | None = None  # N of /dev/nvidiaN, which SLURM counts GPUs by
    mig: bool | None = None
    mig_devices: int | None = None  # the parts that it is divided into, where it is in MIG mode
    memory_used_ratio: float | None = None  # of its memory, the driver's own part included
    persistence: bool | None = None
    ecc_volatile: int | None = None  # uncorrected errors since the driver was loaded
    ecc_aggregate: int | None = None  # in the lifetime of the board
    sram_threshold_exceeded: bool | None = None  # more uncorrected errors of the SRAM than NVIDIA allows
    rows: RemappedRows | None = None
    retired_pages: int | None = None  # of memory without rows to remap (Volta, T4 and older)
    retirement_pending: bool | None = None
    inforom_valid: bool | None = None
    repair: Repair | None = None
    unrepairable_memory: bool | None = None
    recovery_action: int | None = None  # NVML_GPU_RECOVERY_ACTION_*; 0 none
    clocks_event_reasons: int | None = None  # nvmlClocksEventReason* bits
    throttled_nanoseconds: dict[str, int] | None = None
    """In all, by reason: sw_thermal, hw_thermal and hw_power_brake; of older drivers only thermal and board_limit."""
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    shutdown_celsius: int | None = None
    slowdown_celsius: int | None = None
    gpu_max_celsius: int | None = None
    memory_max_celsius: int | None = None
    margin_celsius: int | None = None  # degrees below the limit (T.limit), Hopper and newer
    slowdown_margin_celsius: int | None = None  # the margin at which the hardware slows down
    gpu_max_margin_celsius: int | None = None
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None
    application_sm_mhz: int | None = None
    application_memory_mhz: int | None = None
    default_sm_mhz: int | None = None
    sm_mhz: int | None = None
    power_limit_watts: float | None = None  # what the driver was asked for (nvidia-smi -pl)
    enforced_power_limit_watts: float | None = None  # after all limiters, those of the BMC among them
    default_power_limit_watts: float | None = None
    processes: tuple[GpuProcess, ...] | None = None  # with a compute context
    pcie_replays: int | None = None  # packets that its PCIe link repeated, since the driver was loaded
    links: tuple[bool, ...] | None = None  # NVLinks: up or not
    link_errors: dict[str, tuple[int, ...]] | None = None
    """By kind (replay, recovery, crc; of NVLink 5 also malformed, overrun and others): by link, or one total."""
    fabric: GpuFabricInfo | None = None

    @property
    def device(self) -> str:
        """The name of this GPU in findings."""
        return f"GPU {self.index}" + (f" ({self.bus_id})" if self.bus_id else "")

    @property
    def key(self) -> str:
        """A name for counters, which stays the same when another GPU goes missing."""
        return self.uuid or self.bus_id or str(self.index)


class Hang(_Value, frozen=True):
    """A process that hangs: in which call, for how many seconds, and what the kernel shows of it. `limit_seconds`: how
    long the call may take; `state`, `wchan` and `stack` are those of /proc/PID, empty where unreadable."""

    call: str = msgspec.field(name="doing")
    seconds: float
    limit_seconds: float = msgspec.field(name="patience_seconds")
    pid: int
    state: str = ""
    wchan: str = ""
    stack: tuple[str, ...] = ()


class Nvml(_Value, frozen=True, omit_defaults=False):
    """NVML's readings of all GPUs. `error`: why NVML itself could not be used; `hung`: the call that hung when the
    machine was recorded."""

    laggard_nvml: int = 1  # the version of this document
    error: str = ""
    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    p2p_read: tuple[tuple[int | None, ...], ...] = ()  # NVML_P2P_STATUS_* from row to column; None on the diagonal
    p2p_write: tuple[tuple[int | None, ...], ...] = ()
    p2p_error: str = ""
    confidential_ready: bool | None = None  # with confidential computing: whether the GPUs take work
    nvlink_bandwidth_mode: int | None = None  # NVML_GPU_NVLINK_BW_MODE_*, for all GPUs; 0 full
    hung: Hang | None = None


def encode_nvml(nvml: Nvml) -> bytes:
    """The content of NVML_PATH: JSON with one GPU a line, so that people can read and change it. Processes have
    numbers alone, no user and no command."""
    whole = msgspec.json.encode(msgspec.structs.replace(nvml, gpus=()))
    gpus = b",\n ".join(msgspec.json.encode(gpu) for gpu in nvml.gpus)
    return whole.replace(b'"gpus":[]', b'"gpus":[\n ' + gpus + b"\n]", 1) + b"\n"


def error_name(code: int) -> str:
    """The name of an nvmlReturn_t, without NVML_ERROR_."""
    names = {number: name for number, name in map(str.split, meanings("nvml", "error"))}
    return names.get(str(code), f"ERROR_{code}")


def explain_nvml_error(error: str) -> str:
    """The name of an error, with its meaning where the name says too little."""
    says = {key.split()[1]: words for key, (words, _) in meanings("nvml", "error").items() if words}
    return f"{error}: {says[error]}" if error in says else error


def sysfs_bus_id(text: str) -> str:
    """NVML's PCI address `00000000:9B:00.0` as sysfs writes it, `0000:9b:00.0`: four digits of domain unless it has
    more, and lower case."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}"
