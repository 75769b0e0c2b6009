"""Reads NCCL's logs (NCCL_DEBUG=INFO), one process's or a whole job's in one file. Standard library only.

    reader = NcclLogReader()
    for piece in pieces:        # text, cut anywhere
        reader.feed(piece)
    log = reader.log()          # at any time; more may be fed after it

Every form of NCCL 2.7 to 2.30 is read, in any launcher's clothes (see nccl_log_lines), with lines of many processes in
any order and torn by one another. Nothing in a log is an error: what no form knows is passed over. Memory is bounded
by the number of processes, of which MOST_PROCESSES are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from laggard.nccl.log.builder import Draft
from laggard.nccl.log.channels import read_way
from laggard.nccl.log.lines import Heads, Line, Writer, lines_in, version_in
from laggard.nccl.log.messages import read_text
from laggard.nccl.log.model import NcclLog

MOST_PROCESSES: Final = 16384
_MOST_LINE = 1 << 16
_PIECE = 1 << 20
_INFO: Final = " NCCL INFO "


class NcclLogReader:
    """Takes the text as it comes; a last line without its end waits for the rest and is not relied on without it."""

    def __init__(self) -> None:
        self._heads = Heads()
        self._drafts: dict[Writer, Draft] = {}
        self._dropped: set[Writer] = set()
        self._versions: dict[str, None] = {}
        self._rest = ""
        self._lines = 0
        self._torn = 0

    def feed(self, text: str) -> None:
        for start in range(0, len(text), _PIECE):
            *whole, self._rest = (self._rest + text[start : start + _PIECE]).split("\n")
            self._rest = self._rest[-_MOST_LINE:]
            for line in whole:
                if "NCCL" in line:
                    self._read(line)

    def end(self) -> None:
        """What was fed is one whole file; another may follow."""
        if "NCCL" in self._rest:
            self._lines += 1
            self._torn += 1
        self._rest = ""

    def log(self) -> NcclLog:
        """Of all that was fed so far. A last line that has not ended is not relied on."""
        processes = [draft.process() for draft in _without_shadows(self._drafts.values())]
        unfinished = "NCCL" in self._rest
        return NcclLog(
            tuple(sorted(processes, key=lambda process: (process.host, process.pid))),
            tuple(self._versions),
            self._lines + unfinished,
            self._torn + unfinished,
            len(self._dropped),
        )

    def _read(self, line: str) -> None:
        found = False
        for said in self._split(line[:_MOST_LINE].rstrip("\r")):
            found = True
            self._lines += 1
            draft = self._draft(said.writer)
            if said.torn:
                self._torn += 1
            elif draft is not None:
                self._take(draft, said)
        if not found and (version := version_in(line)):
            self._lines += 1
            self._versions[version] = None

    def _split(self, line: str) -> Iterator[Line]:
        """Most lines are one plain line of NCCL, and a log has millions of them."""
        at = line.find(_INFO)
        if at > 0 and "\x1b" not in line and line[0] != "{" and line[-1] != "]":
            end = at + len(_INFO)
            if line.find("NCCL ", end) < 0:
                writer = self._heads.writer(line[: at + 1])
                return iter(() if writer is None else (Line(writer, "INFO", line[end:].rstrip(), False),))
        return lines_in(line, self._heads)

    def _draft(self, writer: Writer) -> Draft | None:
        draft = self._drafts.get(writer)
        if draft is None:
            if len(self._drafts) >= MOST_PROCESSES:
                if len(self._dropped) < MOST_PROCESSES:
                    self._dropped.add(writer)
                return None
            draft = self._drafts[writer] = Draft(*writer)
        return draft

    def _take(self, draft: Draft, line: Line) -> None:
        draft.lines += 1
        text = line.text
        if not text.startswith(("Channel ", "Coll")):
            read_text(draft, text, line.level == "WARN")
            return
        _, _, channel = text.partition(" : ")
        if channel in draft.channel_lines:
            draft.channel_lines[channel] += 1
        elif way := read_way(channel):
            draft.channel(channel, way)


def parse_nccl_log(text: str) -> NcclLog:
    """The log in one text. A last line without its line feed may be cut off, and is not relied on."""
    reader = NcclLogReader()
    reader.feed(text)
    return reader.log()


def _without_shadows(drafts: Iterable[Draft]) -> Iterator[Draft]:
    """Without lines whose host lost its beginning, or got the end of another line in front: there is another host with
    the same pid, one name is the end of the other, and it wrote more."""
    by_pid: dict[int, list[Draft]] = {}
    for draft in drafts:
        by_pid.setdefault(draft.pid, []).append(draft)
    for same in by_pid.values():
        yield from (draft for draft in same if not any(_shadows(draft, other) for other in same))


def _shadows(draft: Draft, other: Draft) -> bool:
    alike = draft.host.endswith(other.host) or other.host.endswith(draft.host)
    return draft is not other and bool(draft.host and other.host) and alike and other.lines > draft.lines
