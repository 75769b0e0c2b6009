"""The format `nvidia-smi topo -m`: how GPUs reach each other. A GPU without NVLink where its peers have it, or with
fewer, has lost links.

Only groups whose other GPUs are all joined alike are judged: boards that join some pairs alone (DGX-1, bridges) are
judged for the GPUs that have no NVLink at all while most have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.parts.terminal import without_colours
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_MAX_CHARACTERS: Final = 1 << 18
_MAX_LINES_BEFORE: Final = 10
_HEAD = re.compile(r"^[^\S\n]*GPU0\s+(?:GPU\d+|NIC\d+|mlx\w+|CPU|\S+)", re.MULTILINE)
_ROW = re.compile(r"^GPU(\d{1,3})[ \t]+(.*)$", re.MULTILINE)
_CELL: Final = re.compile(r"X|NV\d+|SYS|NODE|PHB|PXB|PIX|SOC|NS|OK")
_FIX: Final = (
    "Compare with `nvidia-smi nvlink -s`, look for Xid 74 and SXid in the kernel's log, see whether the fabric manager "
    "runs, and reset all GPUs together. A GPU that stays out needs its board to be serviced."
)
_COMMANDS: Final = ("nvidia-smi nvlink -s", "dmesg -T | grep -E 'Xid|SXid'", "systemctl status nvidia-fabricmanager")

Matrix = Mapping[int, tuple[int, ...]]
"""By GPU: the number of NVLinks to each GPU, 0 for its own place."""


def recognise(content: FileContent) -> bool:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    head = _HEAD.search(text)
    return head is not None and text.count("\n", 0, head.start()) < _MAX_LINES_BEFORE and bool(read_matrix(text))


def read_hardware(content: FileContent) -> KnownHardware:
    return KnownHardware(gpus=len(read_matrix(without_colours(content.text[:_MAX_CHARACTERS]))) or None)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    matrix = read_matrix(without_colours(content.text[:_MAX_CHARACTERS]))
    facts = {"gpus": len(matrix), "nvlinks": {f"GPU {gpu}": sum(links) for gpu, links in matrix.items()}}
    return FileJudgement(tuple(judge_matrix(matrix)), facts)


def read_matrix(text: str) -> Matrix:
    """The links by GPU; nothing where a row is cut."""
    rows = {int(row[1]): row[2].split() for row in _ROW.finditer(text) if _CELL.fullmatch(row[2].split()[0])}
    count = len(rows)
    if sorted(rows) != list(range(count)) or any(len(cells) < count for cells in rows.values()):
        return {}
    return {gpu: tuple(_links(cell) for cell in cells[:count]) for gpu, cells in rows.items()}


def judge_matrix(matrix: Matrix) -> Iterator[Finding]:
    totals = {gpu: sum(links) for gpu, links in matrix.items()}
    joined = [gpu for gpu, total in totals.items() if total]
    if len(joined) < 2 or len(joined) == len(matrix) and len(set(totals.values())) == 1:
        return
    usual = Counter(total for total in totals.values() if total).most_common(1)[0][0]
    full = _joined_alike(matrix)
    for gpu, total in totals.items():
        alone = not total and 2 * len(joined) > len(matrix)
        fewer = full is not None and gpu not in full and 0 < total < usual
        if alone or fewer:
            severity = Severity.WARNING if full is None else Severity.CRITICAL  # bridges may join some pairs alone
            yield _finding(gpu, total, usual, len(matrix), severity)


def _joined_alike(matrix: Matrix) -> frozenset[int] | None:
    """The most GPUs each of which has as many links to each other one; None where most are not."""
    links = Counter(number for row in matrix.values() for number in row if number)
    number = links.most_common(1)[0][0]
    alike = {gpu: sum(1 for link in row if link == number) for gpu, row in matrix.items()}
    most = max(alike.values())
    group = frozenset(gpu for gpu, count in alike.items() if count == most)
    whole = most + 1 >= len(group) and 2 * len(group) > len(matrix)
    return group if whole else None


def _finding(gpu: int, total: int, usual: int, count: int, severity: Severity) -> Finding:
    summary = (
        f"has {total} NVLinks to the other GPUs, where most have {usual}"
        if total
        else f"has no NVLink to any other of the {count} GPUs, where most have {usual}"
    )
    evidence = {"nvlinks": total, "of_most": usual}
    return finding(
        "NVLINK_DOWN", f"GPU {gpu}", summary, evidence=evidence, fix=_FIX, commands=_COMMANDS, severity=severity
    )


def _links(cell: str) -> int:
    return int(cell[2:]) if re.fullmatch(r"NV\d{1,3}", cell) else 0


TOPOLOGY = FileFormat("nvidia-smi topo -m", recognise, judge, read_hardware)
