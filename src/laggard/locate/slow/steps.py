"""The steps that a verdict is drawn from, and by how much each rank was busier than its peers in them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import PHASES, SCRIPT_PHASES
from laggard.kit.words import ranks_text, step_times_text
from laggard.locate.job_timings import WARM_UP_STEPS, Floats, JobTimings
from laggard.locate.medians import (
    MAD_TO_SIGMA,
    as_slice,
    distinct,
    last_axis_median,
    median,
    median_over_steps,
    numbered,
    others_median,
    over_phases,
)
from laggard.locate.shares import FEW, HALF, MIN_COST, MOST
from laggard.model import MAX_NAMED_RANKS, Note

# Compares ranks that nobody does the work of, the stages of a single pipeline, with what they were themselves. Pure.
#
# A stage may have more layers than another, so that the times of stages tell nothing of their machines. What it has is
# the same from step to step: a stage that takes longer than it did, while the others do not, is on a machine that has
# become slower. One that was slow from the first step that is seen is not told from one with more layers.

OTHER = PHASES.index("other")
PASSES: Final = PHASES.index("forward"), PHASES.index("backward")
SCRIPTS: Final = tuple(map(PHASES.index, SCRIPT_PHASES))


class Past(NamedTuple):
    """The first steps of the ranks whose work nobody else does. `first` [K, R, P]: their own time by phase, nan of
    others, None where there are none. `alone` [R]: the ranks that are known so. `base` [R]: their busy seconds a step,
    and `error` [R]: by how much these may be wrong, as a standard error; nan of others."""

    first: Floats | None
    alone: NDArray[np.bool_]
    base: Floats
    error: Floats

    @classmethod
    def of(cls, first: Floats | None, count: int, phased: bool) -> Past:
        """`count`: R. `phased`: whether phases are named, so that the time in none of them is not judged."""
        if first is None:
            return cls(None, np.zeros(count, np.bool_), *np.full((2, count), np.nan))
        busy = judged(first, phased)
        known = np.isfinite(busy).sum(axis=0)
        base = np.where(known >= MIN_STEPS, median_over_steps(busy), np.nan)
        spread = MAD_TO_SIGMA * median_over_steps(np.abs(busy - base))
        return cls(first, known >= MIN_STEPS, base, spread * math.sqrt(math.pi / 2) / np.sqrt(np.maximum(known, 1)))

    def excess(self, busy: Floats) -> Floats:
        """[S, R]: by how much each rank is busier (`busy` [S, R], seconds) than in its first steps, beyond the share by
        which the others are, as with longer sequences for all; nan of ranks that have peers. Where the others became
        less busy on the whole, as ranks on the same CPUs do that wait longer, one that stays as it was is no slower."""
        if not self.alone.any():
            return np.full(busy.shape, np.nan)
        grown = others_median(busy / np.where(self.base > 0, self.base, np.nan))
        return busy - self.base * grown / np.fmin(median_over_steps(grown), 1.0)


def judged(phases: Floats, phased: bool) -> Floats:
    """[S, R]: the sum of `phases` [S, R, P] that are judged."""
    return over_phases(phases[:, :, : OTHER if phased else None])


# The work of a rank's peers in the same step. Peers do the same work, on other machines where there are enough. Pure.

BLOCK_VALUES = 1 << 21
"""The number of values that are sorted at once."""


class Peers(NamedTuple):
    """The ranks that are compared with each other. `classes` has the columns of ranks that do the same work, those of
    equal size in one array [K, M]. `apart` has, for the ranks of a crowded machine, their columns and those that they
    are compared with."""

    classes: tuple[NDArray[np.int64], ...]
    apart: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    number: NDArray[np.int64]  # [R]: each rank's class
    sizes: NDArray[np.int64]  # [R]: how many are in it

    @classmethod
    def of(cls, positions: NDArray[np.int32], nodes: tuple[str | None, ...]) -> Peers:
        _, number, count = np.unique(positions, return_inverse=True, return_counts=True)
        order, sizes = np.argsort(number, kind="stable"), count[number]
        classes = tuple(order[sizes[order] == size].reshape(-1, size) for size in distinct(count))
        return cls(classes, tuple(_apart(number, nodes)), number, sizes)

    def medians(
        self, values: Floats, without: NDArray[np.bool_] | None = None, of: NDArray[np.bool_] | None = None
    ) -> Floats:
        """[S, R]: for each of `values` [S, R] the median of the rank's peers in the same step; nan where it has none.
        `without` [R]: ranks that are nobody's peers. `of` [R]: the ranks, whole classes, that it is computed for."""
        result = np.full(values.shape, np.nan, dtype=values.dtype)
        for columns in self.classes:
            wanted = columns if of is None else columns[of[columns[:, 0]]]
            some = as_slice(wanted[0]) if len(wanted) == 1 else wanted
            height = max(1, BLOCK_VALUES // max(1, wanted.size))
            for rows in (slice(top, top + height) for top in range(0, len(values), height)):
                known = values[rows, some] if without is None else np.where(without[some], np.nan, values[rows, some])
                result[rows, some] = others_median(known)
        for members, others in self.apart:
            left = others if without is None else others[~without[others]]
            if len(left) and (of is None or of[members[0]]):
                elsewhere = last_axis_median(values[:, left])[:, None]
                result[:, members] = np.where(np.isfinite(elsewhere), elsewhere, result[:, members])
        return result


def _apart(
    number: NDArray[np.int64], nodes: tuple[str | None, ...]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The ranks in a class of each machine that has several and no small part of it, and the others. They are compared
    with these: else a slow machine would hide its ranks behind each other."""
    node, count = node_numbers(nodes), np.bincount(number)
    cells, size = np.unique(number * len(nodes) + node, return_counts=True)
    which, where = np.divmod(cells, len(nodes))
    others = count[which] - size
    crowded = (size > 1) & (size > (1 - MOST) * count[which]) & (others > 0)
    crowded &= (others > 2) | (2 * (size - 1) >= count[which] - 1)  # of two, one that is slow moves the median
    for cell, machine in zip(which[crowded], where[crowded], strict=True):
        members = np.flatnonzero(number == cell)
        here = node[members] == machine
        yield members[here], members[~here]


@lru_cache(4)  # a verdict asks for those of its job again and again
def node_numbers(nodes: tuple[str | None, ...]) -> NDArray[np.int64]:
    """[R]: a number for each rank, the same for ranks of one machine; a rank whose machine is not known has its own."""
    found = numbered([place if name is None else name for place, name in enumerate(nodes)])
    found.setflags(write=False)
    return found


MIN_STEPS = 8  # fewer prove nothing: one garbage collection or page fault is a large share of them

STALL_RATIO = 20.0
"""A step so many times as long as most is a stall: one of 150 s would drown what each of a thousand others loses."""


class Steps(NamedTuple):
    """The steps to judge by, over S steps, R ranks and P phases. Times in seconds; nan where a rank has no row.
    `excess` is `busy` less the median of the rank's peers in the same step; of a rank without any, less what it was in
    its own first steps (Past)."""

    numbers: NDArray[np.int64]  # [S]
    duration: Floats  # [S]: the ranks' median
    each: float  # how many steps each stands for
    phases: Floats  # [S, R, P]: own time
    busy: Floats  # [S, R]: own time of the phases that are judged, input included
    waited: Floats  # [S, R]: in collectives
    peers: Peers
    excess: Floats  # [S, R]
    work: Floats | None  # [S, R]: elements of the model's inputs, 0 where they were not seen
    past: Past  # of the ranks that nobody does the work of
    phased: bool  # whether phases are known, so that `other` is not judged
    live: bool = False  # whether a verdict is drawn again and again, since the job goes on
    earlier_noise: tuple[tuple[int, float, float], ...] = ()

    @property
    def judged_phases(self) -> range:
        return range(OTHER if self.phased else len(PHASES))

    def stalled(self) -> NDArray[np.bool_]:
        """[S]: the steps that do not stand for the others by their length; none where they are so many that the job is
        like that, as by a checkpoint each time."""
        found: NDArray[np.bool_] = self.duration > STALL_RATIO * median(self.duration)
        return found if found.sum() < FEW else np.zeros_like(found)

    def without(self, culprits: NDArray[np.bool_], ranks: NDArray[np.bool_]) -> Steps:
        """The same steps, with `ranks` [R], whole classes, compared with no rank of `culprits` [R]."""
        ranks = ranks & ~self.past.alone
        excess = self.busy - self.peers.medians(self.busy, culprits, ranks)
        return self._replace(excess=np.where(ranks, excess, self.excess))

    def regrouped(self, classes: NDArray[np.int64], nodes: tuple[str | None, ...]) -> Steps:
        """The same steps, with those as peers that have the same number in `classes` [R]."""
        peers = Peers.of(classes.astype(np.int32), nodes)
        return self._replace(peers=peers, excess=_excess(self.busy, peers, self.past))

    def with_other(self) -> Steps:
        """The same steps, with the time that belongs to no phase judged as well."""
        busy = over_phases(self.phases)
        past = Past.of(self.past.first, busy.shape[1], False)
        excess = _excess(busy, self.peers, past)
        return self._replace(busy=busy, excess=excess, past=past, phased=False)

    @staticmethod
    def usable(timings: JobTimings) -> Steps | None:
        """The steps after the warm-up that at least half of the ranks have finished; None where they are too few."""
        if len(timings.ranks) < 2:
            return None
        finished = np.isfinite(timings.step_seconds).sum(axis=1)
        keep = (finished >= max(2, len(timings.ranks) / 2)) & (timings.steps >= _first_judged(timings))
        if keep.sum() < MIN_STEPS:
            return None
        kept = as_slice(np.flatnonzero(keep))
        phases = _possible(timings.phase_seconds[kept], timings.step_seconds[kept])
        phased = _are_named(phases)
        busy = judged(phases, phased)
        positions = np.zeros(len(timings.ranks), np.int32) if timings.positions is None else timings.positions
        peers = Peers.of(positions, timings.nodes)
        past = Past.of(timings.first_phases, busy.shape[1], phased)
        return Steps(
            numbers=timings.steps[kept],
            duration=last_axis_median(timings.step_seconds[kept]),
            phases=phases,
            busy=busy,
            waited=timings.waited_seconds[kept],
            work=None if timings.work is None else timings.work[kept],
            peers=peers,
            excess=_excess(busy, peers, past),
            past=past,
            phased=phased,
            live=timings.live and any(state.state == "running" for state in timings.states),
            earlier_noise=timings.earlier_noise,
            each=timings.steps_in_each,
        )


def _excess(busy: Floats, peers: Peers, past: Past) -> Floats:
    return np.where(past.alone, past.excess(busy), busy - peers.medians(busy))


def _first_judged(timings: JobTimings) -> int:
    """The first step after the warm-up. A recording begins with its processes, whatever number their first step has."""
    begins = not timings.live and not timings.profiled and len(timings.steps) >= MIN_STEPS + WARM_UP_STEPS
    return WARM_UP_STEPS + (int(timings.steps[0]) if begins else 0)


def _possible(phases: Floats, seconds: Floats) -> Floats:
    """`phases` [S, R, P], with nan in steps of `seconds` [S, R] of which a part took less than nothing, by what would
    count: no records. Clocks are read one after the other."""
    if not np.fmin.reduce(phases, axis=None) < 0:  # as of most jobs: all is looked at once, and nothing is made
        return phases
    impossible: NDArray[np.bool_] = np.any(phases < -MIN_COST * seconds[:, :, None], axis=2)
    return np.where(impossible[:, :, None], np.nan, phases) if impossible.any() else phases


def steps_needed(timings: JobTimings) -> int:
    """The number of steps, from the first that is seen on, that a verdict needs; a profile may begin after the
    warm-up."""
    first = int(timings.steps[0]) if len(timings.steps) else 0
    return MIN_STEPS + max(0, WARM_UP_STEPS - first)


def _are_named(phases: Floats) -> bool:
    """Whether half of the own time is in a phase that has a name, in most of some steps of the window. What is outside
    then accuses nobody: it may be a wait that no record tells of, or rank 0 writing its log."""
    some = phases[:: max(1, len(phases) // MIN_STEPS)]
    own = over_phases(some)
    named = over_phases(some[:, :, :OTHER])
    return median(last_axis_median(named / np.where(own > 0, own, np.nan))) >= HALF


# Tells which stage of a pipeline takes longest where no rank elsewhere does its work. Pure.
#
# More layers and a slower machine look alike in what is recorded, so that such a job is not called healthy. The first
# and the last stage have longer passes by design: they have the embedding and the loss.


def longest_stage_notes(timings: JobTimings, steps: Steps) -> tuple[Note, ...]:
    """A note about the longest stage; empty where stages have peers elsewhere, or are about as long as each other, and
    where they are those of two machines: the longer one has the loss."""
    machine = node_numbers(timings.nodes)
    stages = [columns for alike in steps.peers.classes for columns in alike if np.ptp(machine[columns]) == 0]
    alone = [columns for columns in stages if timings.alone is not None and timings.alone[columns].all()]
    if len(alone) < 2 and len({int(machine[columns[0]]) for columns in stages}) < 3:
        return ()
    stages = alone if len(alone) > 1 else stages
    passes = over_phases(steps.phases[:, :, PASSES]) if steps.phased else steps.busy
    levels = map(median_over_steps, (steps.busy, passes))
    each = np.array([[median(level[columns]) for columns in stages] for level in levels])
    place = int(np.nanargmax(each[0]))
    others = np.array([median(level) for level in np.delete(each, place, axis=1)])
    longer, in_passes = each[:, place] - others
    if not longer > (1 - MOST) * others[0]:
        return ()
    ranks = tuple(timings.ranks[stages[place]].tolist())
    its, elsewhere = ("its", "") if len(ranks) == 1 else ("their", "elsewhere ")
    times = step_times_text(float(each[0, place]), float(others[0]), f"{its} stage of the pipeline", "the others")
    why = f"no rank {elsewhere}does the same work: it has more layers, or its machine has always been slower"
    text, node = f"{ranks_text(ranks)}: {times}; {why}", timings.nodes[stages[place][0]]
    is_an_end = timings.stages is not None and timings.stages[stages[place][0]] in (0, timings.stages.max())
    kind = "uneven_work" if is_an_end and in_passes > HALF * longer else "longest_stage"
    return (Note(kind, text, ranks=ranks[:MAX_NAMED_RANKS], node=node),)
