"""The metrics of ranks: their names, and their samples from whatever knows a rank. Standard library only: the agent
serves them for a node, a training process for itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from laggard.constants import OPS, PHASES

MOST_PAIRS: Final = 10
"""Operations by role that are told apart; a job with tensor, pipeline and expert parallelism has about ten. Lanes keep
their order for good, so that a pair never moves into or out of the rest: its counters do not go back."""

OTHER: Final = "other"

Labels = tuple[str, ...]
Samples = list[tuple[Labels, float]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric family. Names follow Prometheus' conventions: base units, counters end in `_total`."""

    name: str
    kind: str  # gauge, counter, info
    help: str
    labels: tuple[str, ...] = ()


_RANK = ("job_id", "rank")

RANK_METRICS: tuple[Metric, ...] = (
    Metric(
        "laggard_rank_info",
        "gauge",
        "Who a rank is; always 1. Join on job_id and rank.",
        (*_RANK, "hostname", "local_rank", "gpu", "world_size", "attempt"),
    ),
    Metric("laggard_rank_up", "gauge", "1 while the rank's process holds its file's lock.", _RANK),
    Metric("laggard_rank_steps_total", "counter", "Optimizer steps done.", _RANK),
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
        "When the rank last gave a sign of life, Unix time; it does so about once a second, also while it waits.",
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


class Total(Protocol):
    """The collectives of an operation and a role."""

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


class Row(NamedTuple):
    """What is told of one rank. Times in seconds, moments in Unix time; `last_beat` None: it gave no sign yet."""

    job_id: str
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
    collectives: Sequence[Total]
    lost: int


@dataclasses.dataclass(frozen=True)
class Sum:
    """A Total."""

    op: str
    group: str  # the role
    count: int
    seconds: float
    bytes: int


def sums(lanes: Iterable[tuple[str, str]], numbers: Iterable[Sequence[int]]) -> tuple[Sum, ...]:
    """By operation and role, in the order in which the rank first used them. `lanes`: each lane's operation and role;
    `numbers`: its count, nanoseconds, bytes."""
    totals: dict[tuple[str, str], list[int]] = {}
    for (op, role), (count, spent, size) in zip(lanes, numbers, strict=False):
        pair = (op if op in OPS else OTHER, role or OTHER)
        if pair not in totals and len(totals) >= MOST_PAIRS:
            pair = (OTHER, OTHER)
        total = totals.setdefault(pair, [0, 0, 0])
        for place, number in enumerate((count, spent, size)):
            total[place] += number
    return tuple(Sum(*pair, count, spent / 1e9, size) for pair, (count, spent, size) in totals.items())


def families(rows: Sequence[Row]) -> Iterator[tuple[Metric, Samples]]:
    """All of RANK_METRICS with the samples of these ranks, of which no two have the same job and number."""
    samples = {metric.name: Samples() for metric in RANK_METRICS}
    for row in rows:
        for name, labels, value in _samples(row):
            samples[f"laggard_rank_{name}"].append(((row.job_id, str(row.rank), *labels), value))
    return ((metric, samples[metric.name]) for metric in RANK_METRICS)


def _samples(row: Row) -> Iterator[tuple[str, Labels, float]]:
    yield "info", (row.node, str(row.local_rank), row.gpu or "", str(row.world_size), str(row.attempt)), 1.0
    yield "up", (), float(row.up)
    yield "steps_total", (), row.steps
    yield "step_seconds_total", (), row.step_seconds
    yield "own_seconds_total", (), row.own_seconds
    yield "input_seconds_total", (), row.phase_seconds[PHASES.index("input")]
    yield "last_progress_timestamp_seconds", (), row.last_progress
    yield "in_flight_seconds", (), row.in_flight_seconds
    yield "lost_events_total", (), row.lost
    if row.last_beat is not None:
        yield "last_beat_timestamp_seconds", (), row.last_beat
    for name, spent in zip(PHASES, row.phase_seconds, strict=True):
        yield "phase_seconds_total", (name,), spent
    for total in row.collectives:
        labels = (total.op, total.group)
        yield "collectives_total", labels, total.count
        yield "collective_seconds_total", labels, total.seconds
        yield "collective_bytes_total", labels, total.bytes
