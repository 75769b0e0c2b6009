"""Makes a file format of a reader: a function from a section of a paste to findings, facts and what it lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.pastes.section import MAX_PASTE_CHARACTERS, Section, sections_of
from laggard.model import Finding
from laggard.probes.probe import Fact

_MAX_FINDINGS: Final = 64
_RECOGNISED_CHARACTERS: Final = 1 << 18


NOTHING_READ: Final = "no whole line of its output is there: paste all of it"


class Lack(NamedTuple):
    """The reason why something could not be judged, with the command that would show it."""

    reason: str


Items = Iterator[Finding | Fact | Lack]
Reader = Callable[[Section], Items]


def no_comparison(sections: Sequence[Section]) -> Items:
    """Yields nothing: the sections of most tools are not compared with each other."""
    yield from ()


def paste_format(
    name: str, head: re.Pattern[str], read: Reader, compare: Callable[[Sequence[Section]], Items] = no_comparison
) -> FileFormat:
    """Returns the format of a tool. `head` is found in each text that the tool prints, and in no other. `compare`
    judges all sections together: the output of one tool on several hosts."""

    def recognise(content: FileContent) -> bool:
        beginning = content.text[:_RECOGNISED_CHARACTERS]
        return any(head.search(section.text) for section in sections_of(beginning))

    def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
        findings: list[Finding] = []
        facts: dict[str, Any] = {}
        lacks: dict[str, None] = {}
        sections = [each for each in sections_of(content.text[:MAX_PASTE_CHARACTERS]) if head.search(each.text)]
        for host, item in _items(sections, read, compare):
            if isinstance(item, Lack):
                lacks[item.reason] = None
            elif isinstance(item, Fact):
                facts[f"{host}: {item.name}" if host else item.name] = item.value
            elif len(findings) < _MAX_FINDINGS:
                findings.append(on_host(item, host))
        if not (findings or lacks or any(facts.values())):
            lacks[NOTHING_READ] = None
        return FileJudgement(tuple(findings), facts, "; ".join(list(lacks)[:4]))

    return FileFormat(name, recognise, judge, shares=True)


def _items(
    sections: Sequence[Section], read: Reader, compare: Callable[[Sequence[Section]], Items]
) -> Iterator[tuple[str, Finding | Fact | Lack]]:
    """Yields the host and what was read on it."""
    for section in sections:
        for item in read(section):
            yield section.host, item
    for item in compare(sections):
        yield "", item


def on_host(found: Finding, host: str) -> Finding:
    """Returns the finding with its host in the evidence; unchanged where no host is known."""
    return msgspec.structs.replace(found, evidence={"host": host, **found.evidence}) if host else found
