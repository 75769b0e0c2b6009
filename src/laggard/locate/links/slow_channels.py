"""Tells which channels are slow: whose transfers take longer than those of equal ones. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.majority import grouped
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.links.channels import PAIR_ROLE, ROUND_TRIP_ROLE, Category, Channel
from laggard.locate.medians import deviation, last_axis_median, median, median_over_steps, middle, others_median
from laggard.locate.slow.significance import Slowdown, slowdown
from laggard.locate.slow.steps import Steps, node_numbers
from laggard.locate.step_tables import over_phases

Places = NDArray[np.intp]

MIN_CHANNELS = 3
"""The number of equal channels that are needed to tell the slow one, unless it is slower than the other by
CHANNEL_PAIR_RATIO."""

CHANNEL_PAIR_RATIO = 2.0
"""The ratio of two equal channels' times from which on the slower one is slow: two healthy ways of one kind do not
differ by as much."""

BLOCKED_PAIR_RATIO = 4.0
"""The same where there are fewer than MIN_CHANNELS groups, and for how long they are blocked is all that tells: a part
of the time hides behind work, and what is left differs by more."""

FASTEST_SHARE = 0.34
"""The share of equal pairs, the fastest, that the others are compared with where most may be slow: an adapter, or a
machine, in the middle of a pipeline of four stages is an end of two pairs in three. A pair is then slow where it takes
CHANNEL_PAIR_RATIO times as long as they do."""

MAX_LESS_WORK = 0.25
"""The share of the time for which a group is blocked longer than equal ones by which its members may do less work."""

COST_RATIO = 0.01
"""The least share of the step by which a slow place makes the channels of one rank, taken together, longer."""

CHANNEL_COST_RATIO = 0.0025
"""The least share of the step by which each single channel is longer; a step has several in a row."""

TRANSFER_RATIO = 0.15
"""The least share of their own time by which slow channels are longer: networks are less even than GPUs."""


class SlowChannel(NamedTuple):
    """A channel whose transfers are slow. `ratio`: their time over its equals'."""

    slowdown: Slowdown
    ratio: float
    series: Floats  # [S]: by how much longer they take, in seconds a step
    own: float  # seconds a step
    equals: float
    rate: float  # bytes a second of its equals, at most; nan where sizes are not known


@dataclasses.dataclass(frozen=True)
class Findings:
    slow: Mapping[int, SlowChannel]
    tested: frozenset[int]
    equals: tuple[frozenset[int], ...]  # channels that were compared with each other


def slow_among_equals(categories: Sequence[Category], channels: Sequence[Channel], steps: Steps) -> Findings:
    """The channels that are slow for any operation and size, and those of which that could be told: who may have taken
    as long, and may have been done sooner, is neither slow nor fast."""
    slow: dict[int, SlowChannel] = {}
    untold: set[int] = set()
    compared = [category for category in categories if len(category.channels) > 1]
    for category in compared:
        equals = others_median(category.most)
        for channel, found in longer_channels(category, category.least - equals, equals, steps):
            if channel not in slow or slow[channel].slowdown.excess < found.slowdown.excess:
                slow[channel] = found
        untold.update(channel for channel, _ in longer_channels(category, category.most - equals, equals, steps))
        untold.update(_not_fast(category, equals))
    if not slow:
        slow = slower_than_the_fastest(compared, channels, steps) or _blocked_longer(compared, channels, steps)
    equal_channels = tuple(frozenset(category.channels) for category in compared)
    tested = frozenset().union(*equal_channels) - (untold - slow.keys())
    return Findings(slow, tested, equal_channels)


def _not_fast(category: Category, equals: Floats) -> Iterator[int]:
    """The channels that may take CHANNEL_PAIR_RATIO times as long as their equals. Where that is not certain, or costs
    too little to be slow, it is no sign of a fast way either."""
    longer = median_over_steps(category.most) >= CHANNEL_PAIR_RATIO * median_over_steps(equals)
    yield from (category.channels[place] for place in np.flatnonzero(longer).tolist())


def _blocked_longer(
    categories: Sequence[Category], channels: Sequence[Channel], steps: Steps
) -> dict[int, SlowChannel]:
    """The groups all members of which are blocked CHANNEL_PAIR_RATIO times as long as those of equal groups, though
    they do as much themselves: of transfers beside work, which show how long they last where it is too short to hide
    them. Who does less is blocked longer by that. Of few groups it takes BLOCKED_PAIR_RATIO."""
    own = median_over_steps(over_phases(steps.phases))
    slow: dict[int, SlowChannel] = {}
    for category in categories:
        if channels[category.channels[0]].role in (PAIR_ROLE, ROUND_TRIP_ROLE):
            continue
        ratio = CHANNEL_PAIR_RATIO if len(category.channels) >= MIN_CHANNELS else BLOCKED_PAIR_RATIO
        equals = others_median(category.least)
        works = np.array([median(own[list(channels[number].columns)]) for number in category.channels])
        for channel, found in longer_channels(category, category.least - equals, equals, steps):
            place = category.channels.index(channel)
            less = median(np.delete(works, place)) - works[place]
            if found.ratio < ratio or not less <= MAX_LESS_WORK * found.slowdown.excess:  # nan: not known
                continue
            if channel not in slow or slow[channel].slowdown.excess < found.slowdown.excess:
                slow[channel] = found
    return slow


def slower_than_the_fastest(
    categories: Sequence[Category], channels: Sequence[Channel], steps: Steps, ratio: float = CHANNEL_PAIR_RATIO
) -> dict[int, SlowChannel]:
    """The channels that take `ratio` times as long as the fastest of their equals, where those are half of all or more:
    their median is then no measure of a healthy one. Round trips are not asked: they hold time in queues as well, which
    differs between stages."""
    slow: dict[int, SlowChannel] = {}
    for category in categories:
        count = len(category.channels)
        if count < 2 * MIN_CHANNELS or channels[category.channels[0]].role == ROUND_TRIP_ROLE:
            continue
        fastest, equals = fastest_of(category)
        longer = dict(longer_channels(category, category.least - equals, equals, steps, fastest))
        twice = {channel: found for channel, found in longer.items() if found.ratio >= ratio}
        if 2 * len(twice) >= count:
            for channel, found in twice.items():
                if channel not in slow or slow[channel].slowdown.excess < found.slowdown.excess:
                    slow[channel] = found
    return slow


def fastest_of(category: Category) -> tuple[Places, Floats]:
    """The places in a category of its fastest channels, FASTEST_SHARE of all, and their time [S, K], for each alike."""
    fastest = np.argsort(median_over_steps(category.most))[: int(len(category.channels) * FASTEST_SHARE)]
    usual = last_axis_median(category.most[:, fastest])[:, None]
    return fastest, np.broadcast_to(usual, category.most.shape)


def longer_channels(
    category: Category,
    excess: Floats,
    equals: Floats,
    steps: Steps,
    healthy: Places | None = None,
    pair_ratio: float = CHANNEL_PAIR_RATIO,
) -> Iterator[tuple[int, SlowChannel]]:
    """The channels of a category whose times exceed their equals' by `excess` [S, K], significantly. `healthy`: the
    places in the category of those that they are compared with; None: all others. `pair_ratio`: the least ratio of
    their times where there are fewer than MIN_CHANNELS."""
    floor = CHANNEL_COST_RATIO * middle(steps.duration)
    for place in np.flatnonzero(median_over_steps(excess) > floor / 2).tolist():
        found = _slow_channel(category, excess, equals, place, steps, healthy, pair_ratio)
        if found is not None:
            yield category.channels[place], found


def _slow_channel(
    category: Category,
    excess: Floats,
    equals: Floats,
    place: int,
    steps: Steps,
    healthy: Places | None,
    pair_ratio: float,
) -> SlowChannel | None:
    others = np.arange(len(category.channels)) if healthy is None else healthy
    others = others[others != place]
    own, typical = median(category.least[:, place]), median(equals[:, place])
    spread = deviation(median_over_steps(category.most[:, others] - equals[:, place, None]))
    found = slowdown(excess[:, place], steps.duration, excess[:, others], spread, CHANNEL_COST_RATIO)
    least = TRANSFER_RATIO if len(others) + 1 >= MIN_CHANNELS else pair_ratio - 1
    if found is None or found.excess < least * typical:
        return None
    # An all_reduce moves its bytes twice (nccl-tests, PERFORMANCE.md).
    rate = 2 * category.size / max(typical, 1e-9) if category.size > 0 else math.nan
    return SlowChannel(found, own / max(typical, 1e-9), excess[:, place], own, typical, rate)


MISFIT_SHARE = 0.25
"""The share of the channels through a place that may be fast."""

ROUNDING_TOLERANCE = 1e-9
"""The relative difference below which sums differ by rounding alone."""


class Place(NamedTuple):
    """Something that transfers go through. `channels` are the numbers of those that would be slow with it."""

    # nic, link, node, machines, rail, in_node, among, group; uplinks: a switch's; apart, beside: a nic that other
    # transfers of a ring's members tell; shared: a nic of several ranks
    kind: str
    columns: tuple[int, ...]
    channels: frozenset[int]


class Explanation(NamedTuple):
    """The places of one kind that explain equally well which channels are slow."""

    places: tuple[Place, ...]
    explained: frozenset[int]  # channels that are slow

    def with_all(self, slow: Set[int]) -> Explanation:
        """The same with all of the channels `slow` that go through the places."""
        return self._replace(explained=frozenset.union(*(place.channels for place in self.places)) & slow)


def explain(
    timings: JobTimings,
    channels: Sequence[Channel],
    slow: Mapping[int, float],
    tested: frozenset[int],
    equals: Sequence[frozenset[int]],
) -> Explanation | None:
    """The places that explain most of what `slow` channels cost (seconds, by their number), and through which few of
    those that were `tested` are fast. What costs more counts more: waiting for a slow link shows in other pairs, too.
    `equals` are the channels that were compared with each other. None where no place fits."""
    best: list[Place] = []
    most = 0.0
    for place in _places(timings, channels, frozenset(slow)):
        told_apart = _told_apart(place, equals)
        explained = told_apart & tested & slow.keys()
        fast = len(told_apart & (tested - slow.keys()))
        affected = len(explained) + fast
        if not explained or fast > MISFIT_SHARE * affected:
            continue
        worth = sum(slow[number] for number in explained) * (1 - fast / affected)
        if worth > most * (1 + ROUNDING_TOLERANCE):
            best, most = [place], worth
        elif worth > most * (1 - ROUNDING_TOLERANCE) and place.kind == best[0].kind:
            best.append(place)
    if not best:
        return None
    return Explanation(tuple(best), frozenset()).with_all(slow.keys())


def _told_apart(place: Place, equals: Sequence[frozenset[int]]) -> frozenset[int]:
    """Those of the place's channels that would be slower than an equal one if the place were slow. Where all equal ones
    go through it, as all data-parallel groups do through a rail, they would be slow together, and none stand out."""
    compared = (each for each in equals if not each <= place.channels)
    return place.channels & frozenset().union(*compared)


def _places(timings: JobTimings, channels: Sequence[Channel], slow: frozenset[int]) -> Iterator[Place]:
    """The places that any slow channel goes through, the smallest first: of those that fit equally well the first is
    taken."""
    machine = node_numbers(timings.nodes)
    crossing = frozenset(
        number for number, each in enumerate(channels) if len(set(machine[list(each.columns)].tolist())) > 1
    )
    through = _by_column(channels)
    suspects = sorted({column for number in slow & crossing for column in channels[number].columns})
    for column in suspects:
        yield Place("nic", (column,), through[column] & crossing)
    yield from _links(channels, slow & crossing, through, machine)
    for node in sorted({int(machine[column]) for column in suspects}):
        columns = tuple(np.flatnonzero(machine == node).tolist())
        yield Place("node", columns, _union(through, columns) & crossing)
    yield from _machine_links(channels, slow & crossing, crossing, machine)
    yield from _rails(machine, channels, through, crossing, suspects)
    within = {int(machine[channels[number].columns[0]]) for number in slow - crossing}
    for node in sorted(within):
        columns = tuple(np.flatnonzero(machine == node).tolist())
        yield Place("in_node", columns, _union(through, columns) - crossing)
    yield from _among(channels, slow & crossing, crossing, machine)
    for number in sorted(slow):  # a way between two of its members, which no other channel uses
        columns = channels[number].columns
        yield Place("group", columns, frozenset.intersection(*(through[column] for column in columns)))


def _by_column(channels: Sequence[Channel]) -> dict[int, frozenset[int]]:
    through: dict[int, set[int]] = {}
    for number, channel in enumerate(channels):
        for column in channel.columns:
            through.setdefault(column, set()).add(number)
    return {column: frozenset(numbers) for column, numbers in through.items()}


def _union(through: dict[int, frozenset[int]], columns: Sequence[int]) -> frozenset[int]:
    return frozenset().union(*(through.get(column, frozenset()) for column in columns))


def _links(
    channels: Sequence[Channel], slow: frozenset[int], through: dict[int, frozenset[int]], machine: np.ndarray
) -> Iterator[Place]:
    """The ways between two ranks that send to each other."""
    pairs = {tuple(sorted(channels[number].columns)) for number in slow if len(channels[number].columns) == 2}
    for one, other in sorted(pairs):
        yield Place("link", (one, other), through[one] & through[other])


def _machine_links(
    channels: Sequence[Channel], slow: frozenset[int], crossing: frozenset[int], machine: np.ndarray
) -> Iterator[Place]:
    """The ways between two machines of which several channels are slow. What goes over more machines than these two is
    not asked: it may go another way."""
    over = grouped(crossing, lambda number: frozenset(machine[list(channels[number].columns)].tolist()))
    between = {ends: numbers for ends, numbers in over.items() if len(ends) == 2}
    for _, numbers in sorted(between.items(), key=lambda it: sorted(it[0])):
        if len(slow.intersection(numbers)) > 1:
            columns = sorted({column for number in numbers for column in channels[number].columns})
            yield Place("machines", tuple(columns), frozenset(numbers))


def _among(
    channels: Sequence[Channel], slow: frozenset[int], crossing: frozenset[int], machine: np.ndarray
) -> Iterator[Place]:
    """The ways among the machines of several slow groups, each of which goes over all of them."""
    over = grouped(crossing, lambda number: frozenset(machine[list(channels[number].columns)].tolist()))
    for machines, numbers in sorted(over.items(), key=lambda it: sorted(it[0])):
        if len(machines) > 2 and len(slow.intersection(numbers)) > 1:
            columns = sorted({column for number in numbers for column in channels[number].columns})
            yield Place("among", tuple(columns), frozenset(numbers))


def _rails(
    machine: np.ndarray,
    channels: Sequence[Channel],
    through: dict[int, frozenset[int]],
    crossing: frozenset[int],
    suspects: Sequence[int],
) -> Iterator[Place]:
    """The NICs of the same number in all machines, taken to be those of the ranks of that place on their machine. What
    all transfers between machines go through is no rail but the network, as where each machine has one rank: it would
    fit nearly everything."""
    order = np.argsort(machine, kind="stable")
    first = np.searchsorted(machine[order], machine[order])
    local = np.empty(len(machine), np.int64)
    local[order] = np.arange(len(machine)) - first
    for number in sorted({int(local[column]) for column in suspects}):
        columns = tuple(np.flatnonzero(local == number).tolist())
        rail = _union(through, columns) & crossing
        if rail != crossing:
            yield Place("rail", columns, rail)
