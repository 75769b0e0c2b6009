"""The format `lspci`: `lspci -vvv`, judged for ACS, degraded links, small read requests and NUMA nodes."""

from __future__ import annotations

import re

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.lspci_findings import (
    judge_bridges_alone,
    judge_counts,
    judge_dead_devices,
    judge_pci_tree,
    unjudged_parts,
)
from laggard.diagnose.pastes.paste_format import on_host
from laggard.diagnose.pastes.section import only_host
from laggard.probes.pci.model.lspci import parse_lspci
from laggard.probes.pci.rules.acs_faults import peer_paths

_DEVICE = re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \S[^\n]+", re.MULTILINE)
_VIRTUAL = re.compile(
    r"systemd-detect-virt: (?!none)\w|\bQEMU\b|\bVirtio\b|Red Hat, Inc\.|\bVMware\b|Amazon\.com|Google, Inc"
    r"|Hyper-V|Xen\b"
)
_MIN_DEVICES = 2  # one line that begins like a PCI address may be in any file


def recognise(content: FileContent) -> bool:
    return len(_DEVICE.findall(content.text[: 1 << 18])) >= _MIN_DEVICES


def read_hardware(content: FileContent) -> KnownHardware:
    tree = parse_lspci(content.text)
    return KnownHardware(sum(device.is_gpu for device in tree), any(device.is_rdma_nic for device in tree))


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    """Judges the tree as that of a physical machine, where nothing in the text shows a virtual one."""
    tree = parse_lspci(content.text)
    ends = tree.endpoints()
    virtual = bool(_VIRTUAL.search(content.text))
    facts = {
        "devices": len(tree.devices),
        "gpus": [device.address for device in ends if device.is_gpu],
        "rdma_nics": [device.address for device in ends if device.is_rdma_nic],
        "bridges_between": sorted({port for path in peer_paths(tree, ends) for port in path.ports}),
        "virtual": virtual,
    }
    findings = (
        *judge_dead_devices(tree, content.text),
        *judge_counts(tree),
        *judge_pci_tree(tree, virtual),
        *(() if virtual else judge_bridges_alone(tree)),
    )
    lost = any(found.code == "GPU_LOST" for found in findings)
    host = only_host(content.text)
    findings = tuple(on_host(found, host) for found in findings)
    return FileJudgement(findings, facts, "" if lost else "; ".join(unjudged_parts(tree)))


LSPCI = FileFormat("lspci", recognise, judge, read_hardware, shares=True)
