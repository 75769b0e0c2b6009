"""The PCIe bridges that keep GPUs and NICs from reaching each other directly by their ACS bits. Pure rules over a
PciTree.

A request from one device to another turns at the switch that both are behind: only the two ports there can redirect or
block it. ACS bits on other bridges are harmless, and so is source validation anywhere. Without a common switch the
traffic passes the root complex in any case; there redirection costs less and is a warning.

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
from laggard.probes.pci.model.tree import MELLANOX, NVIDIA, PciDevice, PciTree, ports_between, share_root_port

REDIRECTING: Final = REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARD | EGRESS
_DATA_DIRECT: Final = (MELLANOX, 0x2100)  # the PCI function with which ConnectX-8 reaches GPUs
_NVSWITCH_CLASS: Final = 0x0680
_COMPARED: Final = SOURCE_VALID | REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARD
_TOWARDS_DATA_DIRECT: Final = _COMPARED & ~REQUEST_REDIRECT
_TOWARDS_ITS_GPU: Final = _COMPARED & ~COMPLETION_REDIRECT
_ABOVE_DATA_DIRECT: Final = _COMPARED & ~SOURCE_VALID


class PathType(enum.Enum):
    """The place where the traffic turns: at a common switch, at the root complex, or at the switch of a Data Direct
    function."""

    SWITCH = "switch"
    ROOT = "root"
    DATA_DIRECT = "data direct"


class PeerPath(NamedTuple):
    """The addresses of two devices that send to each other, and of the ports that can redirect that traffic."""

    one: str
    other: str
    ports: tuple[str, ...]
    type: PathType


class AcsFault(NamedTuple):
    """ACS bits of one port that slow down traffic between `pairs` of devices."""

    port: str
    type: PathType
    bits: int  # those that are set and should not be
    missing: int  # those that should be set; 0 except for Data Direct
    pairs: tuple[tuple[str, str], ...]


def peer_paths(tree: PciTree, endpoints: Iterable[PciDevice], named: bool = False) -> tuple[PeerPath, ...]:
    """Returns the paths that training uses: between GPUs, and between a GPU and a NIC. `named`: the profile chose the
    endpoints, and every pair of them counts."""
    devices = tuple(endpoints)
    direct = tuple(_data_direct(tree, devices))
    taken = {port for path in direct for port in path.ports}
    pairs = [pair for pair in combinations(devices, 2) if named or any(device.is_gpu for device in pair)]
    others = [path for pair in pairs if (path := _path(tree, *pair)) and not taken & set(path.ports)]
    behind_switch = [path for path in others if path.type is PathType.SWITCH]
    served = {address for path in behind_switch for address in _served(tree, path)}
    nvlink = any(device.vendor == NVIDIA and device.pci_class == _NVSWITCH_CLASS for device in tree)
    by_root = [
        path for path in others if path.type is PathType.ROOT and (named or _is_used(tree, path, served, nvlink))
    ]
    return (*direct, *behind_switch, *by_root)


def find_acs_faults(tree: PciTree, used: Iterable[PeerPath]) -> tuple[AcsFault, ...]:
    """Returns one fault for each port. Ports whose registers are not known are left out: see
    ports_without_acs_reading()."""
    found: dict[str, AcsFault] = {}
    for path in used:
        for port in path.ports:
            bits, missing = _wrong_bits(tree, path, port)
            if bits or missing:
                before = found.get(port, AcsFault(port, path.type, 0, 0, ()))
                pairs = (*before.pairs, (path.one, path.other))
                found[port] = AcsFault(port, before.type, before.bits | bits, before.missing | missing, pairs)
    return tuple(found[port] for port in sorted(found))


def ports_without_acs_reading(tree: PciTree, used: Iterable[PeerPath]) -> tuple[str, ...]:
    """Returns the ports on the paths whose ACS registers could not be read."""
    ports = {port for path in used for port in path.ports}
    return tuple(sorted(port for port in ports if not extended_space_known(tree.devices[port])))


def extended_space_known(device: PciDevice) -> bool:
    return device.config is not None and device.config.responds and device.config.extended_known


def nics_without_ats(tree: PciTree, used: Iterable[PeerPath]) -> tuple[str, ...]:
    """Returns the NICs that send through a redirecting port and could avoid it with address translation (ATS), which
    they have not on. For machines on which ACS has to stay."""
    return tuple(
        sorted(
            {
                end
                for path in used
                for end in (path.one, path.other)
                if tree.devices[end].is_rdma_nic and any(_redirecting_bits(tree, path, port) for port in path.ports)
                and not _translates(tree, end)
            }
        )
    )  # fmt: skip


def _path(tree: PciTree, one: PciDevice, other: PciDevice) -> PeerPath | None:
    ports = ports_between(tree, one.address, other.address)
    if not ports:
        return None
    path_type = PathType.SWITCH if share_root_port(tree, one.address, other.address) else PathType.ROOT
    return PeerPath(one.address, other.address, tuple(port.address for port in ports), path_type)


def _served(tree: PciTree, path: PeerPath) -> Iterator[str]:
    """Yields the GPUs that have a NIC behind their switch, and send through that NIC."""
    ends = (tree.devices[path.one], tree.devices[path.other])
    if any(end.is_rdma_nic for end in ends):
        yield from (end.address for end in ends if end.is_gpu)


def _is_used(tree: PciTree, path: PeerPath, served: set[str], nvlink: bool) -> bool:
    """Returns whether traffic takes this path through the root complex, because no nearer one exists."""
    ends = (tree.devices[path.one], tree.devices[path.other])
    if all(end.is_gpu for end in ends):
        return not nvlink
    return not any(end.address in served for end in ends if end.is_gpu)


def _data_direct(tree: PciTree, devices: Iterable[PciDevice]) -> Iterator[PeerPath]:
    functions = [device for device in tree if (device.vendor, device.device) == _DATA_DIRECT]
    for function in functions:
        for gpu in devices:
            if gpu.is_gpu and share_root_port(tree, function.address, gpu.address):
                root = tree.path_to_root(gpu.address)[-1].address
                ports = tuple(port.address for port in ports_between(tree, function.address, gpu.address))
                yield PeerPath(function.address, gpu.address, (*ports, root), PathType.DATA_DIRECT)


def _wrong_bits(tree: PciTree, path: PeerPath, port: str) -> tuple[int, int]:
    """Returns the bits that are set and should not be, and those that should be set and are not."""
    device = tree.devices[port]
    if device.config is None or device.config.acs is None:
        return 0, 0
    if path.type is PathType.DATA_DIRECT:
        wanted = (_TOWARDS_DATA_DIRECT, _TOWARDS_ITS_GPU, _ABOVE_DATA_DIRECT)[path.ports.index(port)]
        control = device.config.acs.control & _COMPARED
        return control & ~wanted, wanted & ~control
    return (0 if _goes_direct(tree, path) else _redirecting_bits(tree, path, port)), 0


def _redirecting_bits(tree: PciTree, path: PeerPath, port: str) -> int:
    """Returns the bits at `port` that redirect or block what passes there. Only translated requests can be blocked."""
    config = tree.devices[port].config
    if config is None or config.acs is None:
        return 0
    counts = REDIRECTING
    if any(device.config and device.config.ats_enabled for device in _ends(tree, path)):
        counts |= TRANSLATION_BLOCK
    return config.acs.control & counts


def _goes_direct(tree: PciTree, path: PeerPath) -> bool:
    """Returns whether the NIC translates addresses itself (ATS) and its port lets translated requests pass."""
    return any(_translates(tree, end.address) for end in _ends(tree, path) if end.is_rdma_nic)


def _translates(tree: PciTree, nic: str) -> bool:
    device, *above = tree.path_to_root(nic)
    config, port = device.config, above[0].config if above else None
    if config is None or not config.ats_enabled or port is None:
        return False
    control = port.acs.control if port.acs else DIRECT
    return bool(control & DIRECT) and not control & TRANSLATION_BLOCK


def _ends(tree: PciTree, path: PeerPath) -> tuple[PciDevice, PciDevice]:
    return tree.devices[path.one], tree.devices[path.other]
