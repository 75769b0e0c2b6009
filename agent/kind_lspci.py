"""`lspci -vvv`: ACS between GPUs and NICs, degraded links, small read requests."""

from __future__ import annotations

import re

from laggard.agent.kinds import Kind, Reading, Told
from laggard.probes import acs, pcie_links, pcie_requests
from laggard.probes.acs_rules import paths, unknown_ports
from laggard.probes.link_rules import segments
from laggard.probes.pci_lspci import parse_lspci
from laggard.probes.pci_model import PciDevice, PciTree

_DEVICE = re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \S[^\n]+", re.MULTILINE)
_LEAST_DEVICES = 2  # a line that begins like a PCI address may stand in any file


def recognise(text: str) -> bool:
    return len(_DEVICE.findall(text[: 1 << 18])) >= _LEAST_DEVICES


def tell(text: str) -> Told:
    tree = parse_lspci(text)
    return Told(sum(device.is_gpu for device in tree), any(device.is_rdma_nic for device in tree))


def read(text: str, told: Told) -> Reading:
    """A dump does not say whether it is of a virtual machine; it is taken for that of a real one."""
    tree = parse_lspci(text)
    ends = tuple(device for device in tree if device.is_gpu or device.is_rdma_nic)
    used = paths(tree, ends)
    findings = (
        *acs.judge(tree, used, virtual=False),
        *pcie_links.judge(segments(tree, ends), pcie_links.LinkThresholds(), virtual=False),
        *pcie_requests.judge(ends, pcie_requests.RequestThresholds()),
    )
    facts = {
        "devices": len(tree.devices),
        "gpus": [device.address for device in ends if device.is_gpu],
        "rdma_nics": [device.address for device in ends if device.is_rdma_nic],
        "bridges_between": sorted({port for path in used for port in path.ports}),
    }
    return Reading(findings, facts, _unclear(tree, ends))


def _unclear(tree: PciTree, ends: tuple[PciDevice, ...]) -> str:
    lost = [end.address for end in ends if not end.placed]
    if lost:
        return f"which bridges {lost[0]} is behind is not in it: use `lspci -vvv` as root"
    unknown = unknown_ports(tree, paths(tree, ends))
    if unknown:
        return f"ACS of {unknown[0]} and {len(unknown) - 1} other bridges is not in it: use `lspci -vvv` as root"
    return ""


LSPCI = Kind("lspci", recognise, read, tell)
