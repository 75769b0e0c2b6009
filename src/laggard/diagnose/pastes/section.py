"""A paste cut into sections, what one command printed on one host; and a file format made of a function that reads
one. A text without prompts is one section.

Prompts and what pdsh and `srun -l` put before each line are those of parts.py; hosts are also named by commands (`ssh
n1`, `srun -w n1`) and by headings (`# n1`, `=== n1 ===`, the three lines of `clush -b`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, without_colours
from laggard.diagnose.parts import bodies_of, prompt_of, split_lines
from laggard.diagnose.rules import patterns
from laggard.kit.words import ranks_text
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact
from laggard.probes.runner.report import joint, one_of_a_kind

_P: Final = patterns("paste_forms", "section_")

MAX_PASTE_CHARACTERS: Final = 4 << 20
"""The most characters of a paste that are read. Tools print thousands of lines, never millions."""
_MAX_SECTIONS: Final = 4096
_HEADING: Final = _P["heading"]
"""A host alone between marks; or before the command whose output follows, as loops over hosts print it."""


class Section(NamedTuple):
    host: str
    """The host's name; empty: nothing tells it."""
    command: str
    """The command line; empty: the text has no prompt."""
    text: str


@lru_cache(maxsize=2)
def sections_of(text: str) -> tuple[Section, ...]:
    plain = without_colours(text[:MAX_PASTE_CHARACTERS])
    by_host = split_lines(plain)
    return tuple(Section(part.host, "", part.text) for part in by_host) if by_host else _by_prompt(plain)


def only_host(text: str) -> str:
    """Returns the host that all of a text comes from; empty: none is named, or several are."""
    hosts = {section.host for section in sections_of(text) if section.host}
    return hosts.pop() if len(hosts) == 1 else ""


def parts_of(head: re.Pattern[str], text: str, most: int = 256) -> list[tuple[re.Match[str], str]]:
    """Returns each match of `head` with the text from it to the next one."""
    return [(match, match[0] + body) for match, body in bodies_of(head, text, most)]


def _by_prompt(text: str) -> tuple[Section, ...]:
    sections: list[Section] = []
    host = command = ""
    begin = 0  # of the text that belongs to the last prompt or heading
    for line in _lines(text):
        prompt = prompt_of(line.text)
        heading = "" if prompt else _heading(line)
        if (not prompt and not heading) or len(sections) >= _MAX_SECTIONS:
            continue
        sections.append(Section(host, command, text[begin : max(begin, line.begin - 1)]))
        begin = min(line.begin + len(line.text) + 1, len(text))
        if prompt:
            command = prompt.command
            host = _host_of(command) or prompt.host or ("" if _host_of(sections[-1].command) else host)
        else:
            host, command = heading, ""
    sections.append(Section(host, command, text[begin:]))
    return tuple(section for section in sections if section.text.strip() or section.command)


class _Line(NamedTuple):
    begin: int
    before: str
    text: str
    after: str


def _lines(text: str) -> Iterator[_Line]:
    """Yields each line without its end, with the lines around it: a list of all would take more than the text."""
    begin, before, line = 0, "", None
    for after in io.StringIO(text, newline="\n"):
        after = after.removesuffix("\n")
        if line is not None:
            yield _Line(begin, before, line, after)
            begin += len(line) + 1
            before = line
        line = after
    if line is not None:
        yield _Line(begin, before, line, "")


def _heading(line: _Line) -> str:
    """Returns the host that a line names as a heading; empty: it is none."""
    name = line.text.strip()
    around = (line.before.strip(), line.after.strip())
    if all(map(_P["folded"].fullmatch, around)) and re.fullmatch(r"[A-Za-z][\w.-]{1,79}", name):
        return name
    match = _HEADING.fullmatch(name)
    return match[1] if match else ""


def _host_of(command: str) -> str:
    match = _P["command_host"].search(command)
    return (match[1] or match[2]) if match else ""


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
        return FileJudgement(one_of_many(findings), facts, "; ".join(list(lacks)[:4]))

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


MIN_ALIKE: Final = 3
"""The fewest that are told as one where they are critical: two are read faster as they stand."""


def one_of_many(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Joins warnings as the gate does, and what is critical from MIN_ALIKE on: `evidence.devices` has each."""
    kinds: dict[object, list[Finding]] = {}
    for place, found in enumerate(one_of_a_kind(findings)):
        is_critical = found.severity is Severity.CRITICAL
        said = (
            found.code,
            _P["figure"].sub("#", found.device),
            _P["figure"].sub("#", found.summary),
            found.evidence.get("host"),
        )
        kinds.setdefault(said if is_critical else place, []).append(found)
    return tuple(each for alike in kinds.values() for each in _joined(alike))


def _joined(alike: list[Finding]) -> Iterator[Finding]:
    found = alike if len(alike) < MIN_ALIKE else [joint(alike)]
    yield from (_said_once(each) if "devices" in each.evidence else each for each in found)


def _said_once(found: Finding) -> Finding:
    """The joint finding with the numbers of its devices as a range; what is said alike of each stands once."""
    devices: dict[str, str] = found.evidence["devices"]
    numbered = [match for device in devices if (match := _P["numbered"].fullmatch(device))]
    told = {said.replace(f"{device} ", "") for device, said in devices.items()}
    if len(told) == 1:
        evidence = {name: value for name, value in found.evidence.items() if name not in ("devices", "entity")}
        found = msgspec.structs.replace(found, summary=told.pop(), evidence=evidence)
    if len(numbered) < len(devices) or len({match[1] for match in numbered}) > 1:
        return found
    numbers = ranks_text(int(match[2]) for match in numbered).removeprefix("ranks ")
    return msgspec.structs.replace(found, device=f"{numbered[0][1]}s {numbers}")
