"""The files in which a rank under laggard left its stacks, at a standstill or at its end, as the text of a stack dump:
the joiner puts them beside dumps and logs of the same job. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.diagnose.parts.part import Part
from laggard.stacks.fault_text import faults_of
from laggard.stacks.frames import NO_FRAME
from laggard.stacks.kernel_side import text_of_side
from laggard.stacks.sampled import FAULTS_KEY, KEY, Sampled, SampledError, Thread, decode
from laggard.stacks.unanswered import KEY as UNANSWERED_KEY
from laggard.stacks.unanswered import Unanswered
from laggard.stacks.unanswered import decode as decode_unanswered

_HEADS: Final = tuple(b'{"%b"' % key.encode() for key in (KEY, FAULTS_KEY))
_UNANSWERED_HEAD: Final = b'{"%b"' % UNANSWERED_KEY.encode()


def split_own_stacks(raw: bytes) -> tuple[Part, ...]:
    """Returns the stacks of the rank; none where the file is another, or holds none, or where the rank goes on: then
    they show where its time goes, and not what it waits for."""
    if raw.startswith(_UNANSWERED_HEAD):
        return _of_unanswered(raw)
    if not raw.startswith(_HEADS):
        return ()
    try:
        sampled = decode(raw) if raw.startswith(_HEADS[0]) else faults_of(raw, 0.0)
    except SampledError:
        return ()
    if sampled is None or not sampled.is_still or sampled.training.stacks[0].frames == (NO_FRAME,):
        return ()  # it may well wait in a collective that C++ called
    return (Part(f"rank {sampled.rank}", sampled.node, "\n".join(_lines(sampled))),)


def _of_unanswered(raw: bytes) -> tuple[Part, ...]:
    """The process of a rank that left no stacks, as `ps` shows one."""
    try:
        seen = decode_unanswered(raw)
    except SampledError:
        return ()
    return (Part(f"rank {seen.rank}", seen.node, "\n".join(_process_lines(seen))),)


def _process_lines(seen: Unanswered) -> Iterator[str]:
    yield f"rank {seen.rank} runs as pid {seen.pid} on host {seen.node}, and wrote no stacks"
    yield f"Place: {text_of_side(seen.side)}"
    yield "PID STAT WCHAN COMMAND"
    yield f"{seen.pid} {seen.side.state} {seen.side.waits_in or '-'} rank {seen.rank}"


def _lines(sampled: Sampled) -> Iterator[str]:
    yield f"Process {sampled.pid}: rank {sampled.rank} of job {sampled.job_id}, {sampled.why}"
    yield f"Rank {sampled.rank}:"
    for thread in sampled.threads:
        yield from _of_thread(thread)


def _of_thread(thread: Thread) -> Iterator[str]:
    yield "Current thread 0x1 (most recent call first):"
    for frame in thread.stacks[0].frames if thread.stacks else ():
        yield f'  File "{frame.file}", line {frame.line or 0}, in {frame.function}'
