"""ACS_ENABLED: PCIe bridges that send traffic between GPUs and NICs up to the root complex instead of directly."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import msgspec

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.pci.model.config_space import (
    COMPLETION_REDIRECT,
    DIRECT,
    EGRESS,
    NOT_READ,
    REQUEST_REDIRECT,
    SOURCE_VALID,
    TRANSLATION_BLOCK,
    UPSTREAM_FORWARD,
    acs_names,
)
from laggard.probes.pci.model.sysfs import VirtualThresholds, read_tree, select_endpoints, with_config
from laggard.probes.pci.model.tree import MELLANOX, NVIDIA, PciDevice, PciTree, ports_between, share_root_port
from laggard.probes.probe import PCI, Fact, Probe, say

# The ports whose ACS bits keep GPUs and NICs from reaching each other directly. Pure rules over a PciTree.
#
# A request from one device to another turns at the switch that both are behind: only the two ports there can redirect
# or block it. ACS bits on other bridges are harmless, and so is source validation anywhere. Without a common switch the
# traffic passes the root complex in any case; there redirection costs less and is a warning.
#
# Bits: PCI Express Base Specification, 6.12 and 7.7.11. What NVIDIA's platforms need: linux-rdma/rdma-core,
# kernel-boot/rdma_topo, and NVIDIA's GPUDirect RDMA guides for ConnectX-8.

_REDIRECTING: Final = REQUEST_REDIRECT | COMPLETION_REDIRECT | UPSTREAM_FORWARD | EGRESS
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


class AcsFault(msgspec.Struct, frozen=True):
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
    return tuple(sorted(port for port in ports if not tree.devices[port].config.extended_known))


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
    ends = _ends(tree, path)
    if any(end.is_rdma_nic for end in ends):
        yield from (end.address for end in ends if end.is_gpu)


def _is_used(tree: PciTree, path: PeerPath, served: set[str], nvlink: bool) -> bool:
    """Returns whether traffic takes this path through the root complex, because no nearer one exists."""
    ends = _ends(tree, path)
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
    control = tree.devices[port].config.acs
    if control is None:
        return 0, 0
    if path.type is PathType.DATA_DIRECT:
        wanted = (_TOWARDS_DATA_DIRECT, _TOWARDS_ITS_GPU, _ABOVE_DATA_DIRECT)[path.ports.index(port)]
        control &= _COMPARED
        return control & ~wanted, wanted & ~control
    goes_direct = any(end.is_rdma_nic and _translates(tree, end.address) for end in _ends(tree, path))
    return (0 if goes_direct else _redirecting_bits(tree, path, port)), 0


def _redirecting_bits(tree: PciTree, path: PeerPath, port: str) -> int:
    """Returns the bits at `port` that redirect or block what passes there. Only translated requests can be blocked."""
    translated = any(end.config.ats_enabled for end in _ends(tree, path))
    return (tree.devices[port].config.acs or 0) & (_REDIRECTING | (TRANSLATION_BLOCK if translated else 0))


def _translates(tree: PciTree, nic: str) -> bool:
    """Returns whether the NIC translates addresses itself (ATS) and its port lets translated requests pass."""
    device, *above = tree.path_to_root(nic)
    if not device.config.ats_enabled or not above or above[0].config is NOT_READ:
        return False
    control = above[0].config.acs
    return control is None or control & (DIRECT | TRANSLATION_BLOCK) == DIRECT


def _ends(tree: PciTree, path: PeerPath) -> tuple[PciDevice, PciDevice]:
    return tree.devices[path.one], tree.devices[path.other]


_MAX_PAIRS: Final = 8


class AcsThresholds(VirtualThresholds, frozen=True):
    """`endpoints` send to each other; `virtual` is true also of a host that passes devices to virtual machines."""


def check(host: Host, thresholds: AcsThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    ends = select_endpoints(tree, thresholds.endpoints)
    if orphans := [end.address for end in ends if not end.parent_known]:
        raise Unknown(f"the bridges above {orphans[0]} and {len(orphans) - 1} others are not recorded")
    virtual = thresholds.is_virtual_machine(host)
    paths = peer_paths(tree, ends, named=bool(thresholds.endpoints))
    ports = sorted({port for path in paths for port in path.ports})
    nics = [end.address for end in ends if end.is_rdma_nic]
    tree = tree.updated(with_config(host, [tree.devices[address] for address in (*ports, *nics)]))
    yield Fact("virtual", virtual)
    yield Fact("bridges", {port: _control(tree.devices[port]) for port in ports})
    yield from judge(tree, paths, virtual)
    if virtual:
        yield from _judge_address_translation(tree, nics, paths)
    if unread := ports_without_acs_reading(tree, paths):
        raise Unknown(f"ACS of {len(unread)} bridges is unknown: {_reason(tree, unread)}")
    if not paths:
        raise NotApplicable(f"no two of {len(ends)} GPUs and RDMA NICs meet at a PCIe bridge")


def judge(tree: PciTree, paths: tuple[PeerPath, ...], virtual: bool | None) -> Iterator[Finding]:
    """Judges a tree of sysfs or of `lspci`. With `virtual` ACS has to stay on, and NICs need ATS. Pure."""
    if virtual:
        for nic in nics_without_ats(tree, paths):
            yield _translation_finding(tree, nic, paths)
        return
    faults = find_acs_faults(tree, paths)
    switches = {port for path in paths if path.type is PathType.SWITCH for port in path.ports}
    everywhere = switches <= {fault.port for fault in faults if fault.type is PathType.SWITCH}
    for fault in faults:
        yield _fault_finding(tree, fault, everywhere)


def _fault_finding(tree: PciTree, fault: AcsFault, everywhere: bool) -> Finding:
    """`everywhere`: ACS is on at each switch of the machine, as the firmware or the kernel sets it for a whole fleet.
    On at some and off at others is nobody's choice, and makes one pair slower than its peers."""
    control = tree.devices[fault.port].config.acs or 0
    kind, severity = f"acs_{fault.type.name.lower()}", None
    if fault.type is PathType.SWITCH:
        severity = Severity.WARNING if everywhere else Severity.CRITICAL
    wanted = (control & ~fault.bits) | fault.missing if fault.type is PathType.DATA_DIRECT else 0
    evidence = {
        "acs_control": f"{control:#04x}",
        "set": acs_names(control),
        "between": [list(pair) for pair in fault.pairs[:_MAX_PAIRS]],
        "pairs": len(fault.pairs),
    }
    told = {
        "everywhere": ", as all do" * everywhere,
        "bits": " ".join(acs_names(fault.bits)) or "lacks " + " ".join(acs_names(fault.missing)),
    }
    return say("pci", kind, fault.port, evidence, severity, port=fault.port, wanted=f"{wanted:04x}", **told)


def _translation_finding(tree: PciTree, nic: str, paths: tuple[PeerPath, ...]) -> Finding:
    ports = sorted({port for path in paths if nic in path[:2] for port in path.ports})
    evidence = {"ats_enabled": tree.devices[nic].config.ats_enabled, "bridges": ports}
    return say("pci", "acs_translation", nic, evidence, nic=nic)


def _judge_address_translation(tree: PciTree, nics: list[str], paths: tuple[PeerPath, ...]) -> Iterator[Fact]:
    """Reports ATS in a guest, which sees bridges that its hypervisor makes up and not the real ones. Raises Unknown
    where ATS cannot be read, NotApplicable where neither ACS nor ATS is on: a guest cannot judge the bridges."""
    states = {nic: tree.devices[nic].config.ats_enabled for nic in nics}
    yield Fact("address_translation", states)
    redirecting = any(acs_names(tree.devices[port].config.acs or 0) for path in paths for port in path.ports)
    if nics and not redirecting and not all(states.values()):
        unreadable = [nic for nic in nics if not tree.devices[nic].config.extended_known]
        if unreadable:
            raise Unknown(f"ATS of {len(unreadable)} NICs is unknown: {_reason(tree, unreadable)}")
        off = [nic for nic, state in states.items() if not state]
        raise NotApplicable(f"a virtual machine: the bridges are its hypervisor's to judge; no ATS is on in {off[0]}")


def _control(device: PciDevice) -> list[str] | str | None:
    """Returns for the facts the bits that are on; None where the bridge has no ACS; else "unknown"."""
    if not device.config.extended_known:
        return "unknown"
    return None if device.config.acs is None else acs_names(device.config.acs)


def _reason(tree: PciTree, addresses: Sequence[str]) -> str:
    device = tree.devices[addresses[0]]
    if device.config is NOT_READ:
        return device.config_error or f"nothing is known of {device.address}"
    if not device.config.responds:
        return f"{device.address} does not answer: its configuration space reads as ones"
    where = f"{device.folder or device.address}/config"
    return f"the kernel shows all of {where} only to root and to `laggard agent --reader`"


PROBE: Final = Probe("acs", check, AcsThresholds(), group=PCI)
