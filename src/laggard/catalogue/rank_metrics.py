"""The metrics of ranks: their names, and the samples of a rank's statistics. The agent serves them for the ranks of its
node, and a training process serves its own (LAGGARD_EXPORT): the agent writes them with prometheus_client
(agent/web/routes.py), a training process by hand (trainer_hooks/output/http_export.py). Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from laggard.kit.constants import OPS, PHASES

MAX_PAIRS: Final = 8
"""Pairs of operation and role that have series of their own, beside those of the rest together: so many that a node
with eight ranks has at most 500 series. A job with tensor, pipeline and expert parallelism has about ten. Lanes never
change their order, so that a pair never moves into or out of the rest: no counter goes back."""

OTHER: Final = "other"
"""The label of what has no series of its own."""

Labels = tuple[str, ...]
Samples = list[tuple[Labels, float]]


class Metric(NamedTuple):
    """A metric family. Names follow Prometheus' conventions: base units, counters end in `_total`."""

    name: str
    kind: str  # gauge, counter, info
    help: str
    labels: tuple[str, ...] = ()


BUILD_INFO: Final = Metric("laggard_build_info", "gauge", "Version of laggard; always 1.", ("version",))
"""Served beside the metrics of ranks, whoever serves them."""

JOB: Final = ("job_id", "user")
"""The labels of a job: its name, and the uid of its user, since two users may give their jobs one name."""

_RANK = (*JOB, "rank")

RANK_METRICS: tuple[Metric, ...] = (
    Metric(
        "laggard_rank_info",
        "gauge",
        "Who a rank is; always 1. Join on job_id, user and rank.",
        (*_RANK, "hostname", "local_rank", "gpu", "world_size", "attempt"),
    ),
    Metric("laggard_rank_up", "gauge", "1 while the rank's process holds its file's lock.", _RANK),
    Metric("laggard_rank_steps_total", "counter", "Optimizer steps that were timed.", _RANK),
    Metric("laggard_rank_step_seconds_total", "counter", "Time in steps.", _RANK),
    Metric("laggard_rank_own_seconds_total", "counter", "Time not waiting in a collective or for input.", _RANK),
    Metric("laggard_rank_input_seconds_total", "counter", "Time waiting for input.", _RANK),
    Metric(
        "laggard_rank_phase_seconds_total", "counter", "Own time by phase, collectives taken out.", (*_RANK, "phase")
    ),
    Metric("laggard_rank_collectives_total", "counter", "Collectives done.", (*_RANK, "op", "group")),
    Metric("laggard_rank_collective_seconds_total", "counter", "Time blocked in collectives.", (*_RANK, "op", "group")),
    Metric(
        "laggard_rank_collective_bytes_total",
        "counter",
        "Size of the collectives as nccl-tests counts it.",
        (*_RANK, "op", "group"),
    ),
    Metric(
        "laggard_rank_last_progress_timestamp_seconds",
        "gauge",
        "When the rank last finished a step or phase, Unix time.",
        _RANK,
    ),
    Metric(
        "laggard_rank_last_beat_timestamp_seconds",
        "gauge",
        "When the rank last wrote a heartbeat, Unix time: about once a second, also while it waits.",
        _RANK,
    ),
    Metric(
        "laggard_rank_in_flight_seconds",
        "gauge",
        "For how long the rank has been inside its collective; 0: it is in none.",
        _RANK,
    ),
    Metric("laggard_rank_lost_events_total", "counter", "Events that the hook could not record.", _RANK),
)


class CollectiveStats(Protocol):
    """All collectives of one operation in the groups of one role. `group` is the role; `seconds` is time blocked."""

    @property
    def op(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def bytes(self) -> int: ...


class RankStats(NamedTuple):
    """The statistics of one rank. Durations in seconds, moments in Unix time; `last_beat` is None before the first
    heartbeat. `phase_seconds` are in the order of constants.PHASES."""

    job_id: str
    owner: int  # uid
    rank: int
    node: str
    local_rank: int
    gpu: str | None
    world_size: int
    attempt: int
    up: bool
    steps: int
    step_seconds: float
    own_seconds: float
    phase_seconds: Sequence[float]
    last_progress: float
    last_beat: float | None
    in_flight_seconds: float
    collectives: Sequence[CollectiveStats]
    lost: int


@dataclasses.dataclass(frozen=True)  # a tuple has a method `count`
class CollectiveSum:
    """CollectiveStats that sum_collectives() has added up."""

    op: str
    group: str  # the role
    count: int
    seconds: float
    bytes: int


def sum_collectives(lanes: Iterable[tuple[str, str]], numbers: Iterable[Sequence[int]]) -> tuple[CollectiveSum, ...]:
    """Adds lanes up by operation and role, in the order in which the rank first used them. `lanes`: each lane's
    operation and role; `numbers`: each lane's count, nanoseconds and bytes."""
    totals: dict[tuple[str, str], list[int]] = {}
    for (op, role), (count, spent, size) in zip(lanes, numbers, strict=False):
        pair = (op if op in OPS else OTHER, role or OTHER)
        if pair not in totals and len(totals) >= MAX_PAIRS:
            pair = (OTHER, OTHER)
        total = totals.setdefault(pair, [0, 0, 0])
        for place, number in enumerate((count, spent, size)):
            total[place] += number
    return tuple(CollectiveSum(*pair, count, spent / 1e9, size) for pair, (count, spent, size) in totals.items())


def families(ranks: Sequence[RankStats]) -> Iterator[tuple[Metric, Samples]]:
    """Yields all of RANK_METRICS with the samples of `ranks`, of which no two may have the same job, owner and
    number."""
    samples = {metric.name: Samples() for metric in RANK_METRICS}
    for rank in ranks:
        for name, labels, value in _samples(rank):
            samples[f"laggard_rank_{name}"].append(((rank.job_id, str(rank.owner), str(rank.rank), *labels), value))
    return ((metric, samples[metric.name]) for metric in RANK_METRICS)


def _samples(rank: RankStats) -> Iterator[tuple[str, Labels, float]]:
    yield "info", (rank.node, str(rank.local_rank), rank.gpu or "", str(rank.world_size), str(rank.attempt)), 1.0
    yield "up", (), float(rank.up)
    yield "steps_total", (), rank.steps
    yield "step_seconds_total", (), rank.step_seconds
    yield "own_seconds_total", (), rank.own_seconds
    yield "input_seconds_total", (), rank.phase_seconds[PHASES.index("input")]
    yield "last_progress_timestamp_seconds", (), rank.last_progress
    yield "in_flight_seconds", (), rank.in_flight_seconds
    yield "lost_events_total", (), rank.lost
    if rank.last_beat is not None:
        yield "last_beat_timestamp_seconds", (), rank.last_beat
    for name, spent in zip(PHASES, rank.phase_seconds, strict=True):
        yield "phase_seconds_total", (name,), spent
    for total in rank.collectives:
        labels = (total.op, total.group)
        yield "collectives_total", labels, total.count
        yield "collective_seconds_total", labels, total.seconds
        yield "collective_bytes_total", labels, total.bytes
