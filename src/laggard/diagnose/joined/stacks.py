"""Where processes stand in their program: dumps of py-spy, faulthandler, gdb, pystack and torch's debug server. The one
that is in no collective, while its peers are, is the one that they wait for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.lines import JobLine, LineParser
from laggard.diagnose.joined import dump_lines
from laggard.stacks.sampled import is_library

KIND: Final = "stack dump"
"""The name of the format of files that hold nothing else."""
_MAX_STACKS: Final = 512
_MAX_FRAMES: Final = 256
_MAX_STREAMS: Final = 4096
_MAY_HOLD = re.compile(r"most recent call|\bThread \S|\bProcess \d|^[ \t]*(?:\S{1,80} )?#\d{1,3}[ \t]+(?:0x|\w)", re.M)
_PLAIN = re.compile(r"\s{4}|\s*File \"|Thread |Process \d|#\d|Traceback|Current thread|\s*$")
_QUOTED = re.compile(r"(?:> ?)+(?=[ \w#\"\[])")
_MAIN: Final = ("<module>", "_run_module_as_main")


class Stack(NamedTuple):
    """Where one process stands: the frames of the thread that trains, the innermost first. None: not told."""

    frames: tuple[dump_lines.Frame, ...]
    head: str
    """The line that says whose it is."""
    pid: int | None = None
    rank: int | None = None
    host: str | None = None
    local_rank: int | None = None
    others: tuple[tuple[dump_lines.Frame, ...], ...] = ()
    """The frames of its other threads, but for those that libraries have in every process."""


def stacks(text: str) -> tuple[Stack, ...]:
    """Returns the stacks of a text by process. One without any head is one process, too."""
    if not _MAY_HOLD.search(text):
        return ()
    reader = _Reader()
    offset = 0
    for line in text.splitlines(keepends=True):
        if not line.isspace():
            reader.feed(line, offset)
        offset += len(line)
    found = sorted(reader.end(), key=lambda stack: stack.frames[0].offset)
    return tuple(found[:_MAX_STACKS])


def frame_text(frame: dump_lines.Frame) -> str:
    place = f"{frame.file}{f':{frame.line}' if frame.line else ''}"
    return f"{frame.function} ({place})" if place else frame.function


def share_of_stacks(text: str) -> float:
    """Returns the share of lines that are heads or frames of a dump, of those that are not blank. The head has to be
    that of a dump: an exception's traceback and a frame that stands alone are everyday lines of logs."""
    if not _MAY_HOLD.search(text):
        return 0.0
    parser, style, seen, known, is_dump = LineParser(), dump_lines.Style.NONE, 0, 0, False
    for raw in text.splitlines():
        if not raw or raw.isspace():
            continue
        line = raw.rstrip()[: dump_lines.MAX_LINE_CHARACTERS]
        line = line if _PLAIN.match(line) else parser.parse(line).text
        head = dump_lines.thread_of(line)
        if head is not None:
            style = head.style
            is_dump |= style is not dump_lines.Style.NONE and (
                "call last" not in line or style is dump_lines.Style.PYSTACK
            )
        seen += bool(line.strip())
        known += bool(head or dump_lines.process_of(line) is not None or dump_lines.frame_of(line, style))
    return known / seen if is_dump and seen else 0.0


class _Thread:
    def __init__(self, head: dump_lines.ThreadHead) -> None:
        self.head = head
        self.frames: list[dump_lines.Frame] = []

    def in_order(self) -> list[dump_lines.Frame]:
        return self.frames[::-1] if self.head.is_last_first else self.frames

    @property
    def is_main(self) -> bool:
        """The main thread's outermost frame is the module that runs; py-spy and gdb number or name it."""
        frames = self.in_order()
        return self.head.is_main or any(it.function in _MAIN for it in frames[-1:])


class _Process:
    """The dump of one process while it is read. Until a frame has come, heads add to one another."""

    def __init__(self, line: JobLine) -> None:
        self.pid: int | None = None
        self.rank = line.rank if line.rank is not None else line.task
        self.local_rank, self.host = line.local_rank, line.host
        self.head = ""
        self.threads: list[_Thread] = [_Thread(dump_lines.ThreadHead(dump_lines.Style.NONE))]

    @property
    def has_frames(self) -> bool:
        return any(thread.frames for thread in self.threads)

    def begin_thread(self, head: dump_lines.ThreadHead) -> None:
        last = self.threads[-1]
        if not last.frames and last.head.style is not dump_lines.Style.NONE and head.style is dump_lines.Style.PYTHON:
            head = head._replace(is_main=last.head.is_main, tid=last.head.tid)  # gdb's py-bt, below the thread's head
        self.threads.append(_Thread(head))

    def add(self, frame: dump_lines.Frame) -> None:
        frames = self.threads[-1].frames
        if len(frames) < _MAX_FRAMES:
            frames.append(frame)

    def stacks(self) -> Iterator[Stack]:
        """Yields the stack of each process: where heads were cut off, each has a main thread of its own."""
        threads = [it for it in self.threads if it.frames and not dump_lines.is_service(it.frames)]
        groups = _by_main(threads)
        for place, group in enumerate(groups):
            thread = _that_trains(group)
            pid = self.pid if place == 0 else None
            main = next((it for it in group if it.is_main), None)
            if pid is None and main is not None:
                pid = main.head.tid
            rank = self.rank if place == 0 or len(groups) == 1 else None
            others = tuple(tuple(it.in_order()) for it in group if it is not thread)
            yield Stack(tuple(thread.in_order()), self.head, pid, rank, self.host, self.local_rank, others)


def _by_main(threads: Sequence[_Thread]) -> list[list[_Thread]]:
    """The threads of each process. py-spy puts the main thread first, faulthandler and gdb put it last."""
    mains = [place for place, thread in enumerate(threads) if thread.is_main]
    if len(mains) < 2:
        return [list(threads)] if threads else []
    starts = [0, *mains[1:]] if mains[0] == 0 else [0, *(place + 1 for place in mains[:-1])]
    ends = [*starts[1:], len(threads)]
    return [list(threads[start:end]) for start, end in zip(starts, ends, strict=True)]


def _that_trains(threads: Sequence[_Thread]) -> _Thread:
    """The main thread; where it is in no collective, a thread that is in one: Ray and others train in a thread."""
    with_own = next((it for it in threads if not is_library(dump_lines.own_frame(it.in_order()))), threads[0])
    main = next((it for it in threads if it.is_main), with_own)
    if dump_lines.wait_of(main.in_order()):
        return main
    return next((it for it in threads if dump_lines.wait_of(it.in_order())), main)


class _Reader:
    """Reads line by line. Lines of several processes may be mixed, where each names its own in front."""

    def __init__(self) -> None:
        self._parser = LineParser()
        self._open: dict[tuple[object, ...], _Process] = {}
        self._done: list[Stack] = []

    def feed(self, raw: str, offset: int) -> None:
        if len(raw) > dump_lines.MAX_LINE_CHARACTERS and not raw.lstrip().startswith("#"):
            raw = raw[: dump_lines.MAX_LINE_CHARACTERS]
        text = raw.rstrip()
        if quoted := _QUOTED.match(text):
            text = text[quoted.end() :]
        line = JobLine(text) if _PLAIN.match(text) and "\x1b" not in text else self._parser.parse(text)
        if line.stream not in self._open:
            if len(self._open) >= _MAX_STREAMS:
                return
            self._open[line.stream] = _Process(line)
        self._read(line, raw.strip(), offset)

    def end(self) -> list[Stack]:
        for stream in list(self._open):
            self._finish(stream)
        return self._done

    def _finish(self, stream: tuple[object, ...]) -> None:
        self._done += self._open.pop(stream).stacks()

    def _fresh(self, line: JobLine) -> _Process:
        """The process whose heads come now: a new one where frames came before."""
        if self._open[line.stream].has_frames:
            self._finish(line.stream)
            self._open[line.stream] = _Process(line)
        return self._open[line.stream]

    def _read(self, line: JobLine, raw: str, offset: int) -> None:
        text = line.text
        process = self._open[line.stream]
        if head := dump_lines.thread_of(text):
            process.begin_thread(head)
            return
        style = process.threads[-1].head.style
        frame = dump_lines.frame_of(text, style)
        if frame is not None:
            return process.add(frame._replace(text=raw, offset=offset))
        frames = process.threads[-1].frames
        if frames and (whole := dump_lines.rest_of_frame(text, frames[-1])):
            frames[-1] = whole
        elif frames and process.threads[-1].head.is_last_first and dump_lines.ends_exception(text):
            frames.clear()
        else:
            self._read_head(line, text, raw)

    def _read_head(self, line: JobLine, text: str, raw: str) -> None:
        pid = dump_lines.process_of(text)
        rank = dump_lines.rank_of(text)
        if pid is None and dump_lines.begins_dump(text):
            self._fresh(line)
        if pid is None:
            pid = dump_lines.attached_to(text)
        own = self._open[line.stream]
        if pid is not None or (rank is not None and not (own.has_frames and rank == own.rank)):
            own = self._fresh(line)
            own.pid = pid if pid is not None else own.pid
            own.rank = rank if rank is not None else own.rank
            own.head = own.head or raw
