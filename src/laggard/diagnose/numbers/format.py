"""The format `numbers`: any text in which times, rates or counts of devices can be compared. Nothing that is compared
here says that something failed, so that what stands out is a warning, and a text is never called healthy by it alone.
"""

from __future__ import annotations

from typing import Final

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.diagnose.numbers.counts import missing_devices
from laggard.diagnose.numbers.course import courses
from laggard.diagnose.numbers.link import slow_for_its_link, slower_when_enabled, tested_link
from laggard.diagnose.numbers.parts import lost_parts
from laggard.diagnose.numbers.peers import odd_in_matrices, odd_peers
from laggard.diagnose.numbers.rows import Text, read
from laggard.model import Finding

_MAX_BYTES: Final = 1 << 18
_MAX_FINDINGS: Final = 8
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
    return FileJudgement(tuple(_found(text, found, content.host)), facts)


def _text_of(content: FileContent) -> str:
    """The beginning of the text; nothing of a document, whose numbers belong to one another by its structure."""
    text = without_colours(FileContent(content.raw_beginning[:_MAX_BYTES]).text)
    first = text.lstrip()[:4096].partition("\n")[0].rstrip()
    return "" if first in ("{", "[", "[{") else text


def _found(text: str, read_text: Text, host: str) -> list[Finding]:
    rows, lines = read_text.rows, text.splitlines()
    parts = lost_parts(rows)
    found = [
        *parts,
        *odd_peers(rows),
        *odd_in_matrices(read_text.matrices),
        *(courses(rows) if not parts else ()),
        *missing_devices(text, host),
        *slow_for_its_link(lines),
        *slower_when_enabled(read_text.matrices),
    ]
    return found[:_MAX_FINDINGS]


NUMBERS: Final = FileFormat("numbers", recognise, judge, shares=True, holds_others=True, takes=lambda line: False)
ALIKE: Final = NUMBERS._replace(name="numbers that are alike", recognise=recognise_alike, shares=False, fallback=True)
