"""What a line of a job's output can say about the job's end, as values."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Weight(enum.IntEnum):
    """How much a line says about the cause. What weighs less is a consequence of what weighs more."""

    SUMMARY = 0
    """A launcher's account, and what a process reports when its peers are gone."""
    STOPPED = 1
    """Somebody stopped the job."""
    WAITED = 2
    """A collective or a transfer did not end: whoever reports it is, most often, a victim."""
    DIED = 3
    """A signal ended the process. Launchers report it late, and the peers' complaints come before."""
    FAILED = 4
    """A process says why it failed."""


class Place(NamedTuple):
    """Where in the input an event is."""

    file: int
    offset: int
    seconds: float | None = None
    dated: bool = False
    progress: int = 0
    """How many lines with a loss or a speed came before it in its file."""


class Writer(NamedTuple):
    """Who wrote it, as far as the line says."""

    rank: int | None = None
    task: int | None = None
    local_rank: int | None = None
    host: str | None = None


class Event(NamedTuple):
    code: str
    kind: str
    """What exactly: chooses the advice (advice.py)."""
    weight: Weight
    summary: str
    """Continues a sentence: `CUDA out of memory: ...`."""
    line: str
    place: Place
    writer: Writer = Writer()
    where: str = ""
    """The line of code that failed: `train.py line 88`."""


class WorkStatus(NamedTuple):
    """What torch's watchdog says of one rank's collectives in one process group."""

    group: str
    rank: int
    timed_out: int | None = None
    op: str = ""
    enqueued: int | None = None
    completed: int | None = None


MAX_EVENTS: Final = 20_000
"""Of one job. A process that repeats itself is counted, not kept."""
