"""What one line of a dump of stacks is, or a thread of `py-spy dump --json`. A stack also says what its process waits
for: a collective, another process, the GPU.

Formats: py-spy 0.3 and 0.4 (`py-spy dump`, its `--native`, `--locals` and `--subprocesses`; of `--json`,
src/stack_trace.rs), CPython's faulthandler and python-gdb (`py-bt`, and frames of `bt` that tell a Python frame), gdb 8
to 15 (`bt`, `thread apply all bt`), pystack 1 (`pystack remote` and `core`, with and without `--native`).

Sources of the names of waits: torch/distributed (2.0 to 2.10), DeepSpeed's deepspeed/runtime/zero, Megatron-LM's
megatron/core/pipeline_parallel and megatron/core/distributed, vLLM's vllm/distributed/device_communicators, NCCL's src.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from laggard.diagnose.rules import patterns
from laggard.stacks.sampled import collective_of as collective_of_frames
from laggard.stacks.sampled import own_frame as own_python_frame

_P: Final = patterns("stacks")

MAX_LINE_CHARACTERS: Final = 2000
_MAX_NAME: Final = 300

_FIRST_IS_OUTERMOST: Final = "call last"

_SPY_FRAME = re.compile(rf"^\s*(\S.{{0,{_MAX_NAME}}}?) \(([^()]{{1,{_MAX_NAME}}}?)(?::(\d{{1,7}}))?\)\s*$")
_PYTHON_FRAME = re.compile(
    rf"^\s*(?:\((?:Python|C)\) )?File \"([^\"]{{1,{_MAX_NAME}}})\", line (\d{{1,7}}),? in (\S.{{0,{_MAX_NAME}}}?)\s*$"
)
_GDB_FRAME = re.compile(rf"^\s*#(\d{{1,4}})\s+(?:0x[0-9a-f]{{1,16}} in )?(\S.{{0,{MAX_LINE_CHARACTERS}}})$")


class Style(enum.Enum):
    """Who wrote the dump: what its frames look like depends on it."""

    NONE = "none"
    SPY = "py-spy"
    PYTHON = "faulthandler"
    GDB = "gdb"
    PYSTACK = "pystack"


class Frame(NamedTuple):
    function: str
    file: str
    line: int | None
    text: str = ""
    """The line of the dump."""
    offset: int = 0
    """The place of that line in the text, in characters."""


class ThreadHead(NamedTuple):
    """`tid`: the system's number of the thread, where the dump tells it; that of a main thread is its process's."""

    style: Style
    is_main: bool = False
    tid: int | None = None
    is_last_first: bool = False


def process_of(text: str) -> int | None:
    """Returns the process whose dump begins with this line."""
    found = _P["process"].match(text)
    return int(found[1]) if found else None


def attached_to(text: str) -> int | None:
    """Returns the process that a command of a debugger, or its answer, is about."""
    found = _P["attached"].search(text) if "p" in text and len(text) < 600 else None
    return next((int(pid) for pid in found.groups() if pid), None) if found else None


def begins_dump(text: str) -> bool:
    """Whether a dump begins here that does not name its process."""
    return _P["begins"].match(text) is not None


def thread_of(text: str) -> ThreadHead | None:
    is_last_first = _FIRST_IS_OUTERMOST in text
    if found := _P["spy_thread"].match(text):
        tid = int(found[1]) if found[1].isdecimal() else None
        return ThreadHead(Style.SPY, found[2] == "MainThread", tid)
    if found := _P["gdb_thread"].match(text):
        return ThreadHead(Style.GDB, found[1] == "1", int(found[2]))
    if found := _P["pystack_thread"].match(text):
        return ThreadHead(Style.PYSTACK, False, int(found[1]), is_last_first)
    if _P["fault_thread"].match(text):
        return ThreadHead(Style.PYTHON, is_last_first=is_last_first)
    return ThreadHead(Style.NONE) if _P["some_thread"].match(text) else None


def frame_of(text: str, style: Style) -> Frame | None:
    """Returns the frame that a line is, without its place."""
    if found := _PYTHON_FRAME.match(text):
        named = _P["of_a_library"].match(found[3]) if "(C) " in text else None
        if named is None:
            return Frame(found[3], found[1], int(found[2]))
        return Frame(named[1], named[2] or found[1], int(found[2]) or None)
    if style in (Style.NONE, Style.GDB) and (found := _GDB_FRAME.match(text)):
        return _gdb_frame(found[2])
    if style in (Style.NONE, Style.SPY) and (found := _SPY_FRAME.match(text)):
        told = found[3] if style is Style.NONE else found[3] or _P["spy_file"].search(found[2]) or "::" in found[1]
        known = style is Style.SPY or (text[:2].isspace() and _P["spy_file"].search(found[2]))
        return Frame(found[1], found[2], int(found[3]) if found[3] else None) if told and known else None
    return None


def _gdb_frame(text: str) -> Frame:
    if python := _P["gdb_python"].search(text):
        return Frame(python[3], python[1], int(python[2]))
    place = _P["gdb_place"].search(text)
    at = text.find(" (", 1)
    function = (text[:at] if at > 0 else text)[:_MAX_NAME]
    if place is None:
        return Frame(function, "", None)
    return Frame(function, place[1] or place[2], int(place[3]) if place[3] else None)


def rest_of_frame(text: str, frame: Frame) -> Frame | None:
    """The frame with its place, which gdb writes into the next line where it does not fit."""
    found = _P["gdb_rest"].match(text) if not frame.file else None
    return frame._replace(file=found[1] or found[2], line=int(found[3]) if found[3] else None) if found else None


def rank_of(text: str) -> int | None:
    """Returns the rank whose dump follows, or whose line this is."""
    found = _P["rank_head"].search(text) if len(text) < MAX_LINE_CHARACTERS else None
    return next((int(rank) for rank in found.groups() if rank), None) if found else None


def ends_exception(text: str) -> bool:
    """Whether a line says which exception the traceback before it is of: then it is no dump."""
    return _P["of_exception"].match(text) is not None


_ACTOR: Final = "ray/_private/worker.py"


def is_service(frames: Sequence[Frame]) -> bool:
    """Whether a thread is one of a library's own, which every process has and which waits all the time."""
    return any(_P["service"].search(frame.function) for frame in frames)


def is_helper(frames: Sequence[Frame]) -> bool:
    """Whether a process trains nothing itself: a launcher, a worker of a DataLoader, an actor without a task."""
    if any(_P["worker"].search(frame.file) or _P["launcher"].search(frame.file) for frame in frames):
        return True
    if any(
        _P["spawner"].search(frame.file) and frame.function.rpartition(".")[2] in ("join", "poll") for frame in frames
    ):
        return True
    return bool(frames) and frames[0].function.endswith("main_loop") and frames[0].file.endswith(_ACTOR)


def wait_of(frames: Sequence[Frame]) -> str:
    """Returns what a thread waits in, which others of its job or the GPU end. Empty: it waits for none of them."""
    if told := collective_of_frames(frames):
        return told
    for frame in frames:
        name = frame.function.rpartition(".")[2]
        for files, calls in (
            (_P["zero"], _P["zero_call"]),
            (_P["pipeline"], _P["pipeline_call"]),
            (_P["messages"], _P["message_call"]),
        ):
            if files.search(frame.file) and calls.fullmatch(name):
                return name.strip("_")
        if _P["c10d"].search(frame.file):
            return name
        if library := _P["comm_library"].search(frame.file):
            return library[1].upper()
        if _P["gpu_wait"].fullmatch(frame.function) or _P["gpu_library"].search(frame.file):
            return "synchronize"
    return ""


def own_frame(frames: Sequence[Frame]) -> Frame:
    """Returns the innermost frame that is no library's, of a stack with Python frames; else the innermost with a name
    that says more than how a thread sleeps."""
    python = [frame for frame in frames if _P["python_file"].search(frame.file)]
    if python:
        return own_python_frame(python)
    return next((frame for frame in frames if not _P["no_place"].match(frame.function)), frames[0])


def departing_frame(frames: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> Frame:
    """Returns the frame that stands still: the own one, unless that line is on the others' stacks, too. Then it is the
    innermost line of Python that is not on theirs."""
    own = own_frame(frames)
    shared = {(it.function, it.file, it.line) for each in others for it in each}
    if (own.function, own.file, own.line) not in shared:
        return own
    python = [
        it for it in frames if _P["python_file"].search(it.file) and (it.function, it.file, it.line) not in shared
    ]
    outer = [it for it in python if "/" in it.file and not it.file.startswith("/usr/lib/python")]
    return next(iter(outer or python), own)
