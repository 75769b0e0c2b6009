"""The counters of a job's ranks at a few moments, as arrays, and what a step took between two of them. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.prometheus.client import Labels, Series
from laggard.kit.constants import PHASES
from laggard.kit.limits import MAX_WORLD
from laggard.kit.words import listed, ranks_text
from laggard.locate.job_timings import WARM_UP_STEPS, JobTimings, NodeFindings, RankState
from laggard.locate.medians import last_axis_median
from laggard.locate.shares import MIN_COST
from laggard.model import MAX_NAMED_RANKS, Note

Floats = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]

INTERVALS = 9
"""The number of intervals that are compared: one more than a verdict needs at least."""

_MAX_DIGITS = 8

_ROUNDED = 0.01
"""The share of the step by which a moment in an answer may be later than that asked for: milliseconds are rounded. It
may be earlier by almost a step: Thanos' query frontend moves start and end back to multiples of the step
(--query-range.align-range-with-step, its default)."""


class Moments(NamedTuple):
    """Moments that are `step` seconds apart, the last at `end` (Unix seconds)."""

    end: float
    step: float
    intervals: int = INTERVALS

    @property
    def start(self) -> float:
        return self.end - self.intervals * self.step


class Table:
    """The values of one metric: [T, R], nan where there is none. Two series of one rank (two Prometheus that write into
    one store, an agent and the rank itself) are one: at each moment the larger value, which is the later scrape's of a
    counter. So a replica that has died says nothing while the store still repeats its last value."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._values = np.full((16, moments.intervals + 1), np.nan)
        self._count = 0
        self._labels: list[tuple[NDArray[np.int64], list[Labels]]] = []

    def add(self, series: Series) -> None:
        numbers = rank_numbers(series.labels)
        self._labels.append((numbers, series.labels))
        self._make_room(int(numbers.max(initial=-1)) + 1)
        rows = np.repeat(numbers, series.counts)
        places = np.ceil((series.times - self._moments.start) / self._moments.step - _ROUNDED).astype(np.int64)
        right = (rows >= 0) & (places >= 0) & (places <= self._moments.intervals)
        np.fmax.at(self._values, (rows[right], places[right]), series.values[right])

    def _make_room(self, count: int) -> None:
        if count > len(self._values):
            more = np.full((max(count, 2 * len(self._values)) - len(self._values), self._moments.intervals + 1), np.nan)
            self._values = np.concatenate((self._values, more))
        self._count = max(self._count, count)

    def of(self, count: int) -> Floats:
        """[T, R] of the first `count` ranks."""
        self._make_room(count)
        values: Floats = self._values[:count].T
        return values

    def machines(self) -> list[str]:
        """[R]: the address that each rank was scraped at, without its port: one for each machine."""
        found = [""] * self._count
        for numbers, labels in self._labels:
            for number, each in zip(numbers.tolist(), labels, strict=True):
                if number >= 0:
                    found[number] = machine(each.instance)
        return found

    @property
    def count(self) -> int:
        """One more than the largest number of a rank."""
        return self._count


def machine(instance: str) -> str:
    """The address without its port: one for all that is scraped on a machine."""
    return instance.rpartition(":")[0] or instance


def rank_numbers(labels: Sequence[Labels]) -> NDArray[np.int64]:
    """[N]: the numbers of the ranks; -1 where a label is none."""
    texts = [each.rank for each in labels]
    joined = "".join(texts)
    if texts and joined.isascii() and joined.isdigit() and all(texts) and max(map(len, texts)) < _MAX_DIGITS:
        numbers = np.array(list(map(int, texts)), np.int64)
    else:
        numbers = np.array([_rank_number(text) for text in texts], np.int64)
    return np.where(numbers < MAX_WORLD, numbers, -1)


def _rank_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else -1


@dataclasses.dataclass(frozen=True)
class Counters:
    """A job's ranks, those that have counters. [T, R] at T moments, nan where there is no sample; seconds but for
    `steps`. `other` is None where it was not asked for. `step_seconds` [T, F] are of a few ranks: a step takes all
    equally long. `machines` [R]: the address of each, None where there is none."""

    ranks: NDArray[np.int64]
    machines: tuple[str | None, ...]
    steps: Floats
    own: Floats
    input: Floats
    other: Floats | None
    step_seconds: Floats
    few_steps: Floats  # [T, F]: the steps of those few


def part_of(counters: Counters, moments: Sequence[int], ranks: Mask) -> Counters:
    """The counters at some of their moments, of some of their ranks."""
    of_ranks = np.ix_(np.array(moments), np.flatnonzero(ranks))
    return Counters(
        ranks=counters.ranks[ranks],
        machines=tuple(itertools.compress(counters.machines, ranks)),
        steps=counters.steps[of_ranks],
        own=counters.own[of_ranks],
        input=counters.input[of_ranks],
        other=None if counters.other is None else counters.other[of_ranks],
        step_seconds=counters.step_seconds[list(moments)],
        few_steps=counters.few_steps[list(moments)],
    )


class Intervals(NamedTuple):
    """The times of a step, on average over each interval: [K, R], nan where the rank made none or its counters began
    anew. `work` is own time that has a phase."""

    made: Floats  # [K, R]: how many steps
    work: Floats
    input: Floats
    other: Floats
    step: Floats  # [K]


def intervals(counters: Counters) -> Intervals:
    made = differences(counters.steps)
    made = np.where(made > 0, made, np.nan)
    own = differences(counters.own) / made
    # Where time of no phase was asked for and is not there, what is work is not known.
    other = np.zeros_like(own) if counters.other is None else differences(counters.other) / made
    few = differences(counters.few_steps)
    step = last_axis_median(differences(counters.step_seconds) / np.where(few > 0, few, np.nan))
    return Intervals(made, np.maximum(own - other, 0.0), differences(counters.input) / made, other, step)


def lacking(counters: Counters) -> Mask:
    """[R]: the ranks of which the store has some counters at a moment, and not all: it has just begun, or has lost a
    series. An agent serves all of a rank's together."""
    of_ranks = [counters.steps, counters.own, counters.input]
    of_ranks += [] if counters.other is None else [counters.other]
    count = np.isfinite(np.stack(of_ranks)).sum(axis=0)
    found: Mask = ((count > 0) & (count < len(of_ranks))).any(axis=0)
    return found


def durations_lack(counters: Counters) -> bool:
    """Whether at a moment there are steps and no step's duration."""
    steps, seconds = (np.isfinite(it).any(axis=1) for it in (counters.few_steps, counters.step_seconds))
    return bool((steps & ~seconds).any())


def differences(values: Floats) -> Floats:
    """[K, R]: from one moment to the next; nan where a counter began anew."""
    found = np.diff(values, axis=0)
    return np.where(found >= 0, found, np.nan)


class Known(NamedTuple):
    """What the store knows of ranks that are looked at more closely: [T, R, len(PHASES)] the counters of their phases,
    nan where there are none; each rank's place; the machines' findings, by node."""

    phases: Floats
    places: Mapping[int, tuple[str | None, str | None]]  # by rank: the node's name and the GPU
    findings: Mapping[str, NodeFindings]


def as_timings(
    job_id: str,
    counters: Counters,
    world_size: int,
    known: Known | None = None,
    states: Sequence[RankState] = (),
) -> JobTimings:
    """The intervals in place of steps: each is the average of those in it. Where phases are not known, all work is in
    `forward`. `states`: those of the ranks where the job stands still, so that no step tells anything."""
    found = intervals(counters)
    made = last_axis_median(found.made)
    phases = np.zeros((*found.made.shape, len(PHASES)))
    for name, values in (("input", found.input), ("forward", found.work), ("other", found.other)):
        phases[:, :, PHASES.index(name)] = values
    if known is not None:
        exact = differences(known.phases) / found.made[:, :, None]
        is_known: Mask = np.any(np.isfinite(exact), axis=2)
        phases = np.where(is_known[:, :, None], np.nan_to_num(exact), phases)
    step = np.where(np.isfinite(phases.sum(axis=2)), found.step[:, None], np.nan)
    phases[np.isnan(step)] = np.nan
    places = known.places if known else {}
    ranks = [int(rank) for rank in counters.ranks]
    who = [places.get(rank, (machine, None)) for rank, machine in zip(ranks, counters.machines, strict=True)]
    return JobTimings(
        job_id=job_id,
        world_size=world_size,
        steps=_numbers(counters),
        ranks=counters.ranks,
        nodes=tuple(node for node, _ in who),
        gpus=tuple(gpu for _, gpu in who),
        step_seconds=step,
        phase_seconds=phases,
        waited_seconds=np.maximum(step - phases.sum(axis=2), 0.0),
        states=tuple(states) or (RankState("running", None, None, None),) * len(ranks),
        findings_by_node=known.findings if known else {},
        steps_recorded=not states,
        steps_in_each=float(np.median(made[np.isfinite(made)])) if np.isfinite(made).any() else 1.0,
    )


def last_steps(counters: Counters) -> Floats:
    """[R]: how many steps each has made; 0 where that is not known."""
    found: Floats = np.nan_to_num(np.fmax.reduce(counters.steps, axis=0))
    return found


def _numbers(counters: Counters) -> NDArray[np.int64]:
    """[K]: the step that the job was at when each interval began, ascending also where it made none. Above those that
    count as warm-up: a counter that is seen to grow has been there before."""
    begins = np.nan_to_num(last_axis_median(counters.steps[:-1])).astype(np.int64) + WARM_UP_STEPS
    places = np.arange(len(begins))
    return np.asarray(np.maximum.accumulate(begins - places) + places)


# The ranks of a large job that are looked at closely, since they stand out at three moments, and some others. Pure.

MAX_UNSCREENED_RANKS = 2048
"""The most ranks of a job that is looked at closely as a whole."""

MAX_CANDIDATES = 1024
PEER_RANKS = 512

MIN_EXCESS_RATIO = MIN_COST
"""The share of the step by which a rank has to exceed the median in half of the time to be looked at: all that are slow
enough to be accused do."""


def screened(counters: Counters) -> list[int]:
    """The numbers of the ranks to be looked at closely."""
    if len(counters.ranks) <= MAX_UNSCREENED_RANKS:
        return [int(rank) for rank in counters.ranks]
    found = intervals(counters)
    busy = found.work + found.input
    known = np.isfinite(busy).any(axis=1)
    if not known.any():
        return [int(rank) for rank in counters.ranks[:: max(1, len(counters.ranks) // PEER_RANKS)]]
    excess = (busy[known] - np.nanmedian(busy[known], axis=1, keepdims=True)) / found.step[known, None]
    score = np.where(np.isfinite(excess), excess, -np.inf).max(axis=0)
    best = np.argsort(-score)[:MAX_CANDIDATES]
    candidates = best[score[best] > MIN_EXCESS_RATIO]
    spread = np.arange(0, len(counters.ranks), max(1, len(counters.ranks) // PEER_RANKS))
    chosen = np.unique(np.concatenate((candidates, _mates(counters, candidates), spread)))
    return [int(rank) for rank in counters.ranks[chosen]]


def _mates(counters: Counters, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The columns of all ranks on the candidates' machines; at most MAX_CANDIDATES, those of the worst first."""
    order: dict[str, int] = {}
    for column in candidates.tolist():
        if (machine := counters.machines[column]) is not None:
            order.setdefault(machine, len(order))
    mates = [(order[machine], column) for column, machine in enumerate(counters.machines) if machine in order]
    return np.array([column for _, column in sorted(mates)[:MAX_CANDIDATES]], np.int64)


def silent_note(numbers: NDArray[np.int64], nodes: Sequence[str | None], absent: Mask) -> Note:
    places = sorted({nodes[int(column)] or "an unknown machine" for column in np.flatnonzero(absent)})
    ranks = tuple(int(number) for number in numbers[:MAX_NAMED_RANKS])
    where = listed(places, 4)
    text = f"{ranks_text(int(number) for number in numbers)} on {where} no longer scraped, or later: not judged"
    return Note("silent_ranks", text, ranks)
