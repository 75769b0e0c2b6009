"""Tells which channels are slow: whose transfers take longer than those of equal ones. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats
from laggard.locate.links.channels import Channel
from laggard.locate.links.pairs import PAIR_ROLE, ROUND_TRIP_ROLE
from laggard.locate.links.transfers import Category
from laggard.locate.medians import deviation, last_axis_median, median, median_over_steps, middle, others_median
from laggard.locate.slow.significance import Slowdown, slowdown
from laggard.locate.slow.steps import Steps
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
