"""ACS_ENABLED: PCIe bridges that send traffic between GPUs and NICs up to the root complex instead of directly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.pci.model.config_space import acs_names
from laggard.probes.pci.model.sysfs import read_tree, select_endpoints, with_config
from laggard.probes.pci.model.tree import PciDevice, PciTree
from laggard.probes.pci.rules.acs_faults import (
    AcsFault,
    PathType,
    PeerPath,
    extended_space_known,
    find_acs_faults,
    nics_without_ats,
    peer_paths,
    ports_without_acs_reading,
)
from laggard.probes.probe import PCI, Fact, Probe, Thresholds, finding

_MAX_PAIRS: Final = 8
_FIX: Final = (
    "Turn ACS off where the machine runs no virtual machines: in the firmware (often with VT-d or the IOMMU), or at "
    "each boot with the kernel parameter `pci=disable_acs_redir=...`, or with setpci as below, which lasts until the "
    "next boot. Where it does run virtual machines, leave ACS on and turn on ATS in the NICs instead."
)
_FIX_ROOT: Final = (
    "This traffic passes the root complex anyway. If this host runs no virtual machines, set the IOMMU to passthrough "
    "(`iommu=pt`) or turn ACS off as below, which lasts until the next boot; and measure whether it helps."
)
_FIX_DATA_DIRECT: Final = (
    "ConnectX-8 reaches GPUs by a separate PCI function and needs other ACS bits than the kernel sets: see "
    "`rdma_topo check` and `rdma_topo write-grub-acs` of rdma-core."
)
_FIX_TRANSLATION: Final = (
    "ACS has to stay on where devices are passed to virtual machines. Turn on ATS in the NIC's firmware "
    "(`mlxconfig ... set ATS_ENABLED=true`), let its port pass translated requests (DirectTrans), and restart the host."
)


class AcsThresholds(Thresholds, frozen=True):
    virtual: bool | None = None
    """Devices are passed to virtual machines: this is a guest, or the host of guests. None: true if this is a guest."""

    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices that send to each other. None named: all GPUs and RDMA NICs."""


def check(host: Host, thresholds: AcsThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    ends = select_endpoints(tree, thresholds.endpoints)
    _require_known_parents(ends)
    virtual = is_virtual_machine(host) if thresholds.virtual is None else thresholds.virtual
    paths = peer_paths(tree, ends, named=bool(thresholds.endpoints))
    ports = sorted({port for path in paths for port in path.ports})
    nics = [end.address for end in ends if end.is_rdma_nic]
    tree = tree.updated(with_config(host, [tree.devices[address] for address in (*ports, *nics)]))
    yield Fact("virtual", virtual)
    yield Fact("bridges", {port: _control(tree.devices[port]) for port in ports})
    yield from judge(tree, paths, virtual)
    if virtual:
        yield from _judge_address_translation(tree, nics, paths)
    _require_registers(tree, paths)
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
    acs = getattr(tree.devices[fault.port].config, "acs", None)
    control = acs.control if acs else 0
    severity, fix, effect = {
        PathType.SWITCH: (
            Severity.WARNING if everywhere else Severity.CRITICAL,
            _FIX,
            "sends traffic between GPUs and NICs behind one switch to the root" + ", as all do" * everywhere,
        ),
        PathType.ROOT: (Severity.WARNING, _FIX_ROOT, "redirects traffic between root ports"),
        PathType.DATA_DIRECT: (Severity.WARNING, _FIX_DATA_DIRECT, "does not have the ACS bits that ConnectX-8 needs"),
    }[fault.type]
    wanted = (control & ~fault.bits) | fault.missing
    if fault.type is not PathType.DATA_DIRECT:
        wanted = 0
    return finding(
        "ACS_ENABLED",
        fault.port,
        f"{effect}: {' '.join(acs_names(fault.bits)) or 'lacks ' + ' '.join(acs_names(fault.missing))}",
        evidence={
            "acs_control": f"{control:#04x}",
            "set": acs_names(control),
            "wrong": acs_names(fault.bits),
            "lacking": acs_names(fault.missing),
            "between": [list(pair) for pair in fault.pairs[:_MAX_PAIRS]],
            "pairs": len(fault.pairs),
        },
        fix=fix,
        commands=(f"lspci -vvv -s {fault.port}", f"setpci -s {fault.port} ECAP_ACS+0x6.w={wanted:04x}"),
        severity=severity,
    )


def _translation_finding(tree: PciTree, nic: str, paths: tuple[PeerPath, ...]) -> Finding:
    ports = sorted({port for path in paths if nic in path[:2] for port in path.ports})
    config = tree.devices[nic].config
    return finding(
        "ACS_ENABLED",
        nic,
        "sends to GPUs through bridges with ACS on, as virtual machines need, and has no address translation (ATS)",
        evidence={"ats_enabled": config.ats_enabled if config else None, "bridges": ports},
        fix=_FIX_TRANSLATION,
        commands=(f"lspci -vvv -s {nic}", "mlxconfig -d DEVICE query ATS_ENABLED"),
        severity=Severity.WARNING,
    )


def _judge_address_translation(tree: PciTree, nics: list[str], paths: tuple[PeerPath, ...]) -> Iterator[Fact]:
    """Reports ATS in a guest, which sees bridges that its hypervisor makes up and not the real ones. Raises Unknown
    where ATS cannot be read, NotApplicable where neither ACS nor ATS is on: a guest cannot judge the bridges."""
    states = {nic: getattr(tree.devices[nic].config, "ats_enabled", None) for nic in nics}
    yield Fact("address_translation", states)
    redirecting = any(
        extended_space_known(tree.devices[port]) and _control(tree.devices[port])
        for path in paths
        for port in path.ports
    )
    if nics and not redirecting and not all(states.values()):
        unreadable = [nic for nic in nics if not extended_space_known(tree.devices[nic])]
        if unreadable:
            raise Unknown(f"ATS of {len(unreadable)} NICs is unknown: {_reason(tree, unreadable)}")
        off = [nic for nic, state in states.items() if not state]
        raise NotApplicable(f"a virtual machine: the bridges are its hypervisor's to judge; no ATS is on in {off[0]}")


def _control(device: PciDevice) -> list[str] | str | None:
    """Returns for the facts the bits that are on; None where the bridge has no ACS; else "unknown"."""
    if device.config is None or not extended_space_known(device):
        return "unknown"
    return acs_names(device.config.acs.control) if device.config.acs else None


def _require_known_parents(ends: tuple[PciDevice, ...]) -> None:
    unknown = [end.address for end in ends if not end.parent_known]
    if unknown:
        raise Unknown(f"the bridges above {unknown[0]} and {len(unknown) - 1} others are not recorded")


def _require_registers(tree: PciTree, paths: tuple[PeerPath, ...]) -> None:
    unknown = ports_without_acs_reading(tree, paths)
    if unknown:
        raise Unknown(f"ACS of {len(unknown)} bridges is unknown: {_reason(tree, unknown)}")


def _reason(tree: PciTree, addresses: tuple[str, ...] | list[str]) -> str:
    device = tree.devices[addresses[0]]
    if device.config is None:
        return device.config_error or f"nothing is known of {device.address}"
    if not device.config.responds:
        return f"{device.address} does not answer: its configuration space reads as ones"
    where = f"{device.folder or device.address}/config"
    return f"the kernel shows all of {where} only to root and to `laggard agent --reader`"


PROBE: Final = Probe("acs", check, AcsThresholds(), group=PCI)
