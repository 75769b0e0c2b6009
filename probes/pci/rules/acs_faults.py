"""Which PCIe bridges keep GPUs and NICs from reaching each other directly. Pure rules over a PciTree.

A request from one device to another turns at the switch that both are behind: only the two ports there can redirect
or block it. Bits on other bridges are harmless, and so is source validation anywhere. Without a common switch the
traffic passes the root complex in any case, where redirection costs less and is told as a warning.

Bits: PCI Express Base Specification, 6.12 and 7.7.11. What NVIDIA's platforms need: linux-rdma/rdma-core,
kernel-boot/rdma_topo, and NVIDIA's GPUDirect RDMA guides for ConnectX-8.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final, NamedTuple

from laggard.probes.pci.model.config_space import (
    COMPLETION_REDIRECT,
    DIRECT,
    EGRESS,
    REQUEST_REDIRECT,
    SOURCE_VALID,
    TRANSLATION_BLOCK,
    UPSTREAM_FORWARD,
)
from laggard.probes.pci.model.tree import MELLANOX, NVIDIA, PciDevice, PciTree, behind_one_switch, meeting_ports

REDIRECTING: Final = REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARD | EGRESS
_DATA_DIRECT: Final = (MELLANOX, 0x2100)  # ConnectX-8's own function for reaching GPUs
_NVSWITCH_KIND: Final = 0x0680
_COMPARED: Final = SOURCE_VALID | REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARD
_TOWARDS_DATA_DIRECT: Final = _COMPARED & ~REQUEST_REDIRECT
_TOWARDS_ITS_GPU: Final = _COMPARED & ~COMPLETION_REDIRECT
_ABOVE_DATA_DIRECT: Final = _COMPARED & ~SOURCE_VALID


class Where(enum.Enum):
    SWITCH = "switch"
    ROOT = "root"
    DATA_DIRECT = "data direct"


class Path(NamedTuple):
    """Two devices that send to each other, and the two ports where that traffic turns."""

    one: str
    other: str
    ports: tuple[str, ...]
    where: Where


class Fault(NamedTuple):
    port: str
    where: Where
    bits: int  # that are set and should not be
    missing: int  # that should be set; only where the platform asks for some
    pairs: tuple[tuple[str, str], ...]


def paths(tree: PciTree, endpoints: Iterable[PciDevice], named: bool = False) -> tuple[Path, ...]:
    """The paths that training uses: between GPUs, and between a GPU and a NIC. `named`: the endpoints were chosen by
    somebody, and each pair of them counts."""
    devices = tuple(endpoints)
    direct = tuple(_data_direct(tree, devices))
    taken = {port for path in direct for port in path.ports}
    pairs = [pair for pair in combinations(devices, 2) if named or any(device.is_gpu for device in pair)]
    near = [path for pair in pairs if (path := _path(tree, *pair)) and not taken & set(path.ports)]
    behind_switch = [path for path in near if path.where is Where.SWITCH]
    served = {address for path in behind_switch for address in _served(tree, path)}
    nvlink = any(device.vendor == NVIDIA and device.kind == _NVSWITCH_KIND for device in tree)
    far = [path for path in near if path.where is Where.ROOT and (named or _needed(tree, path, served, nvlink))]
    return (*direct, *behind_switch, *far)


def faults(tree: PciTree, used: Iterable[Path]) -> tuple[Fault, ...]:
    """By port. Ports whose registers are not known are left out: see `unknown_ports`."""
    found: dict[str, Fault] = {}
    for path in used:
        for port in path.ports:
            bits, missing = _wrong(tree, path, port)
            if bits or missing:
                before = found.get(port, Fault(port, path.where, 0, 0, ()))
                pairs = (*before.pairs, (path.one, path.other))
                found[port] = Fault(port, before.where, before.bits | bits, before.missing | missing, pairs)
    return tuple(found[port] for port in sorted(found))


def unknown_ports(tree: PciTree, used: Iterable[Path]) -> tuple[str, ...]:
    """Ports on the paths whose ACS registers could not be read."""
    ports = {port for path in used for port in path.ports}
    return tuple(sorted(port for port in ports if not knows_extended(tree.devices[port])))


def knows_extended(device: PciDevice) -> bool:
    return device.config is not None and device.config.answers and device.config.extended_known


def without_translation(tree: PciTree, used: Iterable[Path]) -> tuple[str, ...]:
    """NICs that send through a redirecting port and have no address translation (ATS) on with which they need not.
    For machines on which ACS has to stay."""
    return tuple(
        sorted(
            {
                end
                for path in used
                for end in (path.one, path.other)
                if tree.devices[end].is_rdma_nic and any(_bits(tree, path, port) for port in path.ports)
                and not _translates(tree, end)
            }
        )
    )  # fmt: skip


def _path(tree: PciTree, one: PciDevice, other: PciDevice) -> Path | None:
    ports = meeting_ports(tree, one.address, other.address)
    if not ports:
        return None
    where = Where.SWITCH if behind_one_switch(tree, one.address, other.address) else Where.ROOT
    return Path(one.address, other.address, tuple(port.address for port in ports), where)


def _served(tree: PciTree, path: Path) -> Iterator[str]:
    """A GPU with a NIC behind its switch sends by that one."""
    ends = (tree.devices[path.one], tree.devices[path.other])
    if any(end.is_rdma_nic for end in ends):
        yield from (end.address for end in ends if end.is_gpu)


def _needed(tree: PciTree, path: Path, served: set[str], nvlink: bool) -> bool:
    """Whether traffic goes through the root complex for want of a nearer way."""
    ends = (tree.devices[path.one], tree.devices[path.other])
    if all(end.is_gpu for end in ends):
        return not nvlink
    return not any(end.address in served for end in ends if end.is_gpu)


def _data_direct(tree: PciTree, devices: Iterable[PciDevice]) -> Iterator[Path]:
    functions = [device for device in tree if (device.vendor, device.device) == _DATA_DIRECT]
    for function in functions:
        for gpu in devices:
            if gpu.is_gpu and behind_one_switch(tree, function.address, gpu.address):
                root = tree.path(gpu.address)[-1].address
                ports = tuple(port.address for port in meeting_ports(tree, function.address, gpu.address))
                yield Path(function.address, gpu.address, (*ports, root), Where.DATA_DIRECT)


def _wrong(tree: PciTree, path: Path, port: str) -> tuple[int, int]:
    """Bits that are set and should not be, and the other way round."""
    device = tree.devices[port]
    if device.config is None or device.config.acs is None:
        return 0, 0
    if path.where is Where.DATA_DIRECT:
        wanted = (_TOWARDS_DATA_DIRECT, _TOWARDS_ITS_GPU, _ABOVE_DATA_DIRECT)[path.ports.index(port)]
        control = device.config.acs.control & _COMPARED
        return control & ~wanted, wanted & ~control
    return (0 if _goes_direct(tree, path) else _bits(tree, path, port)), 0


def _bits(tree: PciTree, path: Path, port: str) -> int:
    """The bits at `port` that redirect or block what passes there. Blocking concerns those that translate."""
    config = tree.devices[port].config
    if config is None or config.acs is None:
        return 0
    counts = REDIRECTING
    if any(device.config and device.config.ats_enabled for device in _ends(tree, path)):
        counts |= TRANSLATION_BLOCK
    return config.acs.control & counts


def _goes_direct(tree: PciTree, path: Path) -> bool:
    """The NIC translates by itself (ATS), and its port lets translated requests pass."""
    return any(_translates(tree, end.address) for end in _ends(tree, path) if end.is_rdma_nic)


def _translates(tree: PciTree, nic: str) -> bool:
    device, *above = tree.path(nic)
    config, port = device.config, above[0].config if above else None
    if config is None or not config.ats_enabled or port is None:
        return False
    control = port.acs.control if port.acs else DIRECT
    return bool(control & DIRECT) and not control & TRANSLATION_BLOCK


def _ends(tree: PciTree, path: Path) -> tuple[PciDevice, PciDevice]:
    return tree.devices[path.one], tree.devices[path.other]
