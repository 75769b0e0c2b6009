"""The format `numbers`: any text in which times, rates or counts of devices can be compared. Nothing that is compared
here says that something failed. What stands out little is a warning, and neither healthy nor a fault is said of it.
"""

from __future__ import annotations

from typing import Final

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.diagnose.numbers.counts import missing_devices
from laggard.diagnose.numbers.course import courses
from laggard.diagnose.numbers.link import slow_for_its_link, slower_when_enabled, tested_link
from laggard.diagnose.numbers.listings import fewer_than_peers, listings
from laggard.diagnose.numbers.parts import lost_parts
from laggard.diagnose.numbers.peers import odd_in_matrices, odd_peers
from laggard.diagnose.numbers.rows import Text, read
from laggard.model import Finding, Severity

_MAX_BYTES: Final = 1 << 18
_MAX_FINDINGS: Final = 8
_OF_A_RUN: Final = ("RANK_LATE", "STEP_TIME_LOST")
"""What a warning of is an answer: it says that a job does not run as it should."""
_MIN_SHARE: Final = 0.6


def recognise(content: FileContent) -> bool:
    """Whether something stands out, or a link was tested."""
    judged = judge(content, KnownHardware())
    return bool(judged.findings or "link_line" in judged.facts)


def recognise_alike(content: FileContent) -> bool:
    """Whether the text is matrices for the most part, that were compared. Of a training's lines this says too little:
    that they go on is not known."""
    text = _text_of(content)
    lines = sum(bool(line.strip()) for line in text.splitlines())
    found = read(text, content.host)
    told = sum(1 + len(it.rows) for it in found.matrices)
    return told > 0 and told >= _MIN_SHARE * lines


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = _text_of(content)
    found = read(text, content.host)
    facts = {"rows": len(found.rows), "matrices": len(found.matrices), **tested_link(text.splitlines())}
    findings = _found(text, found, content.host)
    only_warns = not any(it.severity is Severity.CRITICAL or it.code in _OF_A_RUN for it in findings)
    return FileJudgement(tuple(findings), facts, _stands_out(findings[0]) if findings and only_warns else "")


def _stands_out(found: Finding) -> str:
    """What keeps a text from being called healthy, though it may be by design."""
    return f"{found.device} {found.summary}"


def _text_of(content: FileContent) -> str:
    """The beginning of the text; nothing of a document, whose numbers belong to one another by its structure."""
    text = without_colours(FileContent(content.raw_beginning[:_MAX_BYTES]).text)
    first = text.lstrip()[:4096].partition("\n")[0].rstrip()
    return "" if first in ("{", "[", "[{") else text


def _found(text: str, read_text: Text, host: str) -> list[Finding]:
    rows, lines = read_text.rows, text.splitlines()
    parts = lost_parts(rows)
    told = {row.number for row in rows if row.who.kind in ("rank", "GPU")}
    listed = [it for it in listings(lines, host) if it.place not in told]
    places = {it.place for it in listed}
    beside = [*(row for row in rows if row.number not in places), *(it.row for it in listed)]
    found = [
        *parts,
        *odd_peers(beside),
        *fewer_than_peers(listed),
        *odd_in_matrices(read_text.matrices),
        *(courses(rows) if not parts else ()),
        *missing_devices(text, host),
        *slow_for_its_link(lines),
        *slower_when_enabled(read_text.matrices),
    ]
    return found[:_MAX_FINDINGS]


NUMBERS: Final = FileFormat("numbers", recognise, judge, shares=True, holds_others=True, takes=lambda line: False)
ALIKE: Final = NUMBERS._replace(name="numbers that are alike", recognise=recognise_alike, shares=False, fallback=True)
