"""The text that Python's faulthandler writes: the threads of a process, each with its frames. Standard library only.

The form is that of CPython 3.10 to 3.14, Python/traceback.c and Modules/faulthandler.c: `Thread 0x... [name] (most
recent call first):`, `Current thread ...`, or `Stack (...):` of one thread alone, then a line `  File "F", line N in
FUNCTION` each; `  ...` where it stops after 100 frames, `...` after 100 threads.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from laggard.stacks import sampled

SUFFIX: Final = ".fault"
MAX_TEXT: Final = 1 << 20
_HEAD = re.compile(
    r"(?:(?:Current t|T)hread 0x([0-9a-fA-F]{1,16})|Stack) (?:\[(.{0,64})\] )?\(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.{0,600})", line (\d{1,7}|\?\?\?) in (.{0,600})')
_LAGGARDS: Final = "laggard/trainer_hooks/record/event_log.py"  # in each thread of laggard's own
_HOOKS: Final = "laggard/trainer_hooks/"
_NO_FRAME: Final = "  <no Python frame>"
_FATAL = re.compile(r"Fatal Python error: (.{1,200})")
_TIMEOUT = re.compile(r"Timeout \(\d{1,4}:\d\d:\d\d(?:\.\d{1,6})?\)!")


class FaultThread(NamedTuple):
    """A thread of a dump. `ident`: as threading.get_ident() gives it. `frames`: the innermost first."""

    ident: int
    name: str
    frames: tuple[sampled.Frame, ...]


class FaultDump(NamedTuple):
    """One dump, with the threads that have frames. `timed_out`: it was written because nobody put it off in time;
    `fatal`: the crash that it tells of, empty: none."""

    threads: tuple[FaultThread, ...]
    timed_out: bool
    fatal: str


def header(job_id: str, rank: int, node: str, pid: int, thread: int) -> bytes:
    """The first line of a rank's file of dumps: whose they are, and which thread trains."""
    about = {sampled.FAULTS_KEY: 1, "job_id": job_id, "rank": rank, "node": node, "pid": pid, "thread": thread}
    return json.dumps(about).encode("ascii") + b"\n"


def read_faults(path: str, owner: int | None = None) -> sampled.Sampled | None:
    """Returns what the last dump in a rank's file says; None where there is none. Raises SampledError."""
    text = sampled.read_small_file(path, MAX_TEXT, owner)
    return faults_of(text, os.stat(path, follow_symlinks=False).st_mtime) if text else None


def faults_of(text: bytes, at: float) -> sampled.Sampled | None:
    """Returns as read_faults() does, of the file's content. `at`: the Unix time of the last dump. Raises
    SampledError."""
    head, _, rest = text.partition(b"\n")
    try:
        about = json.loads(head)
        if about[sampled.FAULTS_KEY] != 1:
            raise ValueError
        thread = sampled.number_of(about["thread"], 1 << 64)
        job_id, node = sampled.text_of(about["job_id"]), sampled.text_of(about["node"])
        rank, pid = sampled.number_of(about["rank"]), sampled.number_of(about["pid"])
    except (ValueError, RecursionError, KeyError, TypeError):
        raise sampled.SampledError("no file of faulthandler's dumps that this release reads") from None
    dump = last_dump(rest.decode("utf-8", "replace"))
    if dump is None:
        return None
    of_script = [each for each in dump.threads if not any(_LAGGARDS in frame.file for frame in each.frames)]
    threads = sorted(of_script or dump.threads, key=lambda each: each.ident != thread)
    why = sampled.CRASHED if dump.fatal else sampled.HELD if dump.timed_out else sampled.TERMINATED
    return sampled.Sampled(
        job_id, rank, node, pid, why, at, 0.0, tuple(_thread(each) for each in threads[: sampled.MAX_THREADS])
    )


def last_dump(text: str) -> FaultDump | None:
    """The last dump in the text; None where there is none with a frame."""
    found = None
    for dump in _dumps(text[-MAX_TEXT:].splitlines()):
        found = dump if dump.threads else found
    return found


def _dumps(lines: list[str]) -> Iterator[FaultDump]:
    """A dump begins at the line of a timeout or crash, at a thread that the dump has already (each has its threads
    once), and at a stack without a thread, which is all of its dump."""
    threads: dict[int, FaultThread] = {}
    timed_out, fatal = False, ""
    ident: int | None = None
    for line in lines:
        head, frame, crash, timeout = (it.match(line) for it in (_HEAD, _FRAME, _FATAL, _TIMEOUT))
        if head or crash or timeout:
            ident = int(head[1] or "0", 16) if head else None
            if not ident or ident in threads:
                yield _dump(threads, timed_out, fatal)
                threads, timed_out, fatal = {}, timeout is not None, sampled.text_of(crash[1]) if crash else ""
            if ident is not None and head:
                threads[ident] = FaultThread(ident, sampled.text_of(head[2] or ""), ())
        elif (frame or line == _NO_FRAME) and ident is not None:
            thread = threads[ident]
            read = _frame(*frame.groups()) if frame else sampled.NO_FRAME
            threads[ident] = thread._replace(frames=(*thread.frames, read))
    yield _dump(threads, timed_out, fatal)


def _dump(threads: dict[int, FaultThread], timed_out: bool, fatal: str) -> FaultDump:
    return FaultDump(tuple(thread for thread in threads.values() if thread.frames), timed_out, fatal)


def _frame(file: str, line: str, function: str) -> sampled.Frame:
    return sampled.Frame(
        sampled.text_of(function), sampled.text_of(file), int(line) if line.isdecimal() else None, sampled.kind_of(file)
    )


def _thread(found: FaultThread) -> sampled.Thread:
    own = [frame for frame in found.frames if _HOOKS not in frame.file]
    frames, left_out = sampled.shortened(own or found.frames)
    return sampled.Thread(found.name, (sampled.Counted(1, frames, left_out=left_out),))
