"""Reads NCCL's logs (NCCL_DEBUG=INFO), one process's or a whole job's in one file. Standard library only.

    reader = NcclLogReader()
    for piece in pieces:        # text, cut anywhere
        reader.feed(piece)
    log = reader.log()          # at any time; more may be fed after it

The reader knows every form of NCCL 2.7 to 2.30 and what 2.32.3 adds, behind the prefixes of any launcher (see
lines.py), with the lines of many processes in any order and torn by one another. Nothing in a log is an error: the
reader drops lines of a form it does not know. The number of processes bounds the memory; the reader keeps
MAX_PROCESSES of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from laggard.nccl.log.builder import ProcessBuilder
from laggard.nccl.log.channels import parse_channel
from laggard.nccl.log.lines import LogLine, PrefixCache, Writer, lines_in, version_in
from laggard.nccl.log.messages import parse_message
from laggard.nccl.log.model import NcclLog

MAX_PROCESSES: Final = 16384
_MAX_LINE_CHARACTERS = 1 << 16
_PIECE = 1 << 20
_NCCL: Final = " NCCL "
_PLAIN: Final = {"INFO ": "INFO", "WARN ": "WARN"}


class NcclLogReader:
    """Takes the text in pieces. A last line without its line feed waits for its rest, and is not used without it."""

    def __init__(self) -> None:
        self._prefixes = PrefixCache()
        self._builders: dict[Writer, ProcessBuilder] = {}
        self._dropped: set[Writer] = set()
        self._versions: dict[str, None] = {}
        self._rest = ""
        self._lines = 0
        self._torn = 0

    def feed(self, text: str) -> None:
        """Reads the next piece."""
        for start in range(0, len(text), _PIECE):
            *whole, self._rest = (self._rest + text[start : start + _PIECE]).split("\n")
            self._rest = self._rest[-_MAX_LINE_CHARACTERS:]
            for line in whole:
                if "CCL" in line:  # NCCL's, or the version of RCCL
                    self._read(line)

    def end(self) -> None:
        """Ends a file: its last line gets no more text. Another file may follow."""
        if "NCCL" in self._rest:
            self._lines += 1
            self._torn += 1
        self._rest = ""

    def log(self) -> NcclLog:
        """The log that the pieces fed so far show. A last line without its line feed counts as torn."""
        processes = [builder.build() for builder in _without_shadows(self._builders.values())]
        unfinished = "NCCL" in self._rest
        return NcclLog(
            tuple(sorted(processes, key=lambda process: (process.host, process.pid))),
            tuple(self._versions),
            self._lines + unfinished,
            self._torn + unfinished,
            len(self._dropped),
        )

    def _read(self, text: str) -> None:
        found = False
        for line in self._split(text[:_MAX_LINE_CHARACTERS].rstrip("\r")):
            found = True
            self._lines += 1
            builder = self._builder(line.writer)
            if line.torn:
                self._torn += 1
            elif builder is not None:
                self._add(builder, line)
        if not found and (version := version_in(text)):
            self._lines += 1
            self._versions[version] = None

    def _split(self, text: str) -> Iterator[LogLine]:
        """NCCL's lines in one line of the file. Most are a plain line of NCCL, and a log has millions of them: those
        take the short way."""
        at = text.find(_NCCL)
        end = at + len(_NCCL) + len("INFO ")
        level = _PLAIN.get(text[end - len("INFO ") : end])
        plain = at > 0 and level and "\x1b" not in text and text[0] != "{" and text[-1] != "]"
        if plain and level and text.find("NCCL ", end) < 0:
            writer = self._prefixes.writer(text[: at + 1])
            return iter(() if writer is None else (LogLine(writer, level, text[end:].rstrip(), False),))
        return lines_in(text, self._prefixes)

    def _builder(self, writer: Writer) -> ProcessBuilder | None:
        """The writer's builder; None for a process beyond the first MAX_PROCESSES."""
        builder = self._builders.get(writer)
        if builder is None:
            if len(self._builders) >= MAX_PROCESSES:
                if len(self._dropped) < MAX_PROCESSES:
                    self._dropped.add(writer)
                return None
            builder = self._builders[writer] = ProcessBuilder(*writer)
        return builder

    def _add(self, builder: ProcessBuilder, line: LogLine) -> None:
        builder.lines += 1
        text = line.text
        if not text.startswith(("Channel ", "Coll")):
            if line.level == "DIAG":
                builder.add_diagnostic(text)
            else:
                parse_message(builder, text, line.level in ("WARN", "ATTN"))
            return
        _, _, channel = text.partition(" : ")
        if channel in builder.channel_lines:
            builder.channel_lines[channel] += 1
        elif connection := parse_channel(channel):
            builder.add_channel(channel, connection)


def parse_nccl_log(text: str) -> NcclLog:
    """The log in one text. A last line without its line feed may be cut off: it counts as torn."""
    reader = NcclLogReader()
    reader.feed(text)
    return reader.log()


def _without_shadows(builders: Iterable[ProcessBuilder]) -> Iterator[ProcessBuilder]:
    """Drops the processes that exist only because a host's name was torn: it lost its beginning, or got the end of
    another line in front. Such a process has the same pid as one on another host, one host's name is the end of the
    other's, and the other process wrote more lines."""
    by_pid: dict[int, list[ProcessBuilder]] = {}
    for builder in builders:
        by_pid.setdefault(builder.pid, []).append(builder)
    for same_pid in by_pid.values():
        yield from (one for one in same_pid if not any(_is_shadow(one, other) for other in same_pid))


def _is_shadow(builder: ProcessBuilder, other: ProcessBuilder) -> bool:
    similar = builder.host.endswith(other.host) or other.host.endswith(builder.host)
    return builder is not other and bool(builder.host and other.host) and similar and other.lines > builder.lines
