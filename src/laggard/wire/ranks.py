"""`laggard.ranks/1`: the document in which an agent reports the ranks of its node."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from laggard.kit.limits import (
    MAX_TEXT,
    MAX_WORLD,
    Clock,
    Count,
    CountOrNone,
    Name,
    Peer,
    Prose,
    RankNumber,
    Seconds,
    Text,
    WorldSize,
)
from laggard.model import MAX_FINDINGS, CpuNeighbour, Finding, RankEnd

# The part of `laggard.ranks/1` that is from NCCL RAS: launch counts and peers of jobs that run without hooks.
#
# NCCL counts, for each rank of a communicator, the collectives that were launched. Ranks that are like all others are
# counted and not listed; listed are those of this node, those behind, and those with anything wrong.

MAX_JOBS: Final = 64
MAX_COMMUNICATORS: Final = 1024
MAX_LISTED: Final = 4096
"""The most ranks that are listed of a job."""

STATES: Final = ("off", "no_job", "waiting", "hooked", "asked", "too_old", "failed")
"""The states, in this order: not asked because it is switched off; nobody listens; a job listens that may still be in
its initialisation; all ranks have rank files; the last answer was good; NCCL before 2.28.7; no good answer."""

Launches: TypeAlias = Annotated[dict[Text, Count], Meta(max_length=32)]
"""Collectives launched, by NCCL's name of the operation (AllReduce, ...), without zeros. Sends and receives are not
counted, nor what is launched inside a CUDA graph."""


class RasRank(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A rank of a communicator. `host` is the address of its RAS network, `gpu` CUDA's number of its device.

    `missing`: NCCL RAS had no answer from it; then `launches` is empty, and `unresponsive` and `dead` are its word.
    `unchanged_seconds`: the time between the first and the last of `readings` in which none of its counts, in any of
    its communicators, had changed (of a missing rank: in which it was missing). `process` is what the agent sees of a
    process of its own node: running, stopped, gone; empty where it sees nothing.
    """

    rank: RankNumber
    host: Text
    pid: CountOrNone
    gpu: Peer
    launches: Launches = {}
    unchanged_seconds: Seconds = 0.0
    readings: Count = 1
    async_error: Count = 0  # ncclResult_t
    missing: bool = False
    unresponsive: bool = False
    dead: bool = False
    process: Annotated[str, Meta(pattern="^(running|stopped|gone)?$")] = ""


class RasCommunicator(msgspec.Struct, frozen=True, omit_defaults=True):
    """A communicator of `size` ranks, of which `answered` were read. `launches`: the counts of those that are the
    furthest, `at_front` of them. `unchanged_seconds`: for how long, over `readings`, no rank's counts of this
    communicator changed. `starting`, `ending`: some rank is still being initialised, or has begun to leave. `left_out`:
    how many ranks that should be listed are not."""

    id: Text
    size: WorldSize
    answered: Count
    launches: Launches
    at_front: Count
    unchanged_seconds: Seconds
    readings: Count
    ranks: Annotated[tuple[RasRank, ...], Meta(max_length=MAX_LISTED)]
    starting: bool = False
    ending: bool = False
    left_out: Annotated[int, Meta(ge=0, le=MAX_WORLD)] = 0


class RasJob(msgspec.Struct, frozen=True):
    """The content of one answer: all communicators of one job, each process of which is in touch with the others.

    `owner` is the uid that listens, according to the kernel. `local_hosts`: those of its hosts that are this node.
    """

    job_id: Name
    owner: Count
    nccl_version: Text
    age_seconds: Seconds
    local_hosts: Annotated[tuple[Text, ...], Meta(max_length=256)]
    communicators: Annotated[tuple[RasCommunicator, ...], Meta(max_length=MAX_COMMUNICATORS)]


class RasSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The knowledge of the agent from NCCL RAS. `state` is one of STATES and `reason` says more, for people."""

    state: Annotated[str, Meta(pattern=f"^({'|'.join(STATES)})$")]
    reason: Annotated[str, Meta(max_length=4 * MAX_TEXT)] = ""
    jobs: Annotated[tuple[RasJob, ...], Meta(max_length=MAX_JOBS)] = ()


class JobTraffic(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes in the last `seconds`, sent and received. `tcp_peer_bytes`: over TCP with the job's other nodes (`peers`,
    addresses); `tcp_other_bytes`: over TCP with others; `rdma_bytes`: of all RDMA devices of the machine, None where
    none is up; `collective_bytes`: that the job's ranks here passed to collectives. `unknown`: why it cannot be told
    which transport the job uses."""

    seconds: float
    tcp_peer_bytes: int
    tcp_other_bytes: int
    rdma_bytes: int | None
    collective_bytes: int
    peers: tuple[str, ...] = ()
    job_id: str = ""
    owner: int = 0
    unknown: str = ""


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


TRAINED_UNSEEN: Final = "unseen"


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


MAX_ROWS: Final = 4096

COLLECTIVES_SCHEMA = "laggard.collectives/1"


class CollectiveLane(msgspec.Struct, frozen=True, array_like=True):
    """The key by which a rank's collectives of one operation in one group are counted; `peer` as in InFlight."""

    op: Text
    role: Text
    group: Text
    peer: Peer


class CollectiveRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A collective that is over. `lane`: its place among the lanes; `seq` counts those of the lane from 0. Times in
    seconds on the node's monotonic clock; `waited`: how long the caller was blocked; `size` in bytes."""

    step: Count
    lane: Count
    seq: Count
    start: Clock
    end: Clock
    waited: Seconds
    size: Count


class RankCollectives(msgspec.Struct, frozen=True):
    """The last collectives of one rank, in the order of their begin."""

    rank: int
    lanes: Annotated[tuple[CollectiveLane, ...], Meta(max_length=MAX_LANES)]
    rows: Annotated[tuple[CollectiveRow, ...], Meta(max_length=MAX_ROWS)]


class CollectivesDocument(msgspec.Struct, frozen=True):
    """Those of the ranks that were asked for, as far as they run on the node."""

    node: str
    owner: int
    job_id: str
    ranks: tuple[RankCollectives, ...]
    schema: str = COLLECTIVES_SCHEMA
