"""JSON documents: how laggard's values travel. Decoding is strict about types, so that garbage is named as such."""

from __future__ import annotations

from typing import Any

import msgspec

from laggard.model import RANKS_SCHEMA, Finding


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """The collective that a rank is blocked in. `peer`: of a send or recv the other side's global rank; -1, which is
    not sent: no such operation, any rank, or an agent that does not tell."""

    op: str
    group: str
    seq: int
    seconds: float
    peer: int = -1


class LaneProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many collectives of an operation in a group a rank has entered, and how many of them are done; sends and
    receives by `peer`, as in InFlight."""

    op: str
    group: str
    entered: int
    done: int
    peer: int = -1


class GroupProgress(msgspec.Struct, frozen=True):
    """A process group as torch's Flight Recorder tells it: numbers of the last collectives, -1 where it does not say.
    `seconds`: for how long they have not moved."""

    name: str
    enqueued: int
    started: int
    completed: int
    seconds: float


class Beat(msgspec.Struct, frozen=True):
    """A rank's last sign of life, which comes about every `interval_seconds` from beside its training."""

    age_seconds: float
    interval_seconds: float
    flight_recorder: str  # on, off, absent
    lanes: tuple[LaneProgress, ...]
    groups: tuple[GroupProgress, ...]


class CollectiveTotal(msgspec.Struct, frozen=True):
    op: str
    group: str  # the role: dp, tp, pp, ep, world
    count: int
    seconds: float
    bytes: int


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """One rank's step, seconds on its node's monotonic clock. `phases` in the order of names.PHASES: own time,
    collectives taken out. `waited` is the time blocked in collectives: end - start = sum(phases) + waited."""

    step: int
    start: float
    end: float
    phases: tuple[float, ...]
    waited: float


class RankRow(msgspec.Struct, frozen=True):
    """What one rank file says, with what the kernel says of its writer."""

    job_id: str
    rank: int
    local_rank: int
    world_size: int
    node: str
    gpu: str | None
    attempt: int
    owner: int  # uid of the file, checked against the writer's
    pid: int  # the writer's pid as the kernel tells it; 0: gone, or not visible from here
    cgroup: str
    state: str  # running, finished, died
    steps: int
    step_seconds: float
    own_seconds: float
    phase_seconds: tuple[float, ...]
    last_progress_timestamp_seconds: float
    collectives: tuple[CollectiveTotal, ...]
    in_flight: InFlight | None
    phase: str | None
    lost: int  # events that the hook could not record
    stopped: bool = False  # whether the kernel says that the process is stopped (SIGSTOP, a debugger)
    beat: Beat | None = None  # none before the first, and of a rank that has finished
    last_beat_timestamp_seconds: float | None = None
    facts: dict[str, Any] = {}
    rows: tuple[StepRow, ...] = ()


class Ignored(msgspec.Struct, frozen=True):
    """Rank files that were not believed, by reason."""

    reason: str
    count: int
    example: str


class RanksDocument(msgspec.Struct, frozen=True):
    """`laggard.ranks/1`: the ranks of one node. Pass `next` as `since` to get only what is newer."""

    node: str
    boot_id: str
    next: float
    ranks: tuple[RankRow, ...]
    ignored: tuple[Ignored, ...]
    findings: tuple[Finding, ...] = ()
    """About the jobs that run here, from what their ranks say; the node's own are in its report."""
    schema: str = RANKS_SCHEMA
