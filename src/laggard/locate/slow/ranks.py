"""Decides which ranks and machines are slower than their peers. Pure.

Machines come first: where most ranks of a machine are slow, it is the culprit and not its ranks. Culprits are then
taken out of everybody's peers, and the others are compared again, so that none hides behind a slower one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.majority import grouped
from laggard.locate.job_timings import Floats
from laggard.locate.medians import as_slice, last_axis_median, median, median_over_steps
from laggard.locate.shares import MIN_COST, MOST
from laggard.locate.slow.steps import MIN_STEPS, Steps, node_numbers
from laggard.locate.slow.tested import MIN_PART, Found, Judged, Part, Turns, Units, judge, segment

STEADY_SHARE: Final = 0.6
"""The share of the steps since a culprit became slow in which it is so from which on it is slow all the time. At HALF,
four golden cases of what comes and goes are told as if it stayed; at MOST, a loader that is late in seven steps of ten,
by more or less, is told as one that comes and goes."""

MAX_ROUNDS: Final = 8
"""The most rounds in which the others are compared again after culprits were taken out of their peers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Slow:
    """A rank, or a machine with its ranks, that is slow from step index `since` to before `until`."""

    columns: tuple[int, ...]
    whole_host: bool
    since: int
    until: int
    excess: float  # seconds, in the steps in which it is slow
    margin: float  # 2 where it is just accused, and 1 more for each tenth of that chance
    series: Floats  # [S]: its excess in each step, 0 where it is not slow
    needed: int  # the steps that would decide, where it is only doubted
    hits: NDArray[np.bool_] | None = None  # [S]: in which steps it is slow, where it is so now and then only


class Compared(NamedTuple):
    """The slow ranks and machines, the slowest first, and the one that is neither accused nor harmless; where there are
    none, those that are slow by turns."""

    slow: list[Slow]
    doubted: Slow | None = None
    turns: Turns = Turns()


def slow_ranks(steps: Steps, nodes: tuple[str | None, ...]) -> Compared:
    """The ranks and machines that cost the job time, now or before."""
    found: list[Slow] = []
    machine, culprits = node_numbers(nodes), np.zeros(steps.busy.shape[1], np.bool_)
    doubted, turns = None, Turns()
    for _ in range(MAX_ROUNDS):
        new = _slow_machine(steps, machine, culprits)
        if not new:
            judged = _judged_ranks(steps, culprits)
            turns = judged.turns
            new = [_slow(steps, (each.unit,), False, each, steps.excess[:, each.unit]) for each in judged.slow]
            if (one := judged.doubted) is not None:
                doubted = _slow(steps, (one.unit,), False, one, steps.excess[:, one.unit])
        found += new
        columns = [column for each in new for column in each.columns]
        culprits[columns] = True
        # Those whose peers' median the new culprits may have moved. Fewer than one in a hundred move it by less than an
        # eightieth of a step's noise: by half their share of the ranks, over the density there, 0.4 of normal noise.
        taken = np.bincount(steps.peers.number[columns], minlength=len(culprits))[steps.peers.number]
        disturbed = (taken > 0) & (taken >= MIN_COST * steps.peers.sizes)
        if not new or not (disturbed.any() or any(each.whole_host for each in new)):
            break
        steps = steps.without(culprits, disturbed)
    if doubted is not None and culprits[list(doubted.columns)].any():
        doubted = None
    told = sorted(_by_machine(steps, found, machine), key=lambda each: -each.excess)
    return Compared(told, doubted, turns if not told else Turns())


def fast_ranks(steps: Steps) -> tuple[int, ...]:
    """The columns of ranks that are as surely faster than their peers as others are slower, where they are a quarter of
    all: there are two kinds. Where a majority is slow, the median is its own: that of all peers, on whatever machine,
    since a crowded one would be compared with another mixture."""
    steps = steps.regrouped(steps.peers.number, (None,) * len(steps.peers.number))
    several = (np.isfinite(steps.excess).sum(axis=0) >= MIN_PART) & (steps.peers.sizes > 2)
    found = judge(Units(-steps.excess, several, kinds=True), steps.duration, steps.live, steps.each).slow
    fast = tuple(sorted(each.unit for each in found))
    return fast if len(fast) >= (1 - MOST) * max(2, int(several.sum())) else ()


def _judged_ranks(steps: Steps, culprits: NDArray[np.bool_]) -> Judged:
    known = np.isfinite(steps.excess).sum(axis=0) >= MIN_PART
    units = Units(steps.excess, known & ~culprits, steps.earlier_noise, steps.peers.number, steps.past.error)
    return judge(units, steps.duration, steps.live, steps.each)


def _slow_machine(steps: Steps, machine: NDArray[np.int64], culprits: NDArray[np.bool_]) -> list[Slow]:
    """The machine, if there is one, that costs the most of those most of whose ranks are slow; at most one, since it
    may make others look slow."""
    columns = _of_machines(steps, machine, culprits)
    if len(columns) < 2 or max(map(len, columns)) < 2:
        return []
    series = _medians(steps.excess, columns)
    units = _units(steps, machine, columns, series)
    found = judge(units, steps.duration, steps.live, steps.each).slow
    for each in sorted(found, key=lambda it: -it.cost * len(columns[it.unit])):
        own = steps.excess[each.part.begin : each.part.end, columns[each.unit]]
        half = each.level * median(steps.duration) / 2
        if (np.nansum(own, axis=0) > half * np.isfinite(own).sum(axis=0)).mean() >= MOST:
            return [_slow(steps, tuple(columns[each.unit].tolist()), True, each, series[:, each.unit])]
    return []


def _of_machines(steps: Steps, machine: NDArray[np.int64], culprits: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """The columns of each machine's ranks that are no culprits; and of those with the same work, where some of a
    machine have other work: its host may be slow at what these alone do, as at loading the data."""
    left = np.flatnonzero(~culprits)
    here = machine[left]
    work = steps.peers.number[left] + here * (int(steps.peers.number.max()) + 1)
    ranks = np.bincount(here)
    parts = [part for part in _alike(left, work) if 1 < len(part) < ranks[machine[part[0]]]]
    return _alike(left, here) + parts


def _units(steps: Steps, machine: NDArray[np.int64], columns: Sequence[NDArray[np.int64]], series: Floats) -> Units:
    """The machines, and parts of them, that have peers elsewhere."""
    number, sizes = steps.peers.number, np.array(list(map(len, columns)))
    _, pair, here = np.unique(number * (1 + int(machine.max())) + machine, return_inverse=True, return_counts=True)
    elsewhere = (steps.peers.sizes > here[pair])[np.concatenate(columns)]
    judged = (sizes >= 2) & np.logical_or.reduceat(elsewhere, np.cumsum(sizes) - sizes)
    first = number[[each[0] for each in columns]]
    return Units(
        series, judged, work=first * (1 + int(sizes.max())) + sizes, errors=_errors(steps, columns, sizes), kinds=True
    )


def _errors(steps: Steps, columns: Sequence[NDArray[np.int64]], sizes: NDArray[np.int64]) -> Floats:
    """[U]: the standard error of the median of so many ranks, normal ones, that differ as those of one machine do."""
    level, begins = np.nan_to_num(steps.excess).mean(axis=0)[np.concatenate(columns)], np.cumsum(sizes) - sizes
    apart = level - np.repeat(np.add.reduceat(level, begins) / sizes, sizes)
    squares, several = np.add.reduceat(apart**2, begins), sizes > 1
    within: Floats = np.sqrt(median(squares[several] / (sizes[several] - 1)) * math.pi / 2 / sizes)
    return within


def _alike(columns: NDArray[np.int64], keys: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The `columns` [N] of each of their `keys` [N]."""
    order = np.argsort(keys, kind="stable")
    return np.split(columns[order], np.flatnonzero(np.diff(keys[order])) + 1)


def _medians(values: Floats, groups: Sequence[NDArray[np.int64]]) -> Floats:
    """[S, G]: the median of `values` [S, R] over the columns of each group; those of one size are computed at once."""
    result = np.empty((len(values), len(groups)), values.dtype)
    for size, places in grouped(range(len(groups)), lambda place: len(groups[place])).items():
        some = as_slice(np.concatenate([groups[place] for place in places]))
        result[:, places] = last_axis_median(values[:, some].reshape(len(values), len(places), size))
    return result


def _slow(steps: Steps, columns: tuple[int, ...], whole_host: bool, found: Found, series: Floats) -> Slow:
    step, series = median(steps.duration), np.nan_to_num(series)
    part = _described(series / step, found)
    hit = np.zeros(len(series), np.bool_)
    hit[part.begin : part.end] = series[part.begin : part.end] > found.level * step / 2
    steady = bool(hit[part.begin : part.end].mean() >= STEADY_SHARE)
    excess = median(series[part.begin : part.end] if steady else series[hit])
    own = series if steady and part.end == len(series) else np.where(hit, series, 0.0)
    margin, hits = 2 - math.log10(max(found.chance, 1e-99)), None if steady else hit
    return Slow(columns, whole_host, *part, excess, margin, own, found.needed, hits)


def _described(relative: Floats, found: Found) -> Part:
    """From when to when it was slow, as far as that is what was found; else the part in which it was. Few last steps do
    not tell that it is well again."""
    part = segment(relative, found.level)
    part = part if part.begin < found.part.end and found.part.begin < part.end else found.part
    return Part(part.begin, len(relative)) if len(relative) - part.end < MIN_STEPS else part


def is_waited_for(steps: Steps, each: Slow, beside: Sequence[Slow]) -> bool:
    """Whether the other ranks wait longer than those of the machine by at least half of what it costs, and none but the
    ones that are slow `beside` it waits as much less: that one would be waited for."""
    waited = median_over_steps(steps.waited[each.since : each.until])
    columns = np.arange(len(waited))
    others = ~np.isin(columns, each.columns)
    rest = waited[~np.isin(columns, [column for it in (each, *beside) for column in it.columns])]
    own, half = median(waited[~others]), each.excess / 2
    return median(waited[others]) > own + half and not np.nanmin(rest, initial=np.inf) < own - half


def _by_machine(steps: Steps, found: Sequence[Slow], machine: NDArray[np.int64]) -> list[Slow]:
    """`found`, with one machine in place of its ranks where these are most of its ranks, and others are not; and in
    place of those with one kind of work where it is slow at another as well."""
    sizes, told = np.bincount(machine), list(found)
    for number, group in grouped(found, lambda each: int(machine[each.columns[0]])).items():
        is_slow = len(group) >= MOST * sizes[number] or any(each.whole_host for each in group)
        if len(sizes) < 2 or len(group) < 2 or not is_slow:
            continue
        first = max(group, key=lambda each: each.margin)
        columns = tuple(sorted(column for each in group for column in each.columns))
        told = [each for each in told if each not in group]
        told.append(dataclasses.replace(first, columns=columns, whole_host=True, since=min(it.since for it in group)))
    return told
