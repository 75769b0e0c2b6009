"""Stacks of processes in a file of their own: dumps of py-spy and of faulthandler, one process or several. Which rank a
process is, is told by the other files of its job (joined/witnesses.py); here stands what the stacks say alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.joined.spy_json import spy_threads
from laggard.diagnose.joined.stacks import (
    KIND,
    Stack,
    collective_of,
    frame_text,
    is_helper,
    own_frame,
    share_of_stacks,
    stacks,
)
from laggard.model import Finding
from laggard.probes.probe import finding
from laggard.text.words import counted

_MIN_SHARE: Final = 0.3
"""The least share of the lines that are frames or heads: people write words around a dump, and a log is mostly none."""
_MIN_PROCESSES: Final = 3
_MAX_CHARACTERS: Final = 2 << 20
_FIX: Final = (
    "Look at what that line waits for (a file, a lock, a server, another process), and give it a time limit; the other "
    "processes only wait for this one."
)


def recognise(content: FileContent) -> bool:
    """Whether the text is mostly stacks, whatever was cut off in front. A job's log that holds one is none."""
    text = content.text[: 1 << 18]
    return bool(stacks(text)) and (bool(spy_threads(text)) or share_of_stacks(text) >= _MIN_SHARE)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    found = [stack for stack in stacks(content.text[:_MAX_CHARACTERS]) if not is_helper(stack)]
    odd = tuple(_odd(found))
    return FileJudgement(odd, {"processes": len(found)}, "" if odd else _what_they_show(found))


def _odd(found: Sequence[Stack]) -> Iterator[Finding]:
    """The one process that is in no collective, while all others are in the same one."""
    calls = [collective_of(stack) for stack in found]
    out = [stack for stack, call in zip(found, calls, strict=True) if not call]
    names = sorted({call for call in calls if call})
    if len(found) < _MIN_PROCESSES or len(out) != 1 or len(names) != 1 or _named(out[0]) is None:
        return
    where = frame_text(own_frame(out[0]))
    yield finding(
        "JOB_COLLECTIVE_TIMEOUT",
        str(_named(out[0])),
        f"hung in {where}: it is in no collective, while the {len(found) - 1} others are in {names[0]}",
        evidence={"line": own_frame(out[0]).text, **({} if out[0].pid is None else {"pid": out[0].pid})},
        fix=_FIX,
        commands=("laggard run --record DIR ...",),
    )


def _named(stack: Stack) -> str | None:
    if stack.rank is not None:
        return f"rank {stack.rank}"
    return f"process {stack.pid}" if stack.pid is not None else None


def _what_they_show(found: Sequence[Stack]) -> str:
    calls = {collective_of(stack) for stack in found}
    if len(found) > 1 and len(calls) == 1 and "" not in calls:
        return f"all {len(found)} stand in {calls.pop()}: each waits for the others, and none of them is told apart"
    places = [f"{collective_of(stack) or 'no collective'}, {frame_text(own_frame(stack))}" for stack in found[:4]]
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return (
        f"{counted(len(found), 'stack')} ({'; '.join(places)}{more}): the stacks of all ranks tell whom they wait for"
    )


STACK_DUMPS: Final = FileFormat(KIND, recognise, judge)
