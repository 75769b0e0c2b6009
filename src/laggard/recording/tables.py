"""All timed records of a recorded job: each once, by rank, in the order of its steps. A step has its own time by
phase and the time waited. Pure.

Lines that were doubled and two processes under one rank number are found. Where a rank's clock was set back, durations
on it stay right, but for one step; what overlaps earlier steps by its times would be taken for a wait of these.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.recording.records import COLLECTIVE_COLUMNS, OTHER, SPAN_COLUMNS, STEP_COLUMNS, Columns, Table, concatenate


def in_order_of_steps(tables: Sequence[Table]) -> tuple[tuple[Table, ...], tuple[int, ...]]:
    """`tables`, each ordered by rank, and the ranks whose clock was set back between two steps: from there on their
    times are moved to where the step before ended."""
    suspects = sorted(set().union(*map(_set_back, tables)))
    moved = [rank for rank in suspects if _move(tables, rank)]
    return tuple(tables), tuple(moved)


def _set_back(table: Table) -> set[int]:
    """The ranks of which a record's step is later than the one before, and its time earlier than all of that step's
    before it."""
    rank, step, start = table["rank"], table["step"], table["start"]
    if not len(rank):
        return set()
    changes = np.flatnonzero((rank[1:] != rank[:-1]) | (step[1:] != step[:-1])) + 1
    first = np.concatenate(([0], changes))
    began = np.fmin.reduceat(start, first)
    back = (rank[first[1:]] == rank[first[:-1]]) & (step[first[1:]] > step[first[:-1]]) & (step[first[:-1]] >= 0)
    back &= began[1:] < began[:-1]
    return set(rank[first[1:][back]].tolist())


def _move(tables: Sequence[Table], rank: int) -> bool:
    """Moves the times of `rank` in place; whether any had to be."""
    rows = [np.flatnonzero((table["rank"] == rank) & (table["step"] >= 0)) for table in tables]
    step, start, end = (
        np.concatenate([table[name][own] for table, own in zip(tables, rows, strict=True)])
        for name in ("step", "start", "end")
    )
    numbers, place = np.unique(step, return_inverse=True)
    began, ended = np.full(len(numbers), np.nan), np.full(len(numbers), np.nan)
    np.fmin.at(began, place, start)
    np.fmax.at(ended, place, end)
    back = np.diff(began) < 0
    if not back.any():
        return False
    until = np.fmax(ended, began)[:-1]  # a step of which nothing ended
    shifts = np.concatenate(([0.0], np.cumsum(np.where(back, until - began[1:], 0.0))))
    for table, own in zip(tables, rows, strict=True):
        by = shifts[np.searchsorted(numbers, table["step"][own])]
        table["start"][own] += by
        table["end"][own] += by
    return True


class Deduplicated(NamedTuple):
    """`table` has each record once. `repeated` counts the records that were there before, word for word; `conflicting`
    has the rank of each record that another contradicts."""

    table: Table
    repeated: int
    conflicting: NDArray[np.int32]


def without_duplicates(table: Table, keys: Sequence[str]) -> Deduplicated:
    """The records of `table` whose `keys` no record before has. A record that lacks a `seq` has none like it."""
    nothing = np.zeros(0, np.int32)
    if not len(table["rank"]):
        return Deduplicated(table, 0, nothing)
    hashes = _hashes([table[name] for name in keys])
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    before, after = order[again], order[again + 1]
    same = _equal(table, keys, before, after)
    if "seq" in keys:
        same &= table["seq"][after] >= 0
    before, after = before[same], after[same]
    if not len(after):
        return Deduplicated(table, 0, nothing)
    alike = _equal(table, [name for name in table if name not in keys and name != "own"], before, after)
    keep = np.ones(len(hashes), np.bool_)
    keep[after] = False
    kept = {name: values[keep] for name, values in table.items()}
    return Deduplicated(kept, int(alike.sum()), table["rank"][after[~alike]])


def _hashes(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Equal for equal rows; the finalizer of splitmix64 mixes each column in."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = column.view(np.uint64) if column.dtype == np.float64 else column.astype(np.int64).view(np.uint64)
        mixed = (mixed ^ bits) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _equal(table: Table, names: Sequence[str], one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.bool_]:
    equal = np.ones(len(one), np.bool_)
    for name in names:
        left, right = table[name][one], table[name][other]
        equal &= (left == right) | ((left != left) & (right != right))  # nan equals nan here
    return equal


Times = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Intervals [I] of a rank's time, on its own clock, in order, of which no two overlap."""

    starts: Times
    ends: Times
    before: Times  # how long all before each of them are together

    @classmethod
    def of(cls, starts: Times, ends: Times) -> Intervals:
        """`starts` and `ends` [N], in any order: those that overlap or touch are one."""
        order = np.argsort(starts, kind="stable")
        starts, latest = starts[order], np.maximum.accumulate(ends[order])
        apart = np.ones(len(starts), np.bool_)
        apart[1:] = starts[1:] > latest[:-1]
        first = np.flatnonzero(apart)
        starts, ends = starts[first], latest[np.append(first[1:], len(latest)) - 1] if len(latest) else latest
        return cls(starts, ends, np.concatenate(([0.0], np.cumsum(ends - starts)[:-1])) if len(starts) else starts)

    def until(self, times: Times) -> Times:
        """The length of the intervals that had passed by each of `times`."""
        if not len(self.starts):
            return np.zeros(len(times))
        place = np.searchsorted(self.starts, times, "right") - 1
        within = np.minimum(times, self.ends[place]) - self.starts[place]
        return np.where(place < 0, 0.0, self.before[place] + within)

    def within(self, starts: Times, ends: Times) -> Times:
        """The length of the intervals that lies between each of `starts` and of `ends`."""
        return self.until(ends) - self.until(starts)


def _waiting(collectives: Table) -> Intervals:
    """The intervals in which a rank waited: sends and receives that it waits for together are one wait. A wait is over
    when its collective ends, and began `waited` before; where that is not known, when the collective began."""
    finished = np.isfinite(collectives["end"])
    starts, ends, waited = (collectives[name][finished] for name in ("start", "end", "waited"))
    return Intervals.of(ends - np.where(np.isnan(waited), ends - starts, waited), ends)


class RankSteps(NamedTuple):
    """S steps of one rank, ascending by number. Times in seconds. `sparse`: whether their bounds are those of its
    spans and collectives, since it has no step records."""

    numbers: NDArray[np.int64]  # [S]
    starts: Times  # [S]: on the rank's own clock
    seconds: Times  # [S]
    phases: Times  # [S, len(PHASES)]: own time
    waited: Times  # [S]: in collectives
    work: Times  # [S]: elements of the model's inputs, 0 where they were not seen
    sparse: bool


def rank_steps(steps: Table, spans: Table, collectives: Table, own: Sequence[tuple[float, ...]]) -> RankSteps:
    """The steps of one rank from its records. `own` has the own times of steps that carry them."""
    sparse = not len(steps["step"])
    numbers, starts, ends = _gapless_bounds(spans, collectives) if sparse else _bounds(steps)
    waiting = _waiting(collectives)
    waited = waiting.within(starts, ends)
    phases = _phases(numbers, spans, waiting)
    phases[:, OTHER] += np.maximum(ends - starts - waited - phases.sum(axis=1), 0.0)
    if not sparse:
        place = np.searchsorted(numbers, steps["step"])
        for row in np.flatnonzero(steps["own"] >= 0):
            *phases[place[row]], waited[place[row]] = own[steps["own"][row]]
    work = np.zeros(len(numbers)) if sparse else steps["work"][np.unique(steps["step"], return_index=True)[1]]
    return RankSteps(numbers, starts, ends - starts, phases, waited, work, sparse)


def _bounds(steps: Table) -> tuple[NDArray[np.int64], Times, Times]:
    """The bounds of the rank's steps. A step without a record is left out where the rank has step records: it holds the
    collectives of a step that was broken off."""
    numbers, first = np.unique(steps["step"], return_index=True)
    return numbers, steps["start"][first], steps["end"][first]


def _gapless_bounds(spans: Table, collectives: Table) -> tuple[NDArray[np.int64], Times, Times]:
    """A step begins where the one before it ended: the work before a step's first collective belongs to it. Without a
    step before it, its beginning is not known, and it is left out."""
    finished = np.isfinite(collectives["end"]) & (collectives["step"] >= 0)
    step = np.concatenate((spans["step"], collectives["step"][finished]))
    end = np.concatenate((spans["end"], collectives["end"][finished]))
    numbers, place = np.unique(step, return_inverse=True)
    latest = np.full(len(numbers), -np.inf)
    np.maximum.at(latest, place, end)
    follows = np.flatnonzero((np.diff(numbers) == 1) & (np.diff(latest) > 0))
    return numbers[follows + 1], latest[follows], latest[follows + 1]


def _phases(numbers: NDArray[np.int64], spans: Table, waiting: Intervals) -> Times:
    """[S, P]: the time of each step in spans of each phase, without the part of it that the rank waited."""
    count = len(PHASES)
    if not len(numbers) or not len(spans["step"]):
        return np.zeros((len(numbers), count))
    place = np.minimum(np.searchsorted(numbers, spans["step"]), len(numbers) - 1)
    known = numbers[place] == spans["step"]
    seconds = spans["end"] - spans["start"] - waiting.within(spans["start"], spans["end"])
    cells = (place * count + spans["phase"])[known]
    found: Times = np.bincount(cells, seconds[known], len(numbers) * count).astype(np.float64)
    return found.reshape(len(numbers), count)


CONTRADICTED_SHARE = 0.01
"""The share of a rank's records (CONTRADICTED_RECORDS at least) that must contradict each other for it to be two
processes."""
CONTRADICTED_RECORDS = 3


@dataclasses.dataclass(frozen=True)
class Tables:
    """The timed records of a job, ordered by rank. `contradicted` are the ranks whose records contradict each other,
    `set_back` those whose clock was set back."""

    steps: Table
    spans: Table
    collectives: Table
    own: Sequence[tuple[float, ...]]
    rejected: Counter[str]
    repeated: int
    contradicted: set[int]
    set_back: tuple[int, ...] = ()

    @property
    def waits_recorded(self) -> bool:
        """Whether anything says when a rank waited, so that waiting can be told from work."""
        return bool(len(self.collectives["rank"])) or bool((self.steps["own"] >= 0).any())

    def rank_steps(self, ranks: NDArray[np.int64]) -> list[RankSteps]:
        """The steps of each of `ranks`."""
        return [
            rank_steps(
                _of_rank(self.steps, rank), _of_rank(self.spans, rank), _of_rank(self.collectives, rank), self.own
            )
            for rank in ranks
        ]

    def collectives_of(self, ranks: NDArray[np.int64], groups: tuple[ProcessGroup, ...]) -> Collectives:
        """The collectives of `ranks` [R], ascending, which are in `groups`."""
        table = self.collectives
        known = np.isin(table["rank"], ranks)
        kept = table if known.all() else {name: values[known] for name, values in table.items()}
        return Collectives(
            column=np.searchsorted(ranks, kept["rank"]).astype(np.int32),
            step=kept["step"],
            group=kept["group"],
            op=kept["op"],
            seq=kept["seq"],
            size=kept["bytes"],
            peer=kept["peer"],
            start=kept["start"],
            end=kept["end"],
            waited=kept["waited"],
            groups=groups,
        )

    def last_step(self, rank: int) -> int | None:
        """The last step that the rank finished; None where it finished none."""
        steps = _of_rank(self.steps, rank)["step"]
        return int(steps.max()) if len(steps) else None

    def last_end(self, rank: int) -> float | None:
        """The time at which the rank's last step ended, on its clock."""
        ends = _of_rank(self.steps, rank)["end"]
        return float(ends.max()) if len(ends) else None

    def unfinished(self, rank: int) -> Unfinished | None:
        """The rank's last collective, where that never finished."""
        table = _of_rank(self.collectives, rank)
        if not len(table["rank"]):
            return None
        last = int(np.nanargmax(table["start"]))
        if np.isfinite(table["end"][last]) or table["op"][last] < 0:
            return None
        return Unfinished(int(table["op"][last]), int(table["group"][last]), int(table["seq"][last]))

    def entered(self, rank: int) -> dict[tuple[int, int, int], int]:
        """The number of collectives of each operation and group (their places in OPS and among the names), and peer,
        that the rank has entered by its records."""
        table = _of_rank(self.collectives, rank)
        known = (table["op"] >= 0) & (table["seq"] >= 0)
        lanes = np.stack([table[name][known].astype(np.int64) for name in ("op", "group", "peer")], axis=1)
        distinct, lane = np.unique(lanes, axis=0, return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.maximum.at(counts, lane.reshape(-1), table["seq"][known] + 1)
        return {
            (op, group, peer): count
            for (op, group, peer), count in zip(distinct.tolist(), counts.tolist(), strict=True)
        }


class Unfinished(NamedTuple):
    """A collective that never finished: its operation's place in OPS, its group's among the names, its number."""

    op: int
    group: int
    seq: int


def merge_parts(parts: Sequence[Columns]) -> Tables:
    """The records of all parts of one job."""
    own: list[tuple[float, ...]] = []
    steps, spans, collectives = [], [], []
    for part in parts:
        shifted = [{**table, "own": np.where(table["own"] < 0, -1, table["own"] + len(own))} for table in part.steps]
        own += part.own
        rewinds = list(_rewinds(shifted))
        steps += [_without_rewound(table, rewinds) for table in shifted]
        spans += [_without_rewound(table, rewinds) for table in part.spans]
        collectives += [_without_rewound(table, rewinds) for table in part.collectives]
    once = _once(steps, STEP_COLUMNS, ("rank", "step"))
    spans_once = _once(spans, SPAN_COLUMNS, ("rank", "step", "phase", "start", "end"))
    collectives_once = _once(collectives, COLLECTIVE_COLUMNS, ("rank", "group", "op", "peer", "seq"))
    each = (once, spans_once, collectives_once)
    (step_table, span_table, collective_table), set_back = in_order_of_steps([found.table for found in each])
    return Tables(
        step_table,
        span_table,
        collective_table,
        own,
        sum((part.rejected for part in parts), Counter()),
        sum(found.repeated for found in each),
        _contradicted(each),
        set_back,
    )


class _Rewind(NamedTuple):
    """A process whose steps went back to `step` at `start`, as where it loads a checkpoint."""

    rank: int
    step: int
    start: float


def _rewinds(tables: Sequence[Table]) -> Iterator[_Rewind]:
    """Where the steps of a rank in one file go back while its clock goes on. Where they do so all the time, two
    processes write under one number."""
    table = concatenate(tables, STEP_COLUMNS)
    for rank in np.unique(table["rank"]).tolist():
        rows = np.flatnonzero(table["rank"] == rank)
        step, start = table["step"][rows], table["start"][rows]
        back = np.flatnonzero((np.diff(step) < 0) & (np.diff(start) > 0)) + 1
        if len(back) <= max(CONTRADICTED_RECORDS, CONTRADICTED_SHARE * len(rows)):
            yield from (_Rewind(rank, int(step[place]), float(start[place])) for place in back)


def _without_rewound(table: Table, rewinds: Sequence[_Rewind]) -> Table:
    """The records but for those of steps that were done again."""
    kept = np.ones(len(table["rank"]), np.bool_)
    for each in rewinds:
        kept &= (table["rank"] != each.rank) | (table["step"] < each.step) | (table["start"] >= each.start)
    return table if kept.all() else {name: values[kept] for name, values in table.items()}


def _once(tables: Sequence[Table], columns: dict[str, Any], keys: Sequence[str]) -> Deduplicated:
    found = without_duplicates(concatenate(tables, columns), keys)
    ranks = found.table["rank"]
    if (ranks[1:] < ranks[:-1]).any():
        order = np.argsort(ranks, kind="stable")
        found = found._replace(table={name: values[order] for name, values in found.table.items()})
    return found


def _contradicted(tables: Sequence[Deduplicated]) -> set[int]:
    contradictions = Counter(np.concatenate([each.conflicting for each in tables]).tolist())
    ranks = set()
    for rank, count in contradictions.items():
        records = sum(len(_of_rank(each.table, rank)["rank"]) for each in tables)
        if count >= max(CONTRADICTED_RECORDS, CONTRADICTED_SHARE * records):
            ranks.add(int(rank))
    return ranks


def _of_rank(table: Table, rank: int) -> Table:
    first, last = np.searchsorted(table["rank"], (rank, rank + 1))
    return {name: values[first:last] for name, values in table.items()}
