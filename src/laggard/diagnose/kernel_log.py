"""The format `kernel log`: dmesg (with or without dates), `journalctl -k`, /dev/kmsg, /var/log/kern.log."""

from __future__ import annotations

import re

from laggard.diagnose import kernel_findings
from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.probes.gpu.model.driver_log import find_xids
from laggard.probes.gpu.xid import judge_xids
from laggard.probes.pci.rules.kernel_messages import find_device_errors

_LINE = re.compile(
    r"(?:<\d+>)?\[\s*\d+\.\d+\]"  # dmesg
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\]"  # dmesg -T
    r"|\d+,\d+,\d+,[^;]*;"  # /dev/kmsg
    r"|\S.{8,80}? kernel: "  # syslog, journalctl
)
_RELEVANT = ("NVRM: ", "SXid", "mlx5_core", "PCIe Bus Error", *kernel_findings.RELEVANT)
"""Words of the lines that the rules look at: a few in thousands."""
_MIN_SHARE = 0.5
_SAMPLE_LINES = 400


def recognise(content: FileContent) -> bool:
    lines = [line for line in content.text[: 1 << 18].splitlines()[:_SAMPLE_LINES] if line and not line.startswith(" ")]
    hits = sum(1 for line in lines if _LINE.match(line))
    return hits > 0 and hits >= _MIN_SHARE * len(lines)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = "".join(map(_relevant_lines, content.pieces()))
    lines = find_xids(text)
    findings, counted = judge_xids(lines)
    facts = {"xids": len(lines), "xids_of_applications": {}, **counted}
    return FileJudgement((*findings, *find_device_errors(text), *kernel_findings.judge_host_messages(text)), facts)


def _relevant_lines(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if any(word in line for word in _RELEVANT))


KERNEL_LOG = FileFormat("kernel log", recognise, judge, end_matters=True)
