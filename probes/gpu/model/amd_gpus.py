"""AMD's GPUs as amdgpu shows them in sysfs: no library of AMD's is needed, and no privilege.

Sources, of Linux (drivers/gpu/drm/amd/amdgpu, drivers/gpu/drm/amd/pm): amdgpu_ras.c (ras/BLOCK_err_count,
ras/gpu_vram_bad_pages), amdgpu_pm.c (gpu_metrics, gpu_busy_percent, hwmon), amdgpu_vram_mgr.c (mem_info_vram_*),
amdgpu_device.c (unique_id, product_name), amdgpu_gfx.c (current_compute_partition), amdgpu_xgmi.c. `xgmi_error` is not
read: to read it clears it, for whoever reads it next.
"""

from __future__ import annotations

import functools
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from laggard.kit.words import lazy_pattern
from laggard.probes.errors import NotApplicable, NotFound, Unknown, if_present, or_none
from laggard.probes.gpu.model.pci_devices import driver_of, find_nvidia_devices
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import CALL_LIMIT_SECONDS

# The table `gpu_metrics` that amdgpu gives of a GPU: its layout depends on a version, which its first bytes name.
#
# Layouts: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h, struct gpu_metrics_v1_3 to gpu_metrics_v1_8. MI200 has
# 1.3, MI300 has had 1.4 to 1.8. Only what is judged is read, at a few offsets; a value whose bits are all set is one
# that the firmware does not give (smu_cmn_init_soft_gpu_metrics). A draft of 1.6 that stood in a kernel's sources had
# another order, so that the size tells it from the real one. Pure; the bytes may be anything.

MAX_BYTES: Final = 8192
"""The largest table that is read; that of 1.8 has less than 4 KiB."""

_HEADER: Final = struct.Struct("<HBB")  # structure_size, format_revision, content_revision
_SIZE_OF_1_6: Final = 1664
_LINKS: Final = 8
"""NUM_XGMI_LINKS of kgd_pp_interface.h."""

RESIDENCIES: Final = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
"""The reasons for which the firmware counts how long clocks were lowered, in the order of the table."""


class GpuMetrics(msgspec.Struct, frozen=True):
    """`version`: as 1.7. None: the table has no such value, or the firmware gives none."""

    version: str
    accumulation_counter: int | None = None
    """The number of the firmware's cycles; a residency counts those of them in which its reason held."""
    residencies: Mapping[str, int] = {}
    throttle_bits: int | None = None
    """SMU_THROTTLER_* bits of drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h, which are the same for all GPUs."""
    xgmi_links: tuple[int | None, ...] = ()
    """1 for a link that is up and 0 for one that is not; None for one that this board does not have."""


class _Layout(msgspec.Struct, frozen=True):
    """Offsets in bytes, and the bytes that the table must have. `counter`: of the cycles, with the residencies after
    it. None: the table has no such value."""

    end: int
    counter: int | None = None
    throttle: int | None = None
    links: int | None = None


_LAYOUTS: Final = {
    3: _Layout(120, throttle=112),
    4: _Layout(15),  # its throttle_status is 0 always: "not reported through metrics now" (smu_v13_0_6_ppt.c)
    5: _Layout(15),
    6: _Layout(56, counter=32),
    7: _Layout(280, counter=40, links=264),
    8: _Layout(280, counter=40, links=264),
}
"""The places by the second number of the version."""


def parse_gpu_metrics(data: bytes) -> GpuMetrics:
    """Raises Unknown where the bytes are no table of a version that is read."""
    if len(data) < _HEADER.size:
        raise Unknown("gpu_metrics is empty")
    size, major, minor = _HEADER.unpack_from(data)
    version = f"{major}.{minor}"
    layout = _LAYOUTS.get(minor) if major == 1 else None
    if layout is None or (minor == 6 and size != _SIZE_OF_1_6):
        raise Unknown(f"gpu_metrics has version {version} with {size} bytes, which is not read")
    if not layout.end <= size <= len(data) <= MAX_BYTES:
        raise Unknown(f"gpu_metrics {version} has {len(data)} bytes and says {size}")
    counter, *residencies = _unsigned(data, layout.counter, "6I") or (None,)
    (throttle,) = _unsigned(data, layout.throttle, "Q") or (None,)
    links = _unsigned(data, layout.links, f"{_LINKS}H")
    return GpuMetrics(
        version,
        counter,
        {name: value for name, value in zip(RESIDENCIES, residencies, strict=False) if value is not None},
        throttle,
        tuple(state if state in (0, 1) else None for state in links),
    )


def _unsigned(data: bytes, offset: int | None, kinds: str) -> tuple[int | None, ...]:
    """Little-endian numbers of one size; None for one whose bits are all set. Empty without an offset."""
    if offset is None:
        return ()
    shape = struct.Struct(f"<{kinds}")
    values = shape.unpack_from(data, offset)
    unknown = (1 << 8 * shape.size // len(values)) - 1
    return tuple(None if value == unknown else value for value in values)


T = TypeVar("T")

RESET: Final = (
    "Drain the node and reset the GPU (`amd-smi reset -G`); with XGMI all GPUs of the node are reset together."
)
REPLACE: Final = "Take the node out of service and have the GPU replaced (AMD's Service Action Guide)."
POWER_OFF: Final = "Drain the node and power it off and on; a GPU that does it again has to be replaced."

DRIVER_CALL: Final = "amdgpu: "
"""The beginning of the names of calls that are announced to the watchdog."""

XGMI: Final = "xgmi_wafl"
"""The block of the links between GPUs, in the names of amdgpu_ras.c."""

_DEVICES: Final = "/sys/bus/pci/devices"
_DRIVER: Final = "/sys/bus/pci/drivers/amdgpu"
_THRESHOLD: Final = "/sys/module/amdgpu/parameters/bad_page_threshold"
_BLOCK = lazy_pattern(r"([a-z][a-z0-9_]{1,30})_err_count")
_COUNT = lazy_pattern(r"(ue|ce): *(\d{1,18})")
_PAGE = lazy_pattern(r"0x[0-9a-f]{1,16} : 0x[0-9a-f]{1,16} : ([RPF])$", re.MULTILINE)
_UNIQUE_ID = lazy_pattern(r"[0-9a-f]{16}")
_MAX_BLOCKS: Final = 32
_MAX_CHARACTERS: Final = 80
_MAX_SENSORS: Final = 16
_SENSORS = lazy_pattern(r"temp(\d{1,2})_label")


class RasCount(msgspec.Struct, frozen=True):
    """Errors of one block since the driver was loaded."""

    uncorrectable: int
    correctable: int


class BadPages(NamedTuple):
    """Pages of memory with errors, by what became of them: `R`, `P` and `F` of gpu_vram_bad_pages."""

    retired: int
    pending: int
    failed: int


class Temperature(NamedTuple):
    """Degrees Celsius. `critical` is where the GPU lowers its clocks, `emergency` where it switches itself off; None:
    not told."""

    now: float
    critical: float | None
    emergency: float | None


class AmdGpu(msgspec.Struct, frozen=True):
    """One GPU. What could not be read is None or empty, with the reason in `errors`."""

    address: str
    started: bool
    """True where amdgpu has this GPU."""
    on_the_bus: bool | None
    """False: its configuration space reads as ones, as that of a device that is gone. None: it cannot be read."""
    device_id: str
    model: str = ""
    unique_id: str = ""
    ras: Mapping[str, RasCount] = {}
    bad_pages: BadPages | None = None
    metrics: GpuMetrics | None = None
    temperatures: Mapping[str, Temperature] = {}
    """The sensors by hwmon's label: edge, junction, mem."""
    vram_total_bytes: int | None = None
    partition: str = ""
    """How it is divided for computing: SPX is whole, CPX a device for each XCD. Empty where it is not known."""
    errors: Mapping[str, str] = {}

    @property
    def device(self) -> str:
        return f"GPU {self.address}"

    @property
    def torch_uuid(self) -> str:
        """The UUID by which a rank names this GPU: HIP's is the text of unique_id, of which torch writes the bytes
        (ROCm/ROCm#4203: `66333330-6463-3464-3030-646565323262` is f330dc4d00dee22b). Empty where it is not known."""
        if not _UNIQUE_ID.fullmatch(self.unique_id):
            return ""
        return f"GPU-{uuid.UUID(bytes=self.unique_id.encode())}"


def driver_is_loaded(host: Host) -> bool:
    return bool(if_present(host.entries, _DRIVER))


@functools.lru_cache(maxsize=1)
def read_amd_gpus(host: Host) -> tuple[AmdGpu, ...]:
    """Returns the machine's AMD GPUs, without those that are lent to virtual machines; none where it has none. Raises
    Unknown where the machine shows no PCI tree."""
    return tuple(_read(host, address) for address in find_nvidia_devices(host).amd_gpus)


def started_amd_gpus(host: Host) -> tuple[AmdGpu, ...]:
    """Returns the GPUs that amdgpu has. Raises NotApplicable where the machine has no AMD GPU, and Unknown where it has
    some and the driver has none of them."""
    gpus = read_amd_gpus(host)
    if not gpus:
        raise NotApplicable("no AMD GPU")
    started = tuple(gpu for gpu in gpus if gpu.started)
    if not started:
        raise Unknown(f"{len(gpus)} AMD GPUs in the PCI tree, and amdgpu has none of them: see gpu_count")
    return started


def raise_if_unread(gpus: tuple[AmdGpu, ...], field: str, description: str) -> None:
    """Raises Unknown where `field` of a GPU could not be read, NotApplicable where no GPU has such a thing. A probe
    calls it last, when it has judged what was read."""
    reasons: dict[str, list[str]] = {}
    for gpu in gpus:
        if field in gpu.errors:
            reasons.setdefault(gpu.errors[field], []).append(gpu.address)
    if reasons:
        raise Unknown("; ".join(f"{description} of GPU {', '.join(of)}: {why}" for why, of in reasons.items()))
    if not any(getattr(gpu, field) for gpu in gpus):
        raise NotApplicable(f"no GPU of this node has {description}")


def bad_page_threshold(host: Host) -> int | None:
    """Returns the number of bad pages at which an administrator wants a GPU out of use; None where that is left to the
    driver, which then says in the kernel's log that it is reached (module parameter bad_page_threshold: -1, -2, 0)."""
    value = host.number(_THRESHOLD)
    return value if value is not None and value > 0 else None


def busy_amd_gpus(host: Host) -> dict[str, bool]:
    """Whether each GPU computes at this moment, by address, as far as the driver tells."""
    shares = {it: host.number(f"{_DEVICES}/{it}/gpu_busy_percent") for it in find_nvidia_devices(host).amd_gpus}
    return {address: share > 0 for address, share in shares.items() if share is not None}


def _read(host: Host, address: str) -> AmdGpu:
    folder = f"{_DEVICES}/{address}"
    device_id, on_the_bus = host.text(f"{folder}/device")[:_MAX_CHARACTERS], _is_on_the_bus(host, folder)
    started = driver_of(host, address) == "amdgpu"
    if not started or on_the_bus is False:  # what is gone answers nothing, and takes its time for it
        return AmdGpu(address, started, on_the_bus, device_id)
    errors: dict[str, str] = {}

    def attempt(field: str, read: Callable[[], T]) -> T | None:
        if host.watchdog:  # the driver asks the GPU's firmware, which may not answer
            host.watchdog.announce(f"{DRIVER_CALL}{field} of GPU {address}", CALL_LIMIT_SECONDS)
        try:
            return read()
        except NotFound:
            return None
        except Unknown as error:
            errors[field] = str(error)
            return None

    return AmdGpu(
        address,
        True,
        on_the_bus,
        device_id,
        host.text(f"{folder}/product_name")[:_MAX_CHARACTERS],
        host.text(f"{folder}/unique_id")[:_MAX_CHARACTERS],
        attempt("ras", lambda: _ras(host, folder, errors)) or {},
        attempt("bad_pages", lambda: _bad_pages(host.read(f"{folder}/ras/gpu_vram_bad_pages"))),
        attempt(
            "metrics",
            lambda: parse_gpu_metrics(host.read_parts(f"{folder}/gpu_metrics", lambda read: read(0, MAX_BYTES))),
        ),
        attempt("temperatures", lambda: dict(_temperatures(host, folder))) or {},
        attempt("vram_total_bytes", lambda: _number(host, f"{folder}/mem_info_vram_total")),
        attempt("partition", lambda: host.read(f"{folder}/current_compute_partition").strip()[:_MAX_CHARACTERS]) or "",
        errors,
    )


def _is_on_the_bus(host: Host, folder: str) -> bool | None:
    """A read of a device that does not answer returns ones (PCI Express Base Specification, 2.3.2)."""
    begin = or_none(host.read_parts, f"{folder}/config", lambda read: read(0, 4))
    return None if begin is None else begin != b"\xff\xff\xff\xff"


def _ras(host: Host, folder: str, errors: dict[str, str]) -> dict[str, RasCount]:
    """The counts of all blocks that give one; why another gives none stands in `errors`."""
    blocks = [found[1] for name in host.entries(f"{folder}/ras") if (found := _BLOCK.fullmatch(name))]
    counts: dict[str, RasCount] = {}
    for block in blocks[:_MAX_BLOCKS]:
        try:
            counts[block] = _ras_count(host.read(f"{folder}/ras/{block}_err_count"))
        except Unknown as error:
            errors["ras"] = str(error)
    return counts


def _ras_count(text: str) -> RasCount:
    """Reads `ue: 0` and `ce: 0`, a line each. Raises Unknown for anything else."""
    counts = {found[1]: int(found[2]) for found in _COUNT.finditer(text[:256])}
    if "ue" not in counts:
        raise Unknown(f"an error count reads {text[:40]!r}")
    return RasCount(counts["ue"], counts.get("ce", 0))


def _bad_pages(text: str) -> BadPages:
    flags = [found[1] for found in _PAGE.finditer(text)]
    return BadPages(flags.count("R"), flags.count("P"), flags.count("F"))


def _temperatures(host: Host, folder: str) -> Iterator[tuple[str, Temperature]]:
    """The files of hwmon have thousandths of a degree."""
    for monitor in host.entries(f"{folder}/hwmon")[:1]:
        place = f"{folder}/hwmon/{monitor}"
        for name in [name for name in host.entries(place) if _SENSORS.fullmatch(name)][:_MAX_SENSORS]:
            sensor = f"{place}/{name.removesuffix('_label')}"
            now = _degrees(host, f"{sensor}_input")
            if now is not None:
                limits = (_degrees(host, f"{sensor}_crit"), _degrees(host, f"{sensor}_emergency"))
                yield host.text(f"{place}/{name}")[:_MAX_CHARACTERS], Temperature(now, *limits)


def _degrees(host: Host, path: str) -> float | None:
    try:
        return _number(host, path) / 1000
    except NotFound:
        return None


def _number(host: Host, path: str) -> int:
    text = host.read(path).strip()
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise Unknown(f"{path} reads {text[:40]!r}")
    return int(text)
