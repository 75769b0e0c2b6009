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

from laggard.stacks.sampled import collective_of as collective_of_frames
from laggard.stacks.sampled import own_frame as own_python_frame

MAX_LINE_CHARACTERS: Final = 2000
_MAX_NAME: Final = 300

_PROCESS = re.compile(r"^(?:.{0,60}\b)?(?<!Parent )Process (\d{1,10}): (.*)$")
_ATTACHED = re.compile(
    r"\bpy-spy\b.{0,80}?\sdump\b.{0,80}?(?:\s-p|--pid)[ =]?(\d{1,10})\b"
    r"|\b(?:gdb|py-bt|pstack|gstack)\b.{0,120}?(?:\s-p|--pid|\sattach)[ =]?(\d{1,10})\b"
    r"|^Attaching to .{0,300}?\bprocess (\d{1,10})\b|\bpystack\b.{0,40}?\sremote\b.{0,40}?\s(\d{1,10})\b"
)
_BEGINS = re.compile(r"^\s*(?:Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!\s*$|Fatal Python error: )")
_SPY_THREAD = re.compile(
    r"^\s*Thread (0x[0-9a-fA-F]{1,16}|\d{1,20}) \((?:idle|active|active\+gil|idle\+gil)\)(?:: \"(.{0,200})\")?"
)
_GDB_THREAD = re.compile(r"^\s*Thread (\d{1,6}) \((?:Thread 0x[0-9a-f]{1,16} )?\(?LWP (\d{1,10})\)?.{0,120}$")
_PYSTACK_THREAD = re.compile(r"^\s*Traceback for thread (\d{1,10})\b.{0,200}\(most recent call (?:first|last)\):\s*$")
_FAULT_THREAD = re.compile(
    r"^\s*(?:(?:Current t|T)hread 0x[0-9a-f]{1,16} .{0,80}|Traceback |Stack )\(most recent call (?:first|last)\):\s*$"
)
_SOME_THREAD = re.compile(r"^\s*(?:Thread (?:0x)?[0-9a-fx]+ ?\(.*\).*|Thread \S+ \(.*)\s*$")
_FIRST_IS_OUTERMOST: Final = "call last"

_SPY_FRAME = re.compile(rf"^\s*(\S.{{0,{_MAX_NAME}}}?) \(([^()]{{1,{_MAX_NAME}}}?)(?::(\d{{1,7}}))?\)\s*$")
_SPY_FILE = re.compile(r"\.py$|\.pyx?$|\.so(?:\.[\w.]{1,20})?$|\.(?:c|cc|cpp|cu|h|hpp)$|/|^<|^\[\w{1,20}\]$")
_PYTHON_FRAME = re.compile(
    rf"^\s*(?:\((?:Python|C)\) )?File \"([^\"]{{1,{_MAX_NAME}}})\", line (\d{{1,7}}),? in (\S.{{0,{_MAX_NAME}}}?)\s*$"
)
_OF_A_LIBRARY = re.compile(r"^(.*?)(?: \(inlined\))?(?: \(([^()]{1,300})\))?$")
_GDB_FRAME = re.compile(rf"^\s*#(\d{{1,4}})\s+(?:0x[0-9a-f]{{1,16}} in )?(\S.{{0,{MAX_LINE_CHARACTERS}}})$")
_GDB_PYTHON = re.compile(r"\bfor file (\S{1,300}), line (\d{1,7}), in (\S{1,200}) \(")
_GDB_PLACE = re.compile(r"\b(?:from (\S{1,300})|at (\S{1,300}?):(\d{1,7}))\s*$")
_GDB_REST = re.compile(r"^\s{1,12}(?:from (\S{1,300})|at (\S{1,300}?):(\d{1,7}))\s*$")
_RANK_HEAD = re.compile(
    r"^[-=#*_> \[(]{0,60}(?:(?:(?:stack|dump|trace(?:back)?|py-spy|output|log)s? (?:of|for|from|on) )?(?:global[ _-]?)?"
    r"rank[ _:=#-]{0,2}(\d{1,7}))\b[^/\"]{0,60}$"
    r"|(?<![\w-])['\"]?(?<!local )(?<!node )(?<!group )rank['\"]?[:=] ?(\d{1,7})\b"
    r"|\[rank(\d{1,7})\]|(?:<h[23]>|=== )Rank (\d{1,7}): https?://|^Process \d{1,10}: rank (\d{1,7}) of job ",
    re.IGNORECASE,
)
_OF_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,120}(?:Error|Exception|Exit|Failure|Timeout|Warning)(?::|$)")


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
    found = _PROCESS.match(text)
    return int(found[1]) if found else None


def attached_to(text: str) -> int | None:
    """Returns the process that a command of a debugger, or its answer, is about."""
    found = _ATTACHED.search(text) if "p" in text and len(text) < 600 else None
    return next((int(pid) for pid in found.groups() if pid), None) if found else None


def begins_dump(text: str) -> bool:
    """Whether a dump begins here that does not name its process."""
    return _BEGINS.match(text) is not None


def thread_of(text: str) -> ThreadHead | None:
    is_last_first = _FIRST_IS_OUTERMOST in text
    if found := _SPY_THREAD.match(text):
        tid = int(found[1]) if found[1].isdecimal() else None
        return ThreadHead(Style.SPY, found[2] == "MainThread", tid)
    if found := _GDB_THREAD.match(text):
        return ThreadHead(Style.GDB, found[1] == "1", int(found[2]))
    if found := _PYSTACK_THREAD.match(text):
        return ThreadHead(Style.PYSTACK, False, int(found[1]), is_last_first)
    if _FAULT_THREAD.match(text):
        return ThreadHead(Style.PYTHON, is_last_first=is_last_first)
    return ThreadHead(Style.NONE) if _SOME_THREAD.match(text) else None


def frame_of(text: str, style: Style) -> Frame | None:
    """Returns the frame that a line is, without its place."""
    if found := _PYTHON_FRAME.match(text):
        named = _OF_A_LIBRARY.match(found[3]) if "(C) " in text else None
        if named is None:
            return Frame(found[3], found[1], int(found[2]))
        return Frame(named[1], named[2] or found[1], int(found[2]) or None)
    if style in (Style.NONE, Style.GDB) and (found := _GDB_FRAME.match(text)):
        return _gdb_frame(found[2])
    if style in (Style.NONE, Style.SPY) and (found := _SPY_FRAME.match(text)):
        told = found[3] if style is Style.NONE else found[3] or _SPY_FILE.search(found[2]) or "::" in found[1]
        known = style is Style.SPY or (text[:2].isspace() and _SPY_FILE.search(found[2]))
        return Frame(found[1], found[2], int(found[3]) if found[3] else None) if told and known else None
    return None


def _gdb_frame(text: str) -> Frame:
    if python := _GDB_PYTHON.search(text):
        return Frame(python[3], python[1], int(python[2]))
    place = _GDB_PLACE.search(text)
    at = text.find(" (", 1)
    function = (text[:at] if at > 0 else text)[:_MAX_NAME]
    if place is None:
        return Frame(function, "", None)
    return Frame(function, place[1] or place[2], int(place[3]) if place[3] else None)


def rest_of_frame(text: str, frame: Frame) -> Frame | None:
    """The frame with its place, which gdb writes into the next line where it does not fit."""
    found = _GDB_REST.match(text) if not frame.file else None
    return frame._replace(file=found[1] or found[2], line=int(found[3]) if found[3] else None) if found else None


def rank_of(text: str) -> int | None:
    """Returns the rank whose dump follows, or whose line this is."""
    found = _RANK_HEAD.search(text) if len(text) < MAX_LINE_CHARACTERS else None
    return next((int(rank) for rank in found.groups() if rank), None) if found else None


def ends_exception(text: str) -> bool:
    """Whether a line says which exception the traceback before it is of: then it is no dump."""
    return _OF_EXCEPTION.match(text) is not None


_C10D = re.compile(r"torch/distributed/(?:distributed_c10d|rendezvous)\.py$")
_ZERO = re.compile(r"deepspeed/runtime/zero/")
_ZERO_CALL = re.compile(r"_{0,2}(?:all_?gather|reduce_?scatter|all_?reduce|wait)\w*")
_PIPELINE = re.compile(r"megatron/core/(?:pipeline_parallel/p2p_communication|distributed/param_and_grad_buffer)\.py$")
_PIPELINE_CALL = re.compile(r"_?(?:communicate|p2p_ops|batched_p2p_ops|(?:send|recv)_\w+|finish_(?:param|grad)_sync)")
_MESSAGES = re.compile(r"distributed/device_communicators/shm_broadcast\.py$")
_MESSAGE_CALL = re.compile(r"(?:\w+\.)?(?:dequeue|enqueue|acquire_read|acquire_write|recv|wait)")
_GPU_WAIT = re.compile(r"_{0,2}(?:cuda|cu|hip)(?:Stream|Event|Device|Ctx)Synchronize\w*|(?:cuda|cu|hip)Memcpy\w*")
_GPU_LIBRARY = re.compile(r"\blib(?:cuda|amdhip64|hsa-runtime64)\.so")
_COMM_LIBRARY = re.compile(r"\blib(nccl|rccl|gloo|hccl|mpi)(?:_cxx)?\.so")
_SERVICE = re.compile(
    r"^ncclProxy|^persistentThread$|^ncclIbAsyncThread|^ncclRasThread|^rasThread|[wW]atchdog|HeartbeatMonitor"
    r"|gloo::transport::\w+::Loop::run|ProcessGroupGloo::runLoop|TCPStore\w*Daemon|::BackgroundThread::"
)
_NO_PLACE = re.compile(
    r"^(?:\?\?|0x[0-9a-f]+|_{0,2}(?:GI_)?_{0,3}(?:pthread|futex|poll|ppoll|epoll|select|read|recv|nanosleep|clock_nanosleep|syscall"
    r"|lll_lock|libc|sched_yield|clone|start_thread|internal_syscall)\w*(?:@.*)?|PyEval_\w+|_PyEval_\w+|_?Py\w+)$"
)
_PYTHON_FILE = re.compile(r"\.pyx?$|^<")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:elastic/agent/server/|launcher/api\.py$)|deepspeed/launcher/|accelerate/commands/launch\.py$"
)
_WORKER = re.compile(
    r"torch/utils/data/_utils/worker\.py$|multiprocessing/(?:resource_tracker|forkserver)\.py$|_inductor/compile_worker/"
)
_SPAWNER = re.compile(r"torch/multiprocessing/spawn\.py$|multiprocessing/popen_\w+\.py$")
_ACTOR: Final = "ray/_private/worker.py"


def is_service(frames: Sequence[Frame]) -> bool:
    """Whether a thread is one of a library's own, which every process has and which waits all the time."""
    return any(_SERVICE.search(frame.function) for frame in frames)


def is_helper(frames: Sequence[Frame]) -> bool:
    """Whether a process trains nothing itself: a launcher, a worker of a DataLoader, an actor without a task."""
    if any(_WORKER.search(frame.file) or _LAUNCHER.search(frame.file) for frame in frames):
        return True
    if any(_SPAWNER.search(frame.file) and frame.function.rpartition(".")[2] in ("join", "poll") for frame in frames):
        return True
    return bool(frames) and frames[0].function.endswith("main_loop") and frames[0].file.endswith(_ACTOR)


def wait_of(frames: Sequence[Frame]) -> str:
    """Returns what a thread waits in, which others of its job or the GPU end. Empty: it waits for none of them."""
    if told := collective_of_frames(frames):
        return told
    for frame in frames:
        name = frame.function.rpartition(".")[2]
        for files, calls in ((_ZERO, _ZERO_CALL), (_PIPELINE, _PIPELINE_CALL), (_MESSAGES, _MESSAGE_CALL)):
            if files.search(frame.file) and calls.fullmatch(name):
                return name.strip("_")
        if _C10D.search(frame.file):
            return name
        if library := _COMM_LIBRARY.search(frame.file):
            return library[1].upper()
        if _GPU_WAIT.fullmatch(frame.function) or _GPU_LIBRARY.search(frame.file):
            return "synchronize"
    return ""


def own_frame(frames: Sequence[Frame]) -> Frame:
    """Returns the innermost frame that is no library's, of a stack with Python frames; else the innermost with a name
    that says more than how a thread sleeps."""
    python = [frame for frame in frames if _PYTHON_FILE.search(frame.file)]
    if python:
        return own_python_frame(python)
    return next((frame for frame in frames if not _NO_PLACE.match(frame.function)), frames[0])


def departing_frame(frames: Sequence[Frame], others: Sequence[Sequence[Frame]]) -> Frame:
    """Returns the frame that stands still: the own one, unless that line is on the others' stacks, too. Then it is the
    innermost line of Python that is not on theirs."""
    own = own_frame(frames)
    shared = {(it.function, it.file, it.line) for each in others for it in each}
    if (own.function, own.file, own.line) not in shared:
        return own
    python = [it for it in frames if _PYTHON_FILE.search(it.file) and (it.function, it.file, it.line) not in shared]
    outer = [it for it in python if "/" in it.file and not it.file.startswith("/usr/lib/python")]
    return next(iter(outer or python), own)
