"""Where processes stand in their program: dumps of py-spy, faulthandler, gdb's py-bt and torch's debug server. The one
that is in no collective, while its peers are, is the one that they wait for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.stacks.frames import collective_of as collective_of_frames
from laggard.stacks.frames import own_frame as own_frame_of

KIND: Final = "stack dump"
"""The name of the format of files that hold nothing else."""
_MAX_STACKS: Final = 512
_MAX_FRAMES: Final = 256
_PROCESS = re.compile(r"^(?:.{0,60}\b)?Process (\d{1,10}): (.*)$")
_RANK = re.compile(
    r"^[-=# ]{0,8}[Rr]ank:? ?(\d{1,7})\b[-=# :]{0,8}$|\brank['\"]?[:=] ?(\d{1,7})\b|\[rank(\d{1,7})\]"
    r"|(?:<h[23]>|=== )Rank (\d{1,7}): https?://"
)
_THREAD = re.compile(
    r"^\s*(?:\[rank\d{1,7}\]: ?)?(Thread (?:0x)?[0-9a-fx]+ ?\(.*\).*|Current thread 0x[0-9a-f]+ .*|Thread \S+ \(.*"
    r"|Traceback \(most recent call (?:first|last)\):)\s*$"
)
_PY_SPY = re.compile(r"^\s{2,}(\S[^()]{0,200}?) \(([^()]{1,300}?)(?::(\d{1,7}))?\)\s*$")
_PYTHON = re.compile(r"^\s*(?:\[rank\d{1,7}\]: ?)?\s*File \"([^\"]{1,300})\", line (\d{1,7}),? in (\S.{0,120}?)\s*$")


_MAIN: Final = ("<module>", "_run_module_as_main")


class Frame(NamedTuple):
    function: str
    file: str
    line: int | None
    text: str = ""
    """The line of the dump."""


class Stack(NamedTuple):
    """The frames of one process, its threads one after the other, the innermost frame of each first. None: not told."""

    frames: tuple[Frame, ...]
    head: str
    """The line that says whose it is."""
    pid: int | None = None
    rank: int | None = None


def stacks(text: str) -> tuple[Stack, ...]:
    """Returns the stacks of a text by process. One without any head is one process, too."""
    found = [stack for stack in _by_process(text.splitlines()) if stack.frames]
    return tuple(found[:_MAX_STACKS])


def collective_of(stack: Stack) -> str:
    """Returns the collective that a process waits in, as laggard.stacks.frames tells it. Empty: it waits in none."""
    return collective_of_frames(stack.frames)


def own_frame(stack: Stack) -> Frame:
    """Returns the innermost frame that is no library's; the innermost where all are."""
    return own_frame_of(stack.frames)


def frame_text(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}{f':{frame.line}' if frame.line else ''})"


def _by_process(lines: Sequence[str]) -> Iterator[Stack]:
    head, pid, rank = "", None, None
    threads: list[list[Frame]] = []
    thread: list[Frame] = []
    is_last_first = False
    for line in lines:
        process, named = _PROCESS.match(line), _RANK.search(line)
        of_rank = next((int(it) for it in named.groups() if it), None) if named else None
        changes = of_rank is not None and rank is not None and of_rank != rank
        if process or changes:
            yield Stack(_joined([*threads, _ordered(thread, is_last_first)]), head, pid, rank)
            threads, thread, pid, rank, head = [], [], None, None, ""
        if process:
            pid = int(process[1])
        rank = of_rank if of_rank is not None else rank
        head = head or (line.strip() if process or of_rank is not None else "")
        if _THREAD.match(line):
            threads.append(_ordered(thread, is_last_first))
            thread, is_last_first = [], "call last" in line
        elif frame := _frame(line):
            thread.append(frame)
    yield Stack(_joined([*threads, _ordered(thread, is_last_first)]), head, pid, rank)


def _joined(threads: Sequence[list[Frame]]) -> tuple[Frame, ...]:
    """The main thread comes first, whose outermost frame is the module that runs: faulthandler writes it last."""
    in_order = sorted(threads, key=lambda frames: not (frames and frames[-1].function in _MAIN))
    return tuple(frame for frames in in_order for frame in frames)[:_MAX_FRAMES]


def _ordered(thread: list[Frame], is_last_first: bool) -> list[Frame]:
    return thread[::-1] if is_last_first else thread


def _frame(line: str) -> Frame | None:
    if found := _PYTHON.match(line):
        return Frame(found[3], found[1], int(found[2]), line.strip())
    if (found := _PY_SPY.match(line)) and (found[3] or "/" in found[2] or "::" in found[1]):
        return Frame(found[1], found[2], int(found[3]) if found[3] else None, line.strip())
    return None
