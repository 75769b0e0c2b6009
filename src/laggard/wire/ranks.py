"""`laggard.ranks/1`: the document in which an agent reports the ranks of its node."""

from __future__ import annotations

from typing import Any

import msgspec

from laggard.model import CpuNeighbour, Finding, RankEnd
from laggard.wire.ras import RasSource
from laggard.wire.traffic import JobTraffic

RANKS_SCHEMA = "laggard.ranks/1"

# gc=False: what is read from JSON refers to nothing that refers to it, and a collector holds millions of these, which
# Python's collector of garbage would go through again and again.


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The collective that a rank is blocked in, and for how many seconds. `peer`: of a send or recv, the other side's
    global rank; -1, which is left out of the JSON, for other operations, and for any rank."""

    op: str
    group: str
    seq: int
    seconds: float
    peer: int = -1


class LaneProgress(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The number of collectives of an operation in a group that a rank has entered, and of those that are done. Sends
    and receives are counted by `peer`, as in InFlight."""

    op: str
    group: str
    entered: int
    done: int
    peer: int = -1


class GroupProgress(msgspec.Struct, frozen=True, gc=False):
    """A process group as torch's Flight Recorder reports it: numbers of the last collectives, -1 where it reports none.
    `seconds`: for how long the numbers had not changed when torch was asked for them."""

    name: str
    enqueued: int
    started: int
    completed: int
    seconds: float


class BeatRow(msgspec.Struct, frozen=True, gc=False):
    """A rank's last heartbeat. A thread beside the training writes one about every `interval_seconds`. Not each of
    them asks torch for `groups`: `groups_age_seconds` is since when it was asked, None where that is not known."""

    age_seconds: float
    interval_seconds: float
    flight_recorder: str  # on, off, absent
    lanes: tuple[LaneProgress, ...]
    groups: tuple[GroupProgress, ...] = ()
    groups_age_seconds: float | None = None


class CpuWait(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The CPU time of a rank's threads in the last `seconds`, all of them together: time on a CPU, time in the run
    queue behind others, and the time for which the quota of their cgroup held them back. `stolen_seconds`: about how
    long the hypervisor ran something else on their cores; `neighbours`: who took the most of these, where the threads
    waited in the run queue."""

    seconds: float
    running_seconds: float
    queued_seconds: float
    throttled_seconds: float
    stolen_seconds: float = 0.0
    neighbours: tuple[CpuNeighbour, ...] = ()


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

    job_id: str
    rank: int
    local_rank: int
    world_size: int
    node: str
    gpu: str | None
    attempt: int
    owner: int  # uid of the file, checked against the writer's
    pid: int  # the writer's pid according to the kernel; 0: gone, or not visible from here
    cgroup: str
    state: str  # running, finished, died: it ended in another way than with status 0
    steps: int
    step_seconds: float
    own_seconds: float
    phase_seconds: tuple[float, ...]
    last_progress_timestamp_seconds: float
    collectives: tuple[CollectiveTotal, ...]
    in_flight: InFlight | None
    phase: str | None
    lost: int  # events that the hook could not record
    stopped: bool = False  # whether the process is stopped according to the kernel (SIGSTOP, a debugger)
    beat: BeatRow | None = None  # None before the first heartbeat; of a rank that has finished its last
    last_beat_timestamp_seconds: float | None = None
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

    kind: str
    job_id: str
    rank: int
    world_size: int
    owner: int
    pid: int
    running: bool
    script: str
    why: str
    at: float


class RanksDocument(msgspec.Struct, frozen=True):
    """The ranks of one node. Pass `next` as `since` to get only steps that are newer."""

    node: str
    boot_id: str
    next: float
    ranks: tuple[RankRow, ...]
    ignored: tuple[RejectedFiles, ...]
    findings: tuple[Finding, ...] = ()
    """The findings about the jobs that run here, from what their ranks report. The node's own findings are in its
    report."""
    ras: RasSource | None = None
    """Jobs without hooks, as NCCL RAS tells of them."""
    traffic: tuple[JobTraffic, ...] = ()
    """The traffic of jobs on several nodes, where this one has RDMA devices that are up."""
    now: float | None = None
    """The node's Unix time when this was read."""
    unseen: tuple[UnseenProcess, ...] = ()
    """Processes under laggard that are not seen as ranks, at most 64."""
    steps: PackedSteps | None = None
    """The steps of the ranks; None where `since` was not asked for."""
    schema: str = RANKS_SCHEMA
