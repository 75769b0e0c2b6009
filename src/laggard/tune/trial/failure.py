"""The reason why a trial's command failed, from how it ended and what it printed. Pure."""

from __future__ import annotations

import re
from typing import Final

from laggard.text.words import printable_line
from laggard.tune.outcome import Outcome, Status
from laggard.tune.trial.process import Ended

_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Cannot allocate memory"
    r"|MemoryError|oom[-_ ]kill|DefaultCPUAllocator: can't allocate",
    re.IGNORECASE,
)
"""The words with which torch, CUDA, NCCL, the kernel and SLURM say it."""
_KILLED: Final = -9
_MAX_DETAIL_CHARACTERS: Final = 160


def failure_of(ended: Ended) -> Outcome | None:
    """Returns None where the command ended well."""
    if ended.status == 0:
        return None
    text = f"{ended.output}\n{ended.errors}"
    memory = _OUT_OF_MEMORY.search(text)
    if memory:
        line = next(line for line in text.splitlines() if memory[0] in line)
        return Outcome(Status.OUT_OF_MEMORY, None, printable_line(line, _MAX_DETAIL_CHARACTERS), ended.seconds)
    if ended.status is None:
        return Outcome(Status.HUNG, None, f"killed after {ended.seconds:.0f} s", ended.seconds)
    return Outcome(Status.CRASHED, None, f"{_how(ended.status)}: {_last_line(ended)}", ended.seconds)


def _how(status: int) -> str:
    if status == _KILLED:
        return "killed (signal 9: by the kernel for its memory, or by a person)"
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _last_line(ended: Ended) -> str:
    lines = [line for text in (ended.errors, ended.output) for line in text.splitlines() if line.strip()]
    own = [line for line in ended.errors.splitlines() if line.strip()]
    return printable_line((own or lines or ["it printed nothing"])[-1], _MAX_DETAIL_CHARACTERS)
