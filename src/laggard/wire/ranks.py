"""`laggard.ranks/1`: the document in which an agent reports the ranks of its node."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from laggard.limits import Clock, Count, CountOrNone, Name, Peer, Prose, RankNumber, Seconds, Text, WorldSize
from laggard.model import MAX_FINDINGS, CpuNeighbour, Finding, RankEnd
from laggard.wire.ras import RasSource
from laggard.wire.traffic import JobTraffic

RANKS_SCHEMA = "laggard.ranks/1"

MAX_RANKS: Final = 1024
MAX_LANES: Final = 256
MAX_NEIGHBOURS: Final = 8
MAX_UNSEEN: Final = 64

State: TypeAlias = Annotated[str, Meta(pattern="^(running|finished|died)$")]

# gc=False: what is read from JSON refers to nothing that refers to it, and a collector holds millions of these, which
# Python's collector of garbage would go through again and again.


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The collective that a rank is blocked in, and for how many seconds. `peer`: of a send or recv, the other side's
    global rank; -1, which is left out of the JSON, for other operations, and for any rank."""

    op: Text
    group: Text
    seq: Count
    seconds: Seconds
    peer: Peer = -1


class LaneProgress(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The number of collectives of an operation in a group that a rank has entered, and of those that are done. Sends
    and receives are counted by `peer`, as in InFlight."""

    op: Text
    group: Text
    entered: Count
    done: Count
    peer: Peer = -1


class GroupProgress(msgspec.Struct, frozen=True, gc=False):
    """A process group as torch's Flight Recorder reports it: numbers of the last collectives, -1 where it reports none.
    `seconds`: for how long the numbers had not changed when torch was asked for them."""

    name: Text
    enqueued: CountOrNone
    started: CountOrNone
    completed: CountOrNone
    seconds: Seconds


class BeatRow(msgspec.Struct, frozen=True, gc=False):
    """A rank's last heartbeat. A thread beside the training writes one about every `interval_seconds`. Not each of
    them asks torch for `groups`: `groups_age_seconds` is since when it was asked, None where that is not known."""

    age_seconds: Seconds
    interval_seconds: Seconds
    flight_recorder: Text  # on, off, absent
    lanes: Annotated[tuple[LaneProgress, ...], Meta(max_length=MAX_LANES)]
    groups: Annotated[tuple[GroupProgress, ...], Meta(max_length=MAX_LANES)] = ()
    groups_age_seconds: Seconds | None = None


class CpuWait(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The CPU time of a rank's threads in the last `seconds`, all of them together: time on a CPU, time in the run
    queue behind others, and the time for which the quota of their cgroup held them back. `stolen_seconds`: about how
    long the hypervisor ran something else on their cores; `neighbours`: who took the most of these, where the threads
    waited in the run queue."""

    seconds: Clock
    running_seconds: Clock
    queued_seconds: Clock
    throttled_seconds: Clock
    stolen_seconds: Clock = 0.0
    neighbours: Annotated[tuple[CpuNeighbour, ...], Meta(max_length=MAX_NEIGHBOURS)] = ()


class CollectiveTotal(msgspec.Struct, frozen=True, gc=False):
    """All collectives of one operation in the groups of one role."""

    op: str
    group: str  # the role: dp, tp, pp, ep, world
    count: int
    seconds: float
    bytes: int


class PackedSteps(msgspec.Struct, frozen=True):
    """The steps of all ranks of a document. `counts`: how many each rank has, in the order of `ranks`. `columns`:
    little-endian unsigned numbers, one column after the other: step, start, length (end - start), waited, work, and the
    phases; within each, all steps of the first rank, then of the next. Times are whole nanoseconds, `start` on the
    node's monotonic clock. Phases are own time in the order of constants.PHASES, collectives taken out; `waited` is
    time blocked in collectives, and the length is the sum of all of these. `work`: the elements of the model's inputs
    in the step, 0 where they were not seen. `widths`: the bytes of a number in each column, 0, 4 or 8; of 0, where
    every number is 0, nothing is sent. In JSON `columns` is base64."""

    counts: tuple[int, ...]
    widths: tuple[int, ...]
    columns: bytes


class RankRow(msgspec.Struct, frozen=True, gc=False):
    """One rank: the contents of its rank file, and what the kernel knows of the process that writes it."""

    job_id: Name
    rank: RankNumber
    local_rank: Count
    world_size: WorldSize
    node: Text
    gpu: Text | None
    attempt: Count
    owner: Count  # uid of the file, checked against the writer's
    pid: Count  # the writer's pid according to the kernel; 0: gone, or not visible from here
    cgroup: Prose
    state: State  # died: it ended in another way than with status 0
    steps: Count
    step_seconds: Clock
    own_seconds: Clock
    phase_seconds: tuple[Clock, ...]
    last_progress_timestamp_seconds: Clock
    collectives: tuple[CollectiveTotal, ...]
    in_flight: InFlight | None
    phase: Text | None
    lost: Count  # events that the hook could not record
    stopped: bool = False  # whether the process is stopped according to the kernel (SIGSTOP, a debugger)
    beat: BeatRow | None = None  # None before the first heartbeat; of a rank that has finished its last
    last_beat_timestamp_seconds: Clock | None = None
    facts: dict[str, Any] = {}
    end: RankEnd | None = None  # of a rank that has finished or died
    cpu_wait: CpuWait | None = None  # of a rank that runs


class RejectedFiles(msgspec.Struct, frozen=True):
    """Rank files that the agent rejected for one reason: how many, and the name of one of them."""

    reason: str
    count: int
    example: str


class UnseenProcess(msgspec.Struct, frozen=True, gc=False):
    """A process that runs under laggard and of which no rank is seen. `kind`: `unseen`, it trained and nothing was
    recorded, for the reason `why`; `starting`, it has torch and may become a rank. `running`: whether it still runs;
    `at`: when it said so, Unix time."""

    kind: Annotated[str, Meta(pattern="^(unseen|starting)$")]
    job_id: Name
    rank: RankNumber
    world_size: WorldSize
    owner: Count
    pid: Count
    running: bool
    script: Text
    why: Text
    at: Clock


class RanksDocument(msgspec.Struct, frozen=True):
    """The ranks of one node. Pass `next` as `since` to get only steps that are newer."""

    node: Name
    boot_id: Text
    next: Clock
    ranks: Annotated[tuple[RankRow, ...], Meta(max_length=MAX_RANKS)]
    ignored: tuple[RejectedFiles, ...]
    findings: Annotated[tuple[Finding, ...], Meta(max_length=MAX_FINDINGS)] = ()
    """The findings about the jobs that run here, from what their ranks report. The node's own findings are in its
    report."""
    ras: RasSource | None = None
    """Jobs without hooks, as NCCL RAS tells of them."""
    traffic: tuple[JobTraffic, ...] = ()
    """The traffic of jobs on several nodes, where this one has RDMA devices that are up."""
    now: Clock | None = None
    """The node's Unix time when this was read."""
    unseen: Annotated[tuple[UnseenProcess, ...], Meta(max_length=MAX_UNSEEN)] = ()
    """Processes under laggard that are not seen as ranks, at most 64."""
    steps: PackedSteps | None = None
    """The steps of the ranks; None where `since` was not asked for."""
    schema: str = RANKS_SCHEMA
