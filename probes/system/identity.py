"""What this machine is, what runs on it, which devices it has and how they are set: facts only, which the collector
compares with those of other nodes.

Nothing is judged here, so what a machine or device does not report is left out. Only the kernel's release must be
readable: without it this is no machine whose files could be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from laggard.kit.words import lazy_pattern
from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown, Unreadable, if_present, or_none, split_unreadable
from laggard.probes.gpu.model.pci_devices import NO_TREE, find_nvidia_devices
from laggard.probes.host.host import Host
from laggard.probes.host.mount_table import in_container, read_mounts
from laggard.probes.probe import KERNEL, Fact, Probe, Thresholds, facts
from laggard.probes.rdma.model.gid_table import read_gids
from laggard.probes.rdma.model.sysfs import RDMA, device_names, is_software_device, read_ports

_NVIDIA = "/proc/driver/nvidia"
_PCI = "/sys/bus/pci/devices"
_DMI = "/sys/class/dmi/id"
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")
_NCCL = lazy_pattern(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_DRIVER = lazy_pattern(r"NVRM version:.*?(Open)?\s*Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_CUDA = lazy_pattern(r'"cuda"\s*:\s*\{[^}]*?"version"\s*:\s*"([\w.+-]+)"')


def check_identity(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact | Unreadable]:
    release = _line(host, "/proc/sys/kernel/osrelease")
    if not release:
        raise Unknown("/proc/sys/kernel/osrelease is empty")
    yield Fact("kernel_release", release)
    contained = in_container(or_none(read_mounts, host) or ())  # a recording may lack its mounts
    for read in _READERS:
        if contained and read in _OF_THE_IMAGE:
            continue
        try:
            yield from (fact for fact in read(host) if fact.value)
        except NotFound:
            continue
        except Unknown as error:
            yield Unreadable(str(error))


def _distribution(host: Host) -> Iterator[Fact]:
    yield Fact("distribution", distribution(host.read("/etc/os-release")))


def _driver(host: Host) -> Iterator[Fact]:
    version, flavour = driver(host.read(f"{_NVIDIA}/version"))
    yield Fact("nvidia_driver_version", version)
    yield Fact("nvidia_driver_flavour", flavour)


def _gpus(host: Host) -> Iterator[Fact]:
    """Yields the GPUs of the driver's list. Without a driver only the PCI tree can show that there is no GPU."""
    names = if_present(host.entries, f"{_NVIDIA}/gpus")
    if names is None:
        yield Fact("gpu_models", _no_gpu(host))
        return
    gpus = [colon_lines(host.read(f"{_NVIDIA}/gpus/{name}/information")) for name in names]
    yield Fact("gpu_count", len(gpus))
    yield Fact("gpu_models", _distinct(gpu.get("Model", "") for gpu in gpus))
    yield Fact("gpu_vbios", _distinct(gpu.get("Video BIOS", "") for gpu in gpus))


def _cuda(host: Host) -> Iterator[Fact]:
    found = _CUDA.search(host.read("/usr/local/cuda/version.json"))
    yield Fact("cuda_version", found[1] if found else "")


def _nccl(host: Host) -> Iterator[Fact]:
    """Yields the libraries installed for the whole machine, not those of virtual environments and containers."""
    names = (name for folder in _LIBRARIES for name in if_present(host.entries, folder) or ())
    yield Fact("nccl_versions", sorted({found[1] for name in names if (found := _NCCL.fullmatch(name))}))


def _product(host: Host) -> Iterator[Fact]:
    vendor, name = _line(host, f"{_DMI}/sys_vendor"), _line(host, f"{_DMI}/product_name")
    yield Fact("product", name if name.startswith(vendor) else f"{vendor} {name}".strip())


def _cpu(host: Host) -> Iterator[Fact]:
    model, microcode = cpu(host.read("/proc/cpuinfo"))
    yield Fact("cpu_model", model)
    yield Fact("cpu_microcode", microcode)


_READERS: tuple[Callable[[Host], Iterator[Fact]], ...] = (
    _distribution, _driver, _gpus, _cuda, _nccl, _product, _cpu,
    # The version of NVIDIA's driver package, which its modules carry; modules of newer kernels carry none.
    lambda host: iter([Fact("ofed_version", _line(host, "/sys/module/mlx5_core/version"))]),
    lambda host: iter([Fact("bios_version", _line(host, f"{_DMI}/bios_version"))]),
)  # fmt: skip


_OF_THE_IMAGE: Final = (_distribution, _cuda, _nccl)
"""The readers of installed software: in a container that is the image's, the same on all nodes, and not the node's."""


def distribution(os_release: str) -> str:
    """Returns ID and VERSION_ID of os-release(5), as `ubuntu 22.04`."""
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    return " ".join(fields.get(name, "").strip().strip("\"'") for name in ("ID", "VERSION_ID")).strip()


def driver(version: str) -> tuple[str, str]:
    """Returns version and flavour (open, proprietary) in /proc/driver/nvidia/version; empty where it has neither."""
    found = _DRIVER.search(version + "\n")
    return (found[2], "open" if found[1] else "proprietary") if found else ("", "")


def cpu(cpuinfo: str) -> tuple[str, str]:
    """Returns the model and microcode of the first CPU. The kernel on Arm has no model name, and the numbers of
    implementer and part are taken instead."""
    first = colon_lines(cpuinfo.split("\n\n", 1)[0])
    arm = " ".join(first[name] for name in ("CPU implementer", "CPU part") if name in first)
    return first.get("model name") or (f"arm {arm}" if arm else ""), first.get("microcode", "")


def colon_lines(text: str) -> dict[str, str]:
    """Parses `name : value` lines."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _no_gpu(host: Host) -> list[str]:
    """Returns ["no GPU"] where the PCI tree shows none. A GPU without its driver has no known model: then nothing."""
    pci = find_nvidia_devices(host)
    return [] if pci.gpus or pci.passed_through or pci.unreadable or not pci.shown else ["no GPU"]


def _distinct(values: Iterator[str]) -> list[str]:
    """Leaves out what the driver has not read yet: `N/A`, `??.??.??.??.??`."""
    return sorted({value for value in values if value and "?" not in value and value != "N/A"})


def _line(host: Host, path: str) -> str:
    """Returns the first line of the file; empty if the file is empty."""
    return (host.read(path).strip().splitlines() or [""])[0]


# The devices. Other probes judge their links, ports and addresses.

Entry = tuple[str, Any]
"""The name of a device (or port, or file), and its value in a fact of the inventory."""


def check_inventory(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact | Unreadable]:
    for name, read in (("rdma", _rdma), ("gpu_links", _gpu_links), ("gid_layouts", _gid_layouts)):
        found: dict[str, Any] = {}
        try:
            for entry in read(host):
                if isinstance(entry, Unreadable):
                    yield entry
                else:
                    found[entry[0]] = entry[1]
        except NotApplicable:
            continue
        except Unknown as error:
            yield Unreadable(str(error))
        yield from facts(**{name: found})


def _rdma(host: Host) -> Iterator[Entry | Unreadable]:
    for name in device_names(host):
        if not is_software_device(host, name):
            device = f"{RDMA}/{name}"
            files = {
                "firmware": f"{device}/fw_ver",
                "type": f"{device}/hca_type",
                "board": f"{device}/board_id",
                "link_width": f"{device}/device/current_link_width",
            }
            texts, unread = split_unreadable(_first_lines(host, files))
            folder = f"{device}/device/net"  # not there: InfiniBand without IPoIB, or in another network namespace
            netdevs = if_present(host.entries, folder) or ()
            mtus, unread_mtus = split_unreadable(_first_lines(host, {it: f"{folder}/{it}/mtu" for it in netdevs}))
            mtu = {"mtu": sorted({text for _, text in mtus})} if mtus else {}
            yield name, {**dict(texts), **mtu}
            yield from (*unread, *unread_mtus)


def _gpu_links(host: Host) -> Iterator[Entry | Unreadable]:
    """Yields the width only: the speed goes down on an idle GPU, and comes back."""
    pci = find_nvidia_devices(host)
    if not pci.shown:
        raise Unknown(NO_TREE)
    for address in pci.gpus:
        texts, unread = split_unreadable(_first_lines(host, {"width": f"{_PCI}/{address}/current_link_width"}))
        yield address, dict(texts)
        yield from unread


def _gid_layouts(host: Host) -> Iterator[Entry | Unreadable]:
    """Yields for each RoCE port which address is at which index: NCCL_IB_GID_INDEX is one number for all nodes."""
    for port in read_ports(host).ports:
        if port.active and port.ethernet:
            gids = read_gids(host, port)
            yield port.name, ", ".join(f"{gid.number}: {gid.type} {gid.scope}" for gid in gids)


def _first_lines(host: Host, files: Mapping[str, str]) -> Iterator[Entry | Unreadable]:
    """Reads the first line of each file, by a name. Files that are not there, or are empty, are left out."""
    for name, path in files.items():
        try:
            text = host.read_if_present(path)
        except Unknown as error:
            yield Unreadable(str(error))
            continue
        if text:
            yield name, text.splitlines()[0]


PROBES: Final = (
    Probe("identity", check_identity, Thresholds(), group=KERNEL),
    Probe("inventory", check_inventory, Thresholds(), group=KERNEL),
)
