"""Lines of NCCL's log in whatever a launcher made of them: who wrote them, how grave, and what they say.

The forms are those of src/debug.cc, NCCL 2.7 to 2.30: `host:pid:tid [device] NCCL INFO text`, with `file:line` before
NCCL WARN (and `(function)` since 2.30), a date in front of warnings since 2.26. Launchers, pods, terminals and log
shippers add words before it; they end where the host's name begins. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_LEVEL = re.compile(r"(?:^|(?<=[\s\])}>|:\"]))NCCL (INFO|WARN|TRACE|CALL|ABORT) ")
_HEAD: Final = r"([\w.-]+):(\d{1,10}):(\d{1,10})"
_REST: Final = r"(?: \[(-?\d{1,4})\])?(?: \d+\.\d+)?(?: \S{1,200}:\w+)?(?: \([^()]{1,120}\))? ?$"
_WRITER = re.compile(_HEAD + _REST)
_TORN_HEAD = re.compile(r"\d:\d+(?: \[-?\d+\])? ?$")
_VERSION = re.compile(r"(?:^|[\s\])}>|:\"])NCCL version (\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)[\w.]{0,40}\+\w")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_MOST_HEADS = 1 << 16
_MOST_HEAD = 512

Writer = tuple[str, int]
"""Host and pid; ("", 0): the line names neither."""
NOBODY: Final[Writer] = ("", 0)


class Line(NamedTuple):
    writer: Writer
    level: str
    text: str
    torn: bool
    """Another line begins within it: its end is not to be relied on."""


class Heads:
    """Knows who wrote a line from the words before `NCCL INFO`; remembers them, since they repeat a million times."""

    def __init__(self) -> None:
        self._known: dict[str, Writer | None] = {}

    def writer(self, head: str) -> Writer | None:
        """None: a host, pid or thread that is cut off, so that nobody can be named."""
        known = self._known
        if head in known:
            return known[head]
        if len(known) >= _MOST_HEADS:  # dates in front: each is seen once
            known.clear()
        known[head] = found = _writer(head)
        return found


def _writer(head: str) -> Writer | None:
    end = head[-_MOST_HEAD:]  # a search is quadratic in the longest word
    match = _WRITER.search(end)
    if match:
        return match[1], int(match[2])
    return None if _TORN_HEAD.search(end) else NOBODY


def lines_in(line: str, heads: Heads) -> Iterator[Line]:
    """The lines of NCCL in one line of a file: none, one, or more where processes wrote at the same time."""
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    if line.startswith("{"):
        line = _unwrapped(line)
    if "x across cluster]" in line:
        line = _REPEATED.sub("", line)
    starts = list(_LEVEL.finditer(line))
    begin = 0
    for number, start in enumerate(starts):
        last = number + 1 == len(starts)
        end = len(line) if last else _head_start(line, start.end(), starts[number + 1].start())
        writer = heads.writer(line[begin : start.start()])
        if writer is not None:
            yield Line(writer, start[1], line[start.end() : end].rstrip(), torn=not last)
        begin = end


def version_in(line: str) -> str:
    """The version in a line that names no process, as NCCL_DEBUG=VERSION and rank 0 of older NCCLs print it."""
    match = _VERSION.search(line)
    return match[1] if match else ""


def _head_start(line: str, low: int, high: int) -> int:
    match = _WRITER.search(line[:high], max(low, high - _MOST_HEAD))
    return match.start() if match else high


def _unwrapped(line: str) -> str:
    """What container runtimes and log shippers wrap in JSON: `{"log":"...\\n","stream":"stdout"}`."""
    text, sign, _ = line.partition('\\n"')
    return text if sign else line
