"""ACS_ENABLED: PCIe bridges that send what GPUs and NICs exchange up to the root complex instead of straight on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.pci.model.config_space import acs_names
from laggard.probes.pci.model.sysfs import endpoints, read_tree, with_config
from laggard.probes.pci.model.tree import PciDevice, PciTree
from laggard.probes.pci.rules.acs_faults import (
    Fault,
    Path,
    Where,
    faults,
    knows_extended,
    paths,
    unknown_ports,
    without_translation,
)
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_MOST_PAIRS: Final = 8
_FIX: Final = (
    "Switch ACS off where the machine runs no virtual machines: in the firmware (often with VT-d or the IOMMU), or at "
    "each boot with the kernel parameter `pci=disable_acs_redir=...`, or with setpci as below, which lasts until the "
    "next boot. Where it does run virtual machines, leave ACS on and switch on ATS in the NICs instead."
)
_FIX_ROOT: Final = (
    "This traffic passes the root complex anyway. Without virtual machines on this host switch the IOMMU to "
    "passthrough (`iommu=pt`) or ACS off as below, which lasts until the next boot; and measure."
)
_FIX_DATA_DIRECT: Final = (
    "ConnectX-8 reaches GPUs by a function of its own and needs other ACS bits than the kernel sets: see "
    "`rdma_topo check` and `rdma_topo write-grub-acs` of rdma-core."
)
_FIX_TRANSLATION: Final = (
    "ACS has to stay on where devices are passed to virtual machines. Switch on ATS in the NIC's firmware "
    "(`mlxconfig ... set ATS_ENABLED=true`), let its port pass translated requests (DirectTrans), and restart the host."
)


class AcsThresholds(Thresholds, frozen=True):
    virtual: bool | None = None
    """Are devices passed to virtual machines here: is this a guest, or a host of such? None: is this a guest."""

    endpoints: tuple[str, ...] = ()
    """PCI addresses of the devices that send to each other. None named: all GPUs and RDMA NICs."""


def check(host: Host, thresholds: AcsThresholds) -> Iterator[Finding | Fact]:
    tree = read_tree(host)
    ends = endpoints(host, tree, thresholds.endpoints)
    _require_places(ends)
    virtual = is_virtual_machine(host) if thresholds.virtual is None else thresholds.virtual
    used = paths(tree, ends, named=bool(thresholds.endpoints))
    ports = sorted({port for path in used for port in path.ports})
    nics = [end.address for end in ends if end.is_rdma_nic]
    tree = tree.replaced(with_config(host, [tree.devices[address] for address in (*ports, *nics)]))
    yield Fact("virtual", virtual)
    yield Fact("bridges", {port: _control(tree.devices[port]) for port in ports})
    yield from judge(tree, used, virtual)
    if virtual:
        yield from _unseen(tree, nics, used)
    _require_registers(tree, used)
    if not used:
        raise NotApplicable(f"no two of {len(ends)} GPUs and RDMA NICs meet at a PCIe bridge")


def judge(tree: PciTree, used: tuple[Path, ...], virtual: bool | None) -> Iterator[Finding]:
    """Pure: also for what `lspci` printed."""
    if virtual:
        for nic in without_translation(tree, used):
            yield _translation(tree, nic, used)
        return
    for fault in faults(tree, used):
        yield _fault(tree, fault)


def _fault(tree: PciTree, fault: Fault) -> Finding:
    acs = getattr(tree.devices[fault.port].config, "acs", None)
    control = acs.control if acs else 0
    severity, fix, what = {
        Where.SWITCH: (Severity.CRITICAL, _FIX, "sends what GPUs and NICs behind one switch exchange to the root"),
        Where.ROOT: (Severity.WARNING, _FIX_ROOT, "has what passes between root ports redirected"),
        Where.DATA_DIRECT: (Severity.WARNING, _FIX_DATA_DIRECT, "has not the ACS bits that ConnectX-8 needs"),
    }[fault.where]
    wanted = (control & ~fault.bits) | fault.missing
    if fault.where is not Where.DATA_DIRECT:
        wanted = 0
    return finding(
        "ACS_ENABLED",
        fault.port,
        f"{what}: {' '.join(acs_names(fault.bits)) or 'lacks ' + ' '.join(acs_names(fault.missing))}",
        evidence={
            "acs_control": f"{control:#04x}",
            "set": acs_names(control),
            "wrong": acs_names(fault.bits),
            "lacking": acs_names(fault.missing),
            "between": [list(pair) for pair in fault.pairs[:_MOST_PAIRS]],
            "pairs": len(fault.pairs),
        },
        fix=fix,
        commands=(f"lspci -vvv -s {fault.port}", f"setpci -s {fault.port} ECAP_ACS+0x6.w={wanted:04x}"),
        severity=severity,
    )


def _translation(tree: PciTree, nic: str, used: tuple[Path, ...]) -> Finding:
    ports = sorted({port for path in used if nic in path[:2] for port in path.ports})
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


def _unseen(tree: PciTree, nics: list[str], used: tuple[Path, ...]) -> Iterator[Fact]:
    """A guest sees the bridges that its hypervisor makes up, not those that its devices hang on."""
    states = {nic: getattr(tree.devices[nic].config, "ats_enabled", None) for nic in nics}
    yield Fact("address_translation", states)
    redirecting = any(
        knows_extended(tree.devices[port]) and _control(tree.devices[port]) for path in used for port in path.ports
    )
    if nics and not redirecting and not all(states.values()):
        unread = [nic for nic in nics if not knows_extended(tree.devices[nic])]
        if unread:
            raise Unknown(f"ATS of {len(unread)} NICs cannot be told: {_why(tree, unread)}")
        off = [nic for nic, state in states.items() if not state]
        raise NotApplicable(f"a virtual machine: the bridges are its hypervisor's to judge; no ATS is seen on {off[0]}")


def _control(device: PciDevice) -> list[str] | str | None:
    """For the facts: the bits that are on; None: the bridge has no ACS; a text: not known."""
    if device.config is None or not knows_extended(device):
        return "unknown"
    return acs_names(device.config.acs.control) if device.config.acs else None


def _require_places(ends: tuple[PciDevice, ...]) -> None:
    lost = [end.address for end in ends if not end.placed]
    if lost:
        raise Unknown(f"which bridges {lost[0]} and {len(lost) - 1} others are behind is not recorded")


def _require_registers(tree: PciTree, used: tuple[Path, ...]) -> None:
    unknown = unknown_ports(tree, used)
    if unknown:
        raise Unknown(f"ACS of {len(unknown)} bridges cannot be told: {_why(tree, unknown)}")


def _why(tree: PciTree, addresses: tuple[str, ...] | list[str]) -> str:
    device = tree.devices[addresses[0]]
    if device.config is None:
        return device.why_no_config or f"nothing is known of {device.address}"
    if not device.config.answers:
        return f"{device.address} does not answer: its configuration space reads as ones"
    return f"the kernel shows all of {device.folder or device.address}/config to root alone"


PROBE: Final = Probe("acs", check, AcsThresholds())
