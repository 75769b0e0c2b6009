"""What the GPU probes share: the GPUs to judge, and how a reading that is missing is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.pci_devices import look_at_bus
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import UNSUPPORTED_ERRORS, Gpu, Nvml

START_SECONDS: Final = 3.0
"""What nvmlInit may take for each GPU that nobody holds open: NVIDIA's driver-persistence guide speaks of 1 to 3 s."""

_RUNNING_START_SECONDS: Final = 3.0  # a driver that is up answers within milliseconds

_MEANINGS: Final = {
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 is not to be found here",
    "DRIVER_NOT_LOADED": "the driver is not loaded",
    "LIB_RM_VERSION_MISMATCH": "library and loaded driver are of different versions: reload the driver or reboot",
    "NO_PERMISSION": "this user may not use it",
    "FUNCTION_NOT_FOUND": "the library is too old for it",
}


def ask_nvml(host: Host) -> Nvml:
    """NVML's answer on a machine with NVIDIA GPUs. Raises NotApplicable where the PCI tree has none."""
    bus = look_at_bus(host)
    if not bus.gpus:
        if bus.unreadable:
            raise Unknown(f"PCI device {bus.unreadable[0]} and {len(bus.unreadable) - 1} more do not say what they are")
        if bus.lent:
            raise NotApplicable(f"virtual machines have all {len(bus.lent)} GPUs (driver vfio-pci)")
        others = f" ({bus.amd} AMD GPUs are not judged)" if bus.amd else ""
        raise NotApplicable(f"no NVIDIA GPU among {bus.devices} PCI devices{others}")
    return host.nvml(_init_limit_seconds(host, len(bus.gpus)))


def ask_gpus(host: Host) -> tuple[Gpu, ...]:
    """The GPUs that NVML lists; never none."""
    nvml = ask_nvml(host)
    if nvml.hung:
        raise Unknown(f"was not reached: {nvml.hung.call} gave no answer in {nvml.hung.seconds} s")
    if nvml.error:
        raise Unknown(f"NVML: {explain(nvml.error)}")
    if not nvml.gpus:
        raise Unknown("NVML lists no GPU")
    return nvml.gpus


def ask_whole_gpus(host: Host) -> tuple[Gpu, ...]:
    """Those that are not divided by MIG: a part of one has neither NVLinks nor peers."""
    gpus = ask_gpus(host)
    whole = tuple(gpu for gpu in gpus if not gpu.mig)
    if not whole:
        raise NotApplicable(f"all {len(gpus)} GPUs are in MIG mode: their parts are not judged")
    return whole


def explain(error: str) -> str:
    return f"{error}: {_MEANINGS[error]}" if error in _MEANINGS else error


def _init_limit_seconds(host: Host, gpus: int) -> float:
    """Without persistence mode nvmlInit starts each GPU, one after the other. Who holds a GPU open (a job,
    nvidia-persistenced) holds the driver's module."""
    try:
        users = int(host.read("/sys/module/nvidia/refcnt"))
        modules = len(host.entries("/sys/module/nvidia/holders"))
    except (Unknown, ValueError):
        users, modules = 0, 0
    return _RUNNING_START_SECONDS if users - modules >= gpus else _RUNNING_START_SECONDS + START_SECONDS * gpus


class Reading(NamedTuple):
    """One field of several GPUs: what was read, and why the rest was not."""

    what: str
    seen: tuple[tuple[Gpu, Any], ...]
    silent: tuple[str, ...]

    def conclude(self) -> None:
        """Raises Unknown where a GPU gave no answer, NotApplicable where no GPU has such a thing. Comes last: what
        was seen is judged first."""
        if self.silent:
            raise Unknown("; ".join(self.silent))
        if not self.seen:
            raise NotApplicable(f"no GPU of this node has {self.what}")


def read_field(gpus: Iterable[Gpu], field: str, what: str) -> Reading:
    seen: list[tuple[Gpu, Any]] = []
    why: dict[str, list[str]] = {}
    for gpu in gpus:
        value = getattr(gpu, field)
        error = gpu.errors.get(field) or gpu.errors.get("handle") or "was not read"
        if value is not None:
            seen.append((gpu, value))
        elif error not in UNSUPPORTED_ERRORS:
            why.setdefault(error, []).append(str(gpu.index))
    silent = tuple(f"{what} of GPU {', '.join(indices)}: {explain(error)}" for error, indices in why.items())
    return Reading(what, tuple(seen), silent)
