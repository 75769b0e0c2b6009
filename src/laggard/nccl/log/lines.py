"""Finds NCCL's lines in whatever a launcher made of them: which process wrote a line, its level and its text.

The forms are those of src/debug.cc, NCCL 2.7 to 2.30: `host:pid:tid [device] NCCL INFO text`, with `file:line` before
NCCL WARN (and `(function)` since 2.30), and a date in front of warnings since 2.26. Launchers, pods, terminals and log
shippers add words in front; these end where the host's name begins. The level ATTN is of 2.32. Lines of NCCL's own
diagnostics are of 2.31 and newer (src/ras/diagnostics.cc) and have no thread: `host:pid NCCL DIAG [OK]   text`. RCCL,
AMD's, writes the same, with its own name in the version alone (ROCm/rccl 0cbce2a, src/debug.cc, src/init.cc).
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from laggard.nccl.log.model import Communicator, Connection, Hint, NcclProcess, SlowTransfers, merge

_LEVEL = re.compile(r"(?:^|(?<=[\s\])}>|:\"]))NCCL (INFO|WARN|ATTN|DIAG|TRACE|CALL|ABORT) ")
_WRITER_FIELDS: Final = r"([\w.-]+):(\d{1,10}):(\d{1,10})"
_OTHER_FIELDS: Final = r"(?: \[(-?\d{1,4})\])?(?: \d+\.\d+)?(?: \S{1,200}:\w+)?(?: \([^()]{1,120}\))? ?$"
_WRITER = re.compile(_WRITER_FIELDS + _OTHER_FIELDS)
_DIAG_WRITER = re.compile(r"([\w.-]+):(\d{1,10}) ?$")
_TORN_PREFIX = re.compile(r"\d:\d+(?: \[-?\d+\])? ?$")
VERSION: Final = (
    r"(?:NCCL version (?=\S{1,50}\+\w)|RCCL version (?:: )?(?=\S{1,60}(?:\+\w|-[\w/.]{1,40}:)))(\d\.\d{1,3}\.\d{1,3})"
)
"""The form of the version, which is group 1: `NCCL version 2.27.5+cuda12.9`, and of AMD's RCCL, which counts as NCCL
does, `RCCL version : 2.22.3-HEAD:7d8d67c` or, of ROCm 6.0 and older, `RCCL version 2.18.3+hip6.0`."""
_VERSION = re.compile(rf"(?:^|[\s\])}}>|:\"]){VERSION}")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_MAX_PREFIXES = 1 << 16
_MAX_PREFIX_CHARACTERS = 512

Writer = tuple[str, int]
"""Host and pid of the process that wrote a line; ("", 0): the line names neither."""
NO_WRITER: Final[Writer] = ("", 0)


class LogLine(NamedTuple):
    """One line of NCCL."""

    writer: Writer
    level: str
    text: str
    torn: bool
    """Another line begins within this one, so its end is not to be relied on."""


class PrefixCache:
    """Finds the writer of a line from its prefix, the words before `NCCL INFO`. Remembers the answers, because the same
    prefixes come a million times."""

    def __init__(self) -> None:
        self._writers: dict[str, Writer | None] = {}

    def writer(self, prefix: str) -> Writer | None:
        """The writer; NO_WRITER where the prefix names none; None where its host, pid or thread is cut off, so that
        the writer cannot be known."""
        writers = self._writers
        if prefix in writers:
            return writers[prefix]
        if len(writers) >= _MAX_PREFIXES:  # lines with dates in front: no prefix comes twice
            writers.clear()
        writers[prefix] = found = _writer(prefix)
        return found


def _writer(prefix: str) -> Writer | None:
    end = prefix[-_MAX_PREFIX_CHARACTERS:]  # a search is quadratic in the longest word
    match = _WRITER.search(end)
    if match:
        return match[1], int(match[2])
    return None if _TORN_PREFIX.search(end) else NO_WRITER


def _diag_writer(prefix: str) -> Writer:
    match = _DIAG_WRITER.search(prefix[-_MAX_PREFIX_CHARACTERS:])
    return (match[1], int(match[2])) if match else NO_WRITER


def lines_in(line: str, prefixes: PrefixCache) -> Iterator[LogLine]:
    """NCCL's lines in one line of a file: none, one, or more where processes wrote at the same time."""
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    if line.startswith("{"):
        line = _unwrap_json(line)
    if "x across cluster]" in line:
        line = _REPEATED.sub("", line)
    levels = list(_LEVEL.finditer(line))
    begin = 0
    for number, level in enumerate(levels):
        last = number + 1 == len(levels)
        end = len(line) if last else _prefix_start(line, level.end(), levels[number + 1].start())
        prefix = line[begin : level.start()]
        writer = _diag_writer(prefix) if level[1] == "DIAG" else prefixes.writer(prefix)
        if writer is not None:
            yield LogLine(writer, level[1], line[level.end() : end].rstrip(), torn=not last)
        begin = end


def version_in(line: str) -> str:
    """The version in a line without a process, as NCCL_DEBUG=VERSION and rank 0 of older NCCLs print it; empty where
    the line has none."""
    match = _VERSION.search(line)
    return match[1] if match else ""


def _prefix_start(line: str, low: int, high: int) -> int:
    """The place between `low` and `high` where the prefix of the next line begins; `high` where it names no process."""
    match = _WRITER.search(line[:high], max(low, high - _MAX_PREFIX_CHARACTERS))
    return match.start() if match else high


def _unwrap_json(line: str) -> str:
    """The text that container runtimes and log shippers wrap in JSON: `{"log":"...\\n","stream":"stdout"}`."""
    text, sign, _ = line.partition('\\n"')
    return text if sign else line


# Collects what the lines of one process show. Bounded: a process that logs forever takes no more memory.

_MAX_CHANNEL_LINES: Final = 2048
"""Different channel lines of one process. Further ones are counted without their pair of ranks."""
_MAX_COMMUNICATORS = 64
_MAX_VARIABLES = 128
_MAX_LINKS = 1024
_MAX_DEVICES = 64
_MAX_TEXT_CHARACTERS = 300
_FIXED_FIELDS = ("rank", "ranks", "identity")
"""Fields of a communicator that do not change while it exists."""


class Texts(dict[str, None]):
    """The first different texts, each cut to its length."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, text: str) -> None:
        if len(self) < self._most:
            self[text[:_MAX_TEXT_CHARACTERS]] = None


class ProcessBuilder:
    """One process while its lines come in. The parsers of reader.py call its methods; build() returns the value."""

    def __init__(self, host: str, pid: int) -> None:
        self.process = NcclProcess(host, pid)
        """What single lines show; build() adds what is collected of many."""
        self.hint_lines = 0
        self.lines = 0
        self.variables: dict[str, str] = {}
        self.links: dict[tuple[str, str], str] = {}
        self.networks_tried = Texts(16)
        self.warnings = Texts(16)
        self.diagnostics = Texts(256)
        self.channel_lines: dict[str, int] = {}
        """The number of times that each channel line came, by its text without the channel's number."""
        self._connections: dict[str, Connection] = {}
        self._without_pairs: dict[Connection, int] = {}
        self._communicators: dict[str, Communicator] = {}
        self._hints: dict[str, tuple[str, int]] = {}
        self._slow: dict[tuple[str, bool], SlowTransfers] = {}
        self._replaced = 0

    def show(self, **fields: Any) -> None:
        """Sets fields of NcclProcess."""
        self.process = self.process._replace(**fields)

    def add_channel(self, text: str, connection: Connection) -> None:
        """Adds a channel line whose text is not in `channel_lines`."""
        if len(self.channel_lines) < _MAX_CHANNEL_LINES:
            self.channel_lines[text] = 1
            self._connections[text] = connection
        else:
            without_pair = connection._replace(pairs=())
            self._without_pairs[without_pair] = self._without_pairs.get(without_pair, 0) + 1

    def set_variable(self, name: str, value: str) -> None:
        if len(self.variables) < _MAX_VARIABLES:
            self.variables[name] = value[:_MAX_TEXT_CHARACTERS]

    def set_link(self, one: str, other: str, distance: str) -> None:
        if len(self.links) < _MAX_LINKS:
            self.links[one, other] = distance

    def add_hint(self, kind: str, text: str) -> None:
        self.hint_lines += 1
        first, count = self._hints.get(kind, (text[:_MAX_TEXT_CHARACTERS], 0))
        self._hints[kind] = first, count + 1

    def add_slow_transfer(self, device: str, stalled: bool, nanoseconds: int, text: str) -> None:
        before = self._slow.get((device, stalled)) or SlowTransfers(device, stalled, 0, 0, text[:_MAX_TEXT_CHARACTERS])
        if before.lines or len(self._slow) < _MAX_DEVICES:
            longest = max(before.longest_ns, nanoseconds)
            self._slow[device, stalled] = before._replace(lines=before.lines + 1, longest_ns=longest)

    def update_communicator(self, pointer: str, fields: Mapping[str, Any]) -> None:
        """Adds what one line shows of a communicator, as fields of Communicator. NCCL may use a pointer again for
        another communicator."""
        before = self._communicators.get(pointer)
        if before is not None and any(_differs(getattr(before, name), fields.get(name)) for name in _FIXED_FIELDS):
            self._replaced += 1
            self._communicators[f"{pointer}#{self._replaced}"] = before
            before = None
        self._communicators[pointer] = (before or Communicator("", 0, 0))._replace(**fields)
        if len(self._communicators) > _MAX_COMMUNICATORS:  # the smallest tells least about the job
            del self._communicators[min(self._communicators, key=lambda one: self._communicators[one].ranks)]

    def build(self) -> NcclProcess:
        """The process as far as its lines have come in."""
        counted = [(connection, self.channel_lines[text]) for text, connection in self._connections.items()]
        return self.process._replace(
            networks_tried=tuple(self.networks_tried),
            variables=tuple(sorted(self.variables.items())),
            communicators=tuple(self._communicators.values()),
            connections=merge([*counted, *self._without_pairs.items()]),
            links=tuple((one, other, distance) for (one, other), distance in self.links.items()),
            hints=tuple(Hint(kind, *first_and_count) for kind, first_and_count in self._hints.items()),
            warnings=tuple(self.warnings),
            slow_transfers=tuple(self._slow.values()),
            diagnostics=tuple(self.diagnostics),
        )


def _differs(before: object, now: object) -> bool:
    """Whether both values are known and they are not the same."""
    return before not in ("", None) and now is not None and now != before
