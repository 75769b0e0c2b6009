"""Decides which ranks and machines are slower than their peers. Pure.

Machines come first: where most ranks of a machine are slow, it is the culprit and not its ranks. Culprits are then
taken out of everybody's peers, and the others are compared again, so that none hides behind a slower one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from laggard.kit.majority import grouped
from laggard.locate.job_timings import Floats
from laggard.locate.medians import deviation, distinct, last_axis_median, median, median_over_steps, middle
from laggard.locate.slow.significance import (
    MAX_SERIES,
    SLOW_RATIO,
    Slowdown,
    slowdown,
    windows,
)
from laggard.locate.slow.steps import CHANGED_RATIO, HOST_PHASES, Steps, confined, node_numbers

# Tells a slowdown that stays from a moment of other work on the machine. Pure.
#
# A scrape, a probe or another process on a rank's core holds a rank up for a second or three, and a verdict is drawn
# again and again: sooner or later it is drawn in such a moment. How long moments last depends on the machine, so that
# the job's own steps tell: as long as a slowdown has lasted no longer than twice what the ranks have shown before, and
# got over, it is one more of these.

BRIEF_SECONDS = 1.0
"""The duration below which a slowdown is a moment. Our own choice: two ranks on two cores, beside other work that was
rare, were held up for 0.1 to 0.9 s."""
BRIEF_STEPS = 100
"""The number of steps from which on a slowdown is more than a moment, however short they are."""

LIVE_SECONDS = 5.0
"""The duration of a moment in a live job, on which a verdict is drawn each second: a rare moment comes in some hour.
Beside ten processes that came and went, two ranks on two cores were held up for up to 4 s at a time."""

LONG_SECONDS, LONG_STEPS = 30.0, 16
"""The duration from which on a slowdown is no moment, if it has so many steps, whatever was before: a fault may move
from machine to machine, as heat and other tenants do. What has held ranks up by itself lasted 4 s at most."""

MOMENT_LENGTH_RATIO = 2
"""The number of times an earlier moment's length that a slowdown must last."""

RANKS_PER_EXCEPTION = 16
"""The number of ranks of which one may have had such a moment: by chance, or as it is a culprit itself."""


def is_brief(steps: int, seconds: float, live: bool) -> bool:
    """Whether a slowdown that has lasted so long may be a moment, whatever was before."""
    return seconds < LIVE_SECONDS if live else seconds < BRIEF_SECONDS and steps < BRIEF_STEPS


def is_long(steps: int, seconds: float) -> bool:
    """Whether a slowdown that has lasted so long is no moment, whatever was before."""
    return seconds >= LONG_SECONDS and steps >= LONG_STEPS


def outlasts_moments(excess: Floats, since: int, level: float) -> bool:
    """Whether no part of the window before step index `since` looks alike: no median above `level` over as many steps
    as there are from `since` on, divided by MOMENT_LENGTH_RATIO, in any of the series `excess` [S, N], or in few of
    many."""
    width = max(1, (len(excess) - since) // MOMENT_LENGTH_RATIO)
    count = since // width
    if not count:
        return True
    some = excess[since - count * width : since, :: max(1, excess.shape[1] // MAX_COMPARED)]
    earlier = np.moveaxis(some.reshape(count, width, -1), 1, 2)
    had = (last_axis_median(earlier) > level).any(axis=0)
    return bool(had.sum() <= some.shape[1] // RANKS_PER_EXCEPTION)


MACHINE_SHARE = 0.75
"""The share of a machine's ranks that have to be slow, and its median rank with them, for the machine to be the
culprit."""

MAX_CANDIDATES = 256
"""The most ranks that are tested, the slowest first: where more are slow, it is not they that differ."""

MAX_ROUNDS = 8
"""The most rounds in which the others are compared again after culprits were taken out of their peers."""

MIN_PHASE_SHARE = 0.005
"""The least share of the step that a phase takes of a rank which has that phase."""

ALIKE_EXCESS_RATIO = 0.5
"""The least ratio between the excesses of ranks of one machine that have the same cause."""

MIN_SLOW_RANKS, MIN_ALIKE_RANKS = 2, 3
"""The least number of slow ranks for which a machine is named, and that of ranks which are alike and of which one is
slow."""

CULPRIT_SHARE = 0.02
"""The share of culprits among peers up to which the peers' median is as good as that without them."""

MIN_PEERS = 3
"""The least number of peers that give a spread. Where a rank has fewer, the spread is that of the ranks in other
positions about their own peers."""

MAX_COMPARED = 64
"""The most peers whose spread is measured."""

MIN_MACHINES = 3
"""The least number of machines of which one is told apart from the others, though it alone has its stages."""

HOST_RATIO = 2.0
"""The least ratio of the time for what hosts do in each stage of such a machine to that in any stage elsewhere."""

EACH_PHASE_RATIO = 4.0
"""The same of a machine with one stage, for loading input and for what is between the steps each. By design one stage
has more of one of them: the first may load pictures, and the last write the log."""


@dataclasses.dataclass(frozen=True, eq=False)
class Slow:
    """A rank, or a machine with its ranks, that is slow from step index `since` of the window on."""

    columns: tuple[int, ...]
    whole_host: bool
    since: int
    excess: float  # seconds a step
    margin: float  # the excess over the threshold
    steps: int  # since then
    seconds: float  # that these steps took
    series: Floats  # [S]: its excess in each step
    hits: NDArray[np.bool_] | None = None  # [S]: in which steps it is slow, where it is so now and then only
    machine: tuple[int, ...] = ()  # all columns of the machine, where it has others that never do what is slow
    brief: bool = False  # slow for too short a time: its machine may just have had something else to do


def slow_ranks(steps: Steps, nodes: Sequence[str | None]) -> list[Slow]:
    """The ranks and machines that are slow up to the window's end, the slowest first."""
    found: list[Slow] = []
    culprits = np.zeros(steps.busy.shape[1], np.bool_)
    machine = node_numbers(nodes)
    medians = _Medians.of(steps)
    for _ in range(MAX_ROUNDS):
        new = list(_slow_hosts(steps, medians, machine, culprits)) or list(_slow_ranks(steps, medians, culprits))
        found += new
        culprits[[column for each in new for column in each.columns]] = True
        disturbed = _disturbed(steps, culprits, new)
        if not new or not (disturbed.any() or any(each.whole_host for each in new)):
            break
        steps = steps.without(culprits, disturbed)
        medians = medians.updated(steps, disturbed)
    return sorted(_merged_by_machine(steps, found, machine), key=lambda each: -each.excess)


def machines_slow_elsewhere(steps: Steps, nodes: Sequence[str | None]) -> list[Slow]:
    """The machine, if there is one, most ranks of which are slow in time that belongs to no phase, while the ranks of
    others wait: its CPUs are, between the phases. Of a single rank such time proves nothing (NAMED_SHARE). `steps`:
    with_other()."""
    found = _slow_hosts(steps, _Medians.of(steps), node_numbers(nodes), np.zeros(steps.busy.shape[1], np.bool_))
    return [each for each in found if not each.brief and is_waited_for(steps, each)]


def has_stages_of_its_own(stage: NDArray[np.int64], nodes: Sequence[str | None]) -> bool:
    """Whether a machine of at least MIN_MACHINES has all ranks of a stage. `stage` [R]: the same number for ranks with
    the same work."""
    machine = node_numbers(nodes)
    return bool(machine.max(initial=0) + 1 >= MIN_MACHINES and confined(stage, machine).any())


def machines_of_their_stages(steps: Steps, stage: NDArray[np.int64], nodes: Sequence[str | None]) -> list[Slow]:
    """The machine, if there is one, that has all ranks of its stages and is slow in what hosts do themselves, while the
    ranks of others wait. By design the first stage may load and the last one log: so each of the machine's stages takes
    HOST_RATIO times as long as any elsewhere; of a machine with one stage, each of these phases EACH_PHASE_RATIO times.
    `steps`: with_host_phases(); `stage`: as above."""
    machine = node_numbers(nodes)
    found = _slow_hosts(steps, _Medians.of(steps), machine, np.zeros(steps.busy.shape[1], np.bool_))
    alone, level = confined(stage, machine), median_over_steps(steps.busy)
    return [
        each
        for each in found
        if not each.brief
        and alone[list(each.columns)].all()
        and (_has_slow_stages(level, stage, machine, each) or _is_slow_in_each_phase(steps, machine, each))
        and is_waited_for(steps, each)
    ]


def machines_of_their_own_work(steps: Steps, work: NDArray[np.int64], nodes: Sequence[str | None]) -> list[Slow]:
    """The machine, if there is one, whose ranks' work nobody does elsewhere, as that of experts, and that is slow in
    what hosts do themselves beside others of the same stage, while the ranks of others wait. `steps`:
    with_host_phases(), by stages; `work` [R]: the same number for ranks with the same work."""
    machine = node_numbers(nodes)
    alone = confined(work, machine)
    if machine.max(initial=0) + 1 < MIN_MACHINES or not alone.any():
        return []
    found = _slow_hosts(steps, _Medians.of(steps), machine, np.zeros(steps.busy.shape[1], np.bool_))
    return [each for each in found if not each.brief and alone[list(each.columns)].all() and is_waited_for(steps, each)]


def _has_slow_stages(level: Floats, stage: NDArray[np.int64], machine: NDArray[np.int64], each: Slow) -> bool:
    here = machine == machine[each.columns[0]]
    own, others = distinct(stage[here]).tolist(), distinct(stage[~here]).tolist()
    elsewhere = max(median(level[stage == other]) for other in others)
    return len(own) > 1 and min(median(level[stage == mine]) for mine in own) > HOST_RATIO * elsewhere


def _is_slow_in_each_phase(steps: Steps, machine: NDArray[np.int64], each: Slow) -> bool:
    here = machine == machine[each.columns[0]]
    levels = np.stack([median_over_steps(steps.phases[:, :, phase]) for phase in HOST_PHASES])
    elsewhere = levels[:, ~here].max(axis=1)
    all_load = bool((levels[:, ~here] > 0).all())  # what others have none of is not compared
    return all_load and bool((levels[:, here].min(axis=1) > EACH_PHASE_RATIO * elsewhere).all())


def is_waited_for(steps: Steps, each: Slow) -> bool:
    """Whether the other ranks wait longer than those of the machine by at least half of what it costs."""
    own = np.isin(np.arange(steps.waited.shape[1]), each.columns)
    waited = steps.waited[each.since :]
    return bool(median(waited[:, ~own]) > median(waited[:, own]) + each.excess / 2)


def _merged_by_machine(steps: Steps, found: Sequence[Slow], machine: NDArray[np.int64]) -> Iterator[Slow]:
    """`found`, with one machine in place of its ranks where most that have the phase in which they are slow have at
    least half of their excess in it: their machine slows all of them, and some pass the threshold. The others may not
    have the phase, as the stages of a pipeline that load no input."""
    by_cause = grouped(found, lambda each: (int(machine[each.columns[0]]), _slowest_phase(steps, each)))
    for (host, phase), group in by_cause.items():
        mates = np.flatnonzero(machine == host)
        floor = MIN_PHASE_SHARE * middle(steps.duration)
        having = mates[median_over_steps(steps.phases[:, mates, phase]) > floor]
        if group[0].whole_host or len(mates) == len(machine) or len(having) < 2:
            yield from group
            continue
        excess = _excesses_elsewhere(steps, having, phase, min(each.since for each in group), machine)
        own = np.isin(having, [each.columns[0] for each in group])
        alike = own | (excess > ALIKE_EXCESS_RATIO * float(np.min(excess[own])))
        if len(group) < MIN_SLOW_RANKS and alike.sum() < MIN_ALIKE_RANKS or alike.sum() < MACHINE_SHARE * len(having):
            yield from group
            continue
        yield _machine_of(steps, group, having[alike], mates)


def _excesses_elsewhere(
    steps: Steps, columns: NDArray[np.int64], phase: int, since: int, machine: NDArray[np.int64]
) -> Floats:
    """[N]: by how many seconds a step each of `columns` [N] takes longer in a phase, from step index `since` on, than
    its peers on other machines; nan where it has none."""
    found = np.full(len(columns), np.nan)
    for place, column in enumerate(columns.tolist()):
        same = (steps.peers.number == steps.peers.number[column]) & (machine != machine[column])
        peers = np.flatnonzero(same)
        peers = peers[:: max(1, len(peers) // MAX_COMPARED)]
        theirs = last_axis_median(steps.phases[since:][:, peers, phase])
        found[place] = median(steps.phases[since:, column, phase] - theirs)
    return found


def _machine_of(steps: Steps, group: Sequence[Slow], slow: NDArray[np.int64], mates: NDArray[np.int64]) -> Slow:
    """The machine of the ranks `group`, of which the columns `slow` of `mates` are slow."""
    since = min(each.since for each in group)
    series = last_axis_median(steps.excess[:, slow])
    whole = Slowdown(since, median(series[since:]), max(each.margin for each in group))
    return dataclasses.replace(
        _slow(steps, tuple(slow.tolist()), True, whole, series, series[:, None]),
        machine=tuple(mates.tolist()) if len(slow) < len(mates) else (),
        brief=all(each.brief for each in group),
    )


def _slowest_phase(steps: Steps, each: Slow) -> int:
    """The phase in which a rank exceeds its peers the most."""
    column = each.columns[0]
    peers = np.flatnonzero(steps.peers.number == steps.peers.number[column])[:MAX_COMPARED]
    peers = peers[peers != column]
    if not len(peers):
        return 0
    own = median_over_steps(steps.phases[each.since :, column])
    others = np.array([median(steps.phases[each.since :, peers, phase]) for phase in range(steps.phases.shape[2])])
    return int(np.nan_to_num(own - others).argmax())


def _disturbed(steps: Steps, culprits: NDArray[np.bool_], new: Sequence[Slow]) -> NDArray[np.bool_]:
    """[R]: the ranks whose peers' median the new culprits may have moved: those of classes of which they are a
    noticeable share."""
    number = steps.peers.number
    moved = np.bincount(number, culprits) > CULPRIT_SHARE * np.bincount(number)
    touched = np.zeros(len(moved), np.bool_)
    touched[[number[column] for each in new for column in each.columns]] = True
    found: NDArray[np.bool_] = (moved & touched)[number]
    return found


class _Medians:
    """Each rank's median excess over the last steps, for each number of steps that is looked at."""

    def __init__(self, by_window: dict[int, Floats], floors: dict[int, float]) -> None:
        self.by_window, self.floors = by_window, floors

    @classmethod
    def of(cls, steps: Steps) -> _Medians:
        lengths = list(windows(len(steps.numbers)))
        floors = {length: SLOW_RATIO * middle(steps.duration[-length:]) for length in lengths}
        return cls({length: median_over_steps(steps.excess[-length:]) for length in lengths}, floors)

    def updated(self, steps: Steps, ranks: NDArray[np.bool_]) -> _Medians:
        """The same, with those of `ranks` [R] computed again."""
        by_window = {length: medians.copy() for length, medians in self.by_window.items()}
        for length, medians in by_window.items():
            medians[ranks] = median_over_steps(steps.excess[-length:, ranks])
        return _Medians(by_window, self.floors)

    def candidates(self, share: float = 1.0) -> NDArray[np.bool_]:
        """[R]: whose median exceeds `share` of the least that is called slow, over any number of last steps."""
        above = [medians > share * self.floors[length] for length, medians in self.by_window.items()]
        found: NDArray[np.bool_] = np.logical_or.reduce(above)
        return found

    @property
    def whole(self) -> Floats:
        """[R]: over the whole window."""
        return next(iter(self.by_window.values()))


def _slow_ranks(steps: Steps, medians: _Medians, culprits: NDArray[np.bool_]) -> Iterator[Slow]:
    candidates = np.flatnonzero(medians.candidates() & ~culprits)
    for column in candidates[np.argsort(-medians.whole[candidates])][:MAX_CANDIDATES]:
        same = steps.peers.number == steps.peers.number[column]
        others = np.flatnonzero(same & ~culprits)
        others = others[others != column]
        ratio = CHANGED_RATIO if steps.past.alone[column] else SLOW_RATIO
        elsewhere = np.flatnonzero(~same & ~culprits)
        spread = _spread(steps, others) if len(others) >= MIN_PEERS else deviation(medians.whole[elsewhere])
        # The excess of two ranks that are compared with each other is one series, and its mirror image.
        noisy = elsewhere if len(others) == 1 and len(elsewhere) >= MIN_PEERS else others
        compared = steps.excess[:, noisy[:: max(1, len(noisy) // MAX_SERIES)]]
        spread = float(np.fmax(spread, steps.past.error[column]))
        found = slowdown(steps.excess[:, column], steps.duration, compared, spread, ratio)
        if found is not None:
            compared = steps.excess[:, np.append(others, column)]
            yield _slow(steps, (int(column),), False, found, steps.excess[:, column], compared)


def _spread(steps: Steps, peers: NDArray[np.int64]) -> float:
    """The spread of the busy times of `peers` over the whole window: the median absolute deviation of their medians, in
    seconds."""
    busy = steps.busy[:, peers[:: max(1, len(peers) // MAX_COMPARED)]]
    return deviation(median_over_steps(busy - last_axis_median(busy)[:, None]))


def _slow_hosts(
    steps: Steps, medians: _Medians, machine: NDArray[np.int64], culprits: NDArray[np.bool_]
) -> Iterator[Slow]:
    """The slowest machine of those of which most ranks are slow; at most one, since it may make others look slow."""
    elevated = medians.candidates(0.5) & ~culprits
    count = np.bincount(machine, ~culprits)
    share = np.bincount(machine, elevated) / np.maximum(count, 1)
    if len(count) < 2:
        return
    best: Slow | None = None
    by_machine = _Grouped(machine)
    some = range(0, len(count), max(1, len(count) // MAX_COMPARED))
    for host in np.flatnonzero((share >= MACHINE_SHARE) & (count >= 2)).tolist():
        columns = by_machine.columns(host)
        columns = columns[~culprits[columns]]
        series = last_axis_median(steps.excess[:, columns])
        others = [by_machine.columns(other) for other in some if other != host]
        spread = deviation(np.array([median(medians.whole[each]) for each in others]))
        theirs = np.stack([last_axis_median(steps.excess[:, each]) for each in others], axis=1)
        found = slowdown(series, steps.duration, theirs, spread)
        if found is not None and _most_are_slow(steps, columns, found) and (best is None or found.excess > best.excess):
            compared = np.column_stack((theirs, series))
            best = _slow(steps, tuple(int(column) for column in columns), True, found, series, compared)
    if best is not None:
        yield best


def _most_are_slow(steps: Steps, columns: NDArray[np.int64], found: Slowdown) -> bool:
    """Whether most ranks of a machine have at least half of its excess: one that is slow by far is not its machine."""
    typical = median_over_steps(steps.excess[found.since :, columns])
    return bool((typical > found.excess / 2).mean() >= MACHINE_SHARE)


class _Grouped:
    """The columns of each machine."""

    def __init__(self, machine: NDArray[np.int64]) -> None:
        self._order = np.argsort(machine, kind="stable")
        self._first = np.searchsorted(machine[self._order], np.arange(machine.max() + 2))

    def columns(self, host: int) -> NDArray[np.int64]:
        return self._order[self._first[host] : self._first[host + 1]]


def _slow(
    steps: Steps, columns: tuple[int, ...], whole_host: bool, found: Slowdown, series: Floats, compared: Floats
) -> Slow:
    """`compared` [S, N]: the series that it is compared with, and its own."""
    lasted = steps.duration[found.since :]
    seconds = float(lasted.sum())
    level = found.excess * max(0.5, 1 / found.margin)
    outlasts = is_long(len(lasted), seconds) or outlasts_moments(compared, found.since, level)
    brief = is_brief(len(lasted), seconds, steps.live) or not outlasts
    return Slow(columns, whole_host, found.since, found.excess, found.margin, len(lasted), seconds, series, brief=brief)
