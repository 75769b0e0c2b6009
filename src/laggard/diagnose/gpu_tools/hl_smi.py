"""The format `hl-smi`: the table of Intel Gaudi accelerators, which has the rows of nvidia-smi's older table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.mostly import is_mostly, is_table
from laggard.diagnose.gpu_tools.smi_table import TableGpu, read_table
from laggard.diagnose.gpu_tools.smi_table_findings import missing
from laggard.diagnose.parts.terminal import without_colours
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_MAX_CHARACTERS: Final = 1 << 20
_HEAD = re.compile(r"^\| HL-SMI Version: +(\S+)", re.MULTILINE)
_BOARD_DEVICES: Final = 8
_FAILED = re.compile(r"\bERR!|\bERROR\b|Unknown Error|\bLost\b", re.IGNORECASE)
_FIX: Final = (
    "Read what habanalabs says in the kernel's log. End what runs on it, reset it (`hl-smi -r -i BUS_ID`), and take "
    "the node out of service if it comes back."
)


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[: 1 << 16])
    return bool(_HEAD.search(text)) and is_mostly(text, is_table)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    version, devices = _HEAD.search(text), read_table(text).gpus
    facts = {"devices": len(devices), "version": version[1] if version else ""}
    return FileJudgement(tuple(_judge(devices)), facts, "" if devices else "it lists no device: it is cut")


def _judge(devices: tuple[TableGpu, ...]) -> Iterator[Finding]:
    for device in devices:
        text = "\n".join(device.lines)
        name = f"Gaudi {device.number} ({device.bus_id})"
        if device.uncorrected:
            summary = f"{device.uncorrected} memory errors not correctable (uncorrectable ECC)"
            yield _finding("GPU_ECC_UNCORRECTED", name, summary, device)
        if _FAILED.search(text):
            yield _finding("GPU_LOST", name, "does not answer all that hl-smi asks", device)
    numbers = {device.number for device in devices}
    absent = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if absent and len(numbers) > len(absent):
        yield missing(f"Gaudi {', '.join(map(str, absent))}", len(numbers), max(numbers) + 1, "hl-smi leaves it out")
    elif len(devices) == _BOARD_DEVICES - 1:
        reason = f"boards have {_BOARD_DEVICES}, unless this is a container or a job with 7"
        yield missing("Gaudi devices", len(devices), _BOARD_DEVICES, reason, Severity.WARNING)


def _finding(code: str, name: str, summary: str, device: TableGpu) -> Finding:
    return finding(
        code,
        name,
        summary,
        evidence={"rows": [line.strip() for line in device.lines], "model": device.name},
        fix=_FIX,
        commands=("hl-smi -q -d ECC", "dmesg -T | grep habanalabs"),
    )


HL_SMI = FileFormat("hl-smi", recognise, judge)
