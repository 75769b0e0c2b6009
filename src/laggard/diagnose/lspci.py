"""`lspci -vvv`: ACS between GPUs and NICs, degraded links, small read requests, NUMA nodes."""

from __future__ import annotations

import re

from laggard.diagnose.file_format import Kind, Reading, Told
from laggard.diagnose.lspci_findings import judge_pci_tree, unjudged_parts
from laggard.probes.pci.model.lspci import parse_lspci
from laggard.probes.pci.rules.acs_faults import peer_paths

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
    ends = tree.endpoints()
    facts = {
        "devices": len(tree.devices),
        "gpus": [device.address for device in ends if device.is_gpu],
        "rdma_nics": [device.address for device in ends if device.is_rdma_nic],
        "bridges_between": sorted({port for path in peer_paths(tree, ends) for port in path.ports}),
    }
    return Reading(tuple(judge_pci_tree(tree, virtual=False)), facts, "; ".join(unjudged_parts(tree)))


LSPCI = Kind("lspci", recognise, read, tell)
