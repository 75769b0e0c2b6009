"""The GPUs in the PCI tree, NVIDIA's and AMD's: evidence that a machine has some, or none, which needs no driver."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from laggard.kit.majority import with_peers
from laggard.kit.words import lazy_pattern
from laggard.probes.errors import NotFound, Unknown, if_present
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu

_DEVICES: Final = "/sys/bus/pci/devices"
_DRIVERS: Final = "/sys/bus/pci/drivers"
_NVIDIA, _AMD = "0x10de", "0x1002"
LENDING: Final = ("pciback", "xen-pciback", "xen_pciback", "pci-stub", "pci_stub")
_VGA: Final = "0x0300"
_DISPLAY: Final = (_VGA, "0x0302")  # VGA and 3D controllers (pci_ids.h)
_AMD_GPUS: Final = ("0x0302", "0x0380", "0x1200")  # 3D and other display controllers, processing accelerators
_FILE: Final = lazy_pattern(r"nvidia\d+")
_BRIDGE: Final = "0x0680"  # what an NVSwitch is

_Check = Callable[[Host, Any], Iterator[Any]]

NO_TREE: Final = "no PCI devices are shown here"


class NvidiaDevices(msgspec.Struct, frozen=True):
    """PCI addresses as sysfs writes them, and how many PCI devices there are (`total`)."""

    total: int
    gpus: tuple[str, ...]
    nvswitches: tuple[str, ...]
    passed_through: tuple[str, ...]  # GPUs bound to a driver that gives them to virtual machines
    displays: tuple[str, ...]  # VGA devices that another driver than NVIDIA's has, or none: a console's card
    amd_gpus: tuple[str, ...]  # AMD's accelerators, without those lent out: its VGA devices drive screens
    unreadable: tuple[str, ...]  # devices whose class or vendor cannot be read; one of them may be a GPU
    shown: bool = True  # False: the machine shows no PCI tree, and has files of GPUs in /dev


@functools.lru_cache(maxsize=1)
def find_nvidia_devices(host: Host) -> NvidiaDevices:
    """Reads the class and vendor of every PCI device. Raises Unknown where the machine shows no PCI tree, and no GPU in
    /dev either; gVisor shows a container these alone."""
    found: dict[str, list[str]] = {"gpus": [], "nvswitches": [], "amd_gpus": [], "unreadable": []}
    try:
        names = host.entries(_DEVICES)
    except NotFound:
        if not gpu_files(host):
            raise
        return NvidiaDevices(0, (), (), (), (), (), (), shown=False)
    for name in names:
        try:
            field = _classify(host, name)
        except NotFound:  # the device was unplugged after it was listed, or never had these files
            field = "unreadable"
        if field:
            found[field].append(name)
    lent = _lent(host)
    return NvidiaDevices(
        total=len(names),
        gpus=tuple(name for name in found["gpus"] if name not in lent),
        nvswitches=tuple(found["nvswitches"]),
        passed_through=tuple(name for name in found["gpus"] if name in lent),
        displays=_displays(host, [name for name in found["gpus"] if name not in lent]),
        amd_gpus=tuple(name for name in found["amd_gpus"] if name not in lent),
        unreadable=tuple(found["unreadable"]),
    )


def gpu_files(host: Host) -> tuple[str, ...]:
    """Returns the names of NVIDIA's GPUs in /dev: nvidia0, nvidia1; none where /dev cannot be read."""
    return tuple(name for name in host.names("/dev") if _FILE.fullmatch(name))


def _classify(host: Host, name: str) -> str:
    """Returns the field of NvidiaDevices that the device belongs in; empty for any other device."""
    pci_class = host.read(f"{_DEVICES}/{name}/class").strip()[:6]
    if pci_class not in (*_DISPLAY, *_AMD_GPUS, _BRIDGE):
        return ""
    vendor = host.read(f"{_DEVICES}/{name}/vendor").strip()
    if vendor == _NVIDIA and pci_class in _DISPLAY:
        return "gpus" if not _is_virtual_function(host, name) else ""
    if vendor == _NVIDIA and pci_class == _BRIDGE:
        return "nvswitches"
    is_amd_gpu = vendor == _AMD and pci_class in _AMD_GPUS
    return "amd_gpus" if is_amd_gpu and not _is_virtual_function(host, name) else ""


def _is_virtual_function(host: Host, name: str) -> bool:
    """Returns whether the device is a virtual function for a guest: the GPU itself is another device."""
    return "physfn" in host.entries(f"{_DEVICES}/{name}")


def _lent(host: Host) -> frozenset[str]:
    """Returns the devices bound to a driver that gives them to virtual machines: vfio-pci, for Grace
    nvgrace-gpu-vfio-pci, Xen's pciback, and pci-stub, which holds them for none. sysfs writes `-` or `_` in such
    names."""
    drivers = if_present(host.entries, _DRIVERS) or ()
    lending = [name for name in drivers if "vfio" in name or name in LENDING]
    return frozenset(device for driver in lending for device in host.entries(f"{_DRIVERS}/{driver}"))


def _displays(host: Host, gpus: list[str]) -> tuple[str, ...]:
    """Returns the VGA controllers that are of another model than the GPUs with NVIDIA's driver: mostly a card for the
    console, of an age that today's driver does not know. A GPU of the same model as its neighbours is none."""
    working = {_device(host, name) for name in gpus if driver_of(host, name) == "nvidia"}
    others = [name for name in gpus if working and _device(host, name) not in working]
    return tuple(name for name in others if host.read(f"{_DEVICES}/{name}/class").strip()[:6] == _VGA)


def driver_of(host: Host, name: str) -> str:
    """Returns the name of the driver that has the device; empty where none has."""
    return (if_present(host.read_link, f"{_DEVICES}/{name}/driver") or "").rpartition("/")[2]


def _device(host: Host, name: str) -> str:
    return host.read_if_present(f"{_DEVICES}/{name}/device")


def unlisted_gpus(pci: NvidiaDevices, gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Returns the GPUs of the PCI tree that are none of `gpus`, as far as NVML gave their addresses."""
    listed = {gpu.bus_id for gpu in gpus}
    return tuple(address for address in pci.gpus if address not in listed)


class PciGpu(msgspec.Struct, frozen=True):
    address: str
    numa_node: int
    """-1: the firmware does not report it."""


def read_pci_gpus(host: Host) -> tuple[PciGpu, ...]:
    """Returns NVIDIA's GPUs without those passed through to virtual machines, and without a display card. Raises
    Unknown where no GPU was found but some device could not be read, and where the machine shows no PCI tree."""
    pci = find_nvidia_devices(host)
    if not pci.shown:
        raise Unknown(NO_TREE)
    if not pci.gpus and pci.unreadable:
        raise Unknown(f"PCI device {pci.unreadable[0]} does not say what it is")
    peers = with_peers(pci.gpus, lambda address: _device(host, address))
    return tuple(PciGpu(address, _numa_node(host, f"{_DEVICES}/{address}")) for address in peers)


def _numa_node(host: Host, folder: str) -> int:
    text = host.read_if_present(f"{folder}/numa_node")  # which a kernel without NUMA lacks
    return int(text) if text.isdecimal() else -1


def of_each_maker(nvidia: _Check, amd: _Check) -> _Check:
    """The check of a probe of the GPUs of each maker that the machine has; of NVIDIA's where it has none. Neither is
    looked into before. What cannot be told of AMD's hides nothing of NVIDIA's: Unknown is raised behind that."""

    def check(host: Host, thresholds: Any) -> Iterator[Any]:
        pci = find_nvidia_devices(host)
        problem: Unknown | None = None
        if pci.amd_gpus:
            try:
                yield from amd(host, thresholds)
            except Unknown as error:
                problem = error
        if pci.gpus or not pci.amd_gpus:
            yield from nvidia(host, thresholds)
        if problem is not None:
            raise problem

    return check


_MARKERS: Final = ("/.dockerenv", "/run/.containerenv")  # of Docker and of Podman
_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in every container


def why_confined(host: Host) -> str:
    """Returns why not all GPUs may be shown here; empty where nothing confines this process. SLURM's prologs and
    epilogs run outside of the job's cgroup."""
    environ = host.variables()
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible not in ("", "void", "all"):
        return "this container was given only some (NVIDIA_VISIBLE_DEVICES)"
    script = environ.get("SLURM_SCRIPT_CONTEXT", "")
    if "SLURM_JOB_ID" in environ and not script.startswith(("prolog", "epilog")):
        return "this process runs in a SLURM job, which may be given only some"
    container = container_of(host)
    if not container or (visible == "all" and _KUBERNETES not in environ) or _has_all_device_files(host):
        return ""
    return f"this process runs in {container}, which may be given only some"


def container_of(host: Host) -> str:
    """Returns what kind of container this is; empty for none. The Container Device Interface sets
    NVIDIA_VISIBLE_DEVICES=void, whatever GPUs it gives; containerd leaves no marker, but outside of a container, where
    all processes can be seen, process 2 is kthreadd, a thread of the kernel."""
    environ = host.variables()
    if _KUBERNETES in environ:
        return "a container of Kubernetes"
    if environ.get("NVIDIA_VISIBLE_DEVICES") == "void" or any(exists(host, path) for path in _MARKERS):
        return "a container"
    try:
        return "" if host.read("/proc/2/comm").strip() == "kthreadd" else "a container"
    except NotFound:
        return "a container" if exists(host, "/proc/1/comm") else ""
    except Unknown:
        return ""


def _has_all_device_files(host: Host) -> bool:
    """Returns whether there is a /dev/nvidiaN for each GPU of the PCI tree: then the container was given all."""
    pci = find_nvidia_devices(host)
    return pci.shown and len(gpu_files(host)) >= len(pci.gpus)


def exists(host: Host, path: str) -> bool:
    try:
        host.read_parts(path, lambda read: read(0, 1))
    except NotFound:
        return False
    except Unknown:
        return True
    return True
