"""The format `lspci`: `lspci -vvv`, judged for ACS, degraded links, small read requests and NUMA nodes."""

from __future__ import annotations

import re

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.lspci_findings import judge_pci_tree, unjudged_parts
from laggard.probes.pci.model.lspci import parse_lspci
from laggard.probes.pci.rules.acs_faults import peer_paths

_DEVICE = re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \S[^\n]+", re.MULTILINE)
_MIN_DEVICES = 2  # one line that begins like a PCI address may be in any file


def recognise(content: FileContent) -> bool:
    return len(_DEVICE.findall(content.text[: 1 << 18])) >= _MIN_DEVICES


def read_hardware(content: FileContent) -> KnownHardware:
    tree = parse_lspci(content.text)
    return KnownHardware(sum(device.is_gpu for device in tree), any(device.is_rdma_nic for device in tree))


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    """Judges the tree as that of a physical machine: the output does not show whether it is a virtual one."""
    tree = parse_lspci(content.text)
    ends = tree.endpoints()
    facts = {
        "devices": len(tree.devices),
        "gpus": [device.address for device in ends if device.is_gpu],
        "rdma_nics": [device.address for device in ends if device.is_rdma_nic],
        "bridges_between": sorted({port for path in peer_paths(tree, ends) for port in path.ports}),
    }
    return FileJudgement(tuple(judge_pci_tree(tree, virtual=False)), facts, "; ".join(unjudged_parts(tree)))


LSPCI = FileFormat("lspci", recognise, judge, read_hardware)
