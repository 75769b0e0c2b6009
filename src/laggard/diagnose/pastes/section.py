"""A paste cut into sections: what one command printed on one host. Pure; a text without prompts is one section.

Hosts are named by prompts (`ada@n1:~$ `, `[root@n1 ~]# `), by commands (`ssh n1`, `srun -w n1`, `kubectl exec n1`), by
headings (`# n1`, `=== n1 ===`, the three lines of `clush -b`) and by what pdsh and `srun -l` put before each line.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Final, NamedTuple

MAX_PASTE_CHARACTERS: Final = 4 << 20
"""The most characters of a paste that are read. Tools print thousands of lines, never millions."""
_MAX_SECTIONS: Final = 4096
_MIN_LINES_EACH: Final = 3
"""The least lines that follow a name at the start of lines, for the name to be a host's: keys of a table come once."""

_PROMPT: Final = re.compile(
    r"(?:\([\w.-]{1,40}\) ?)?(?:\[?(?:[\w.-]{1,64})@([\w.-]{1,80})(?:[: ][^$#%>\n]{0,200})?\]?[$#%>] ?|[$%] )"
    r"(\S.{0,2000})"
)
_HEADING: Final = re.compile(r"(?:#|=+|-{2,}|\*+)[ >]*([A-Za-z][\w.-]{1,79})[ :<]*(?:=+|-{2,}|\*+)?:?")
_TOOLS: Final = frozenset(
    ("df", "free", "env", "ibstat", "ibstatus", "ibv_devinfo", "lscpu", "lspci", "perfquery", "sinfo", "dmesg", "mount")
)
"""Commands that people write without an option, and so as `# ibstat` after root's prompt."""
_COLOUR: Final = re.compile(r"\x1b\[[\d;]{0,16}[mK]")
_FOLDED: Final = re.compile(r"-{8,}")
_COMMAND_HOST: Final = re.compile(
    r"\bssh (?:-\S+ )*(?:[\w.-]+@)?([\w.-]+) |\b(?:srun|pdsh|clush)\b.*? (?:-w|--nodelist=?) ?([\w.-]+)(?= )"
)
_LINE_HOST: Final = re.compile(r"([A-Za-z][\w.-]{1,79}): ?(.*)")


class Section(NamedTuple):
    host: str
    """The host's name; empty: nothing tells it."""
    command: str
    """The command line; empty: the text has no prompt."""
    text: str


@lru_cache(maxsize=2)
def sections_of(text: str) -> tuple[Section, ...]:
    plain = _COLOUR.sub("", text[:MAX_PASTE_CHARACTERS])
    lines = [line.rstrip("\r") for line in plain.split("\n")]
    by_host = _by_host(lines)
    return tuple(Section(host, "", "\n".join(rest)) for host, rest in by_host) if by_host else _by_prompt(lines)


def only_host(text: str) -> str:
    """Returns the host that all of a text comes from; empty: none is named, or several are."""
    hosts = {section.host for section in sections_of(text) if section.host}
    return hosts.pop() if len(hosts) == 1 else ""


def parts_of(head: re.Pattern[str], text: str, most: int = 256) -> list[tuple[re.Match[str], str]]:
    """Returns each match of `head` with the text from it to the next one."""
    heads = [match for _, match in zip(range(most), head.finditer(text), strict=False)]
    ends = [match.start() for match in heads[1:]] + [len(text)]
    return [(match, text[match.start() : end]) for match, end in zip(heads, ends, strict=False)]


def _by_host(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Returns the lines of each host where each line begins with its host; nothing where they do not."""
    matches = [_LINE_HOST.fullmatch(line) for line in lines if line.strip()]
    counts = Counter(match[1] for match in matches if match)
    if not matches or None in matches or min(counts.values()) < _MIN_LINES_EACH:
        return []
    return [(host, [match[2] for match in matches if match and match[1] == host]) for host in list(counts)[:256]]


def _by_prompt(lines: list[str]) -> tuple[Section, ...]:
    sections: list[Section] = []
    host = command = ""
    rest: list[str] = []
    for number, line in enumerate(lines):
        prompt = _PROMPT.fullmatch(line)
        heading = None if prompt else _heading(lines, number)
        if (not prompt and not heading) or len(sections) >= _MAX_SECTIONS:
            rest.append(line)
            continue
        sections.append(Section(host, command, "\n".join(rest)))
        rest = []
        if prompt:
            command = prompt[2]
            host = _host_of(command) or prompt[1] or ("" if _host_of(sections[-1].command) else host)
        else:
            host, command = heading or "", ""
    sections.append(Section(host, command, "\n".join(rest)))
    return tuple(section for section in sections if section.text.strip() or section.command)


def _heading(lines: list[str], number: int) -> str:
    """Returns the host that a line names as a heading; empty: it is none."""
    line = lines[number].strip()
    around = [lines[other].strip() if 0 <= other < len(lines) else "" for other in (number - 1, number + 1)]
    if all(map(_FOLDED.fullmatch, around)) and re.fullmatch(r"[A-Za-z][\w.-]{1,79}", line):
        return line
    match = _HEADING.fullmatch(line)
    return match[1] if match and match[1] not in _TOOLS else ""


def _host_of(command: str) -> str:
    match = _COMMAND_HOST.search(command)
    return (match[1] or match[2]) if match else ""
