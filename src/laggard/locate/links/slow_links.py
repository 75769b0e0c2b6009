"""Decides which links, NICs, rails and machines make transfers slow. Pure.

A channel (a process group, or a pair of ranks) is slow where its transfers take longer than those of equal channels, by
the test that ranks are put to. The culprit is the place in the network through which the slow channels go, and the
others do not.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.links.channels import Channel
from laggard.locate.links.pairs import PAIR_ROLE, ROUND_TRIP_ROLE
from laggard.locate.links.payoff import link_payoff
from laggard.locate.links.places import Explanation, Place, explain
from laggard.locate.links.transfers import Category, Ways
from laggard.locate.order_statistics import middle
from laggard.locate.slow.medians import deviation, last_axis_median, median, median_over_steps, others_median
from laggard.locate.slow.peers import node_numbers
from laggard.locate.slow.significance import Slowdown, confidence, slowdown
from laggard.locate.slow.steps import Steps
from laggard.locate.step_tables import over_phases
from laggard.model import MAX_NAMED_RANKS, Culprit
from laggard.text.words import counted, ranks_text, seconds_text

Places = NDArray[np.intp]

MIN_CHANNELS = 3
"""The number of equal channels that are needed to tell the slow one, unless it is slower than the other by
CHANNEL_PAIR_RATIO."""

CHANNEL_PAIR_RATIO = 2.0
"""The ratio of two equal channels' times from which on the slower one is slow: two healthy ways of one kind do not
differ by as much."""

FASTEST_SHARE = 0.34
"""The share of equal pairs, the fastest, that the others are compared with where most may be slow: an adapter, or a
machine, in the middle of a pipeline of four stages is an end of two pairs in three. A pair is then slow where it takes
CHANNEL_PAIR_RATIO times as long as they do."""

MAX_LESS_WORK = 0.25
"""The share of the time for which a group is blocked longer than equal ones by which its members may do less work."""

COST_RATIO = 0.01
"""The least share of the step by which a slow place makes the channels of one rank, taken together, longer."""

MIN_RECOVERABLE_RATIO = 0.005
"""The least share of the step that a faster link would save, by the replay. A link that would save less, as where its
collectives wait in a queue behind others, makes nobody wait: it is no culprit of a slow job."""

CHANNEL_COST_RATIO = 0.0025
"""The least share of the step by which each single channel is longer; a step has several in a row."""

TRANSFER_RATIO = 0.15
"""The least share of their own time by which slow channels are longer: networks are less even than GPUs."""

MAX_LINKS = 4
"""The most places that are named."""

MIN_COST_SHARE = 0.3
"""The share of the slowest channel's cost from which on a channel counts as slow itself: waiting for a slow link shows
in what its ends do elsewhere."""

MAX_UNEXPLAINED_SHARE = 0.25
"""The largest share of the slow channels' cost that places may leave unexplained; where they leave more, the network as
a whole is uneven."""


_WAYS = ("link", "machines")
"""The kinds of places that are a way between two ends."""

_WAYS_OF_MACHINES = {"machines": 1, "among": 2}
"""The ways between machines, by the kind of place: one, or several."""


class SlowChannel(NamedTuple):
    """A channel whose transfers are slow. `ratio`: their time over its equals'."""

    slowdown: Slowdown
    ratio: float
    series: Floats  # [S]: by how much longer they take, in seconds a step
    own: float  # seconds a step
    equals: float


@dataclasses.dataclass(frozen=True)
class _Findings:
    slow: Mapping[int, SlowChannel]
    tested: frozenset[int]
    equals: tuple[frozenset[int], ...]  # channels that were compared with each other


class SlowLinks(NamedTuple):
    """The places in the network that are slow, the one that costs most first; or `several` ways at once that no such
    place explains, the slowest first: a switch, or longer ways by design, which only the time before tells apart.
    `several_cost`: the share of the step that these cost, at most."""

    culprits: tuple[Culprit, ...] = ()
    several: tuple[Culprit, ...] = ()
    several_cost: float = 0.0


def slow_links(timings: JobTimings, ways: Ways, steps: Steps) -> SlowLinks:
    channels = ways.channels
    findings = _test(ways.categories, channels, steps)
    cost = {number: each.slowdown.excess for number, each in findings.slow.items()}
    left = {number: each for number, each in cost.items() if each >= MIN_COST_SHARE * max(cost.values())}
    whole, tested = sum(left.values()), findings.tested - (cost.keys() - left.keys())
    explanations, ways_of_machines = list[Explanation](), 0
    while left and len(explanations) < MAX_LINKS:
        found = explain(timings, channels, left, tested, findings.equals)
        if found is None:
            break
        ways_of_machines += _WAYS_OF_MACHINES.get(found.places[0].kind, 0)
        if _cost(channels, left, found) > COST_RATIO * middle(steps.duration):
            explanations.append(_of_one_adapter(timings, steps, found.with_all(cost.keys())))
        tested -= found.explained
        left = {number: each for number, each in left.items() if number not in found.explained}
    culprits = [
        _culprit(timings, steps, channels, findings, each) for each in without_inner(timings, channels, explanations)
    ]
    if sum(left.values()) > MAX_UNEXPLAINED_SHARE * whole or ways_of_machines > 1:
        uplinks = _uplinks(timings, channels, findings)
        if uplinks is not None:
            return SlowLinks((_culprit(timings, steps, channels, findings, uplinks),))
    if sum(left.values()) > MAX_UNEXPLAINED_SHARE * whole:
        return _unexplained(timings, steps, channels, findings)
    worth = [
        each for each in culprits if each.recoverable_ratio is None or each.recoverable_ratio >= MIN_RECOVERABLE_RATIO
    ]
    ordered = tuple(sorted(worth, key=lambda culprit: -(culprit.recoverable_ratio or 0.0)))
    if ways_of_machines < 2:
        return SlowLinks(ordered)
    return SlowLinks(
        several=ordered, several_cost=max((each.recoverable_ratio or 0.0 for each in ordered), default=0.0)
    )


def without_inner(
    timings: JobTimings, channels: Sequence[Channel], explanations: Sequence[Explanation]
) -> Iterator[Explanation]:
    """The explanations without ways among the machines of groups that also go through the slow links within one of
    these: a ring goes from rank to rank there."""
    machine = node_numbers(timings.nodes)
    slow = {int(machine[place.columns[0]]) for each in explanations for place in each.places if place.kind == "in_node"}
    for each in explanations:
        on = (machine[list(channels[number].columns)].tolist() for number in each.explained)
        inner = all(any(those.count(number) > 1 for number in slow) for those in on)
        if not (inner and each.places[0].kind in ("group", "among")):
            yield each


def _of_one_adapter(timings: JobTimings, steps: Steps, found: Explanation) -> Explanation:
    """The explanation with one adapter in place of all the members of a ring, where exchanges tell which it is."""
    kind, columns = found.places[0].kind, frozenset(column for place in found.places for column in place.columns)
    if kind not in ("nic", "group", "among") or len(columns) < 2:
        return found
    from laggard.locate.links.exchanges import held_up_most  # asked where a slow ring has several adapters

    column = held_up_most(timings, steps, columns)
    return found if column is None else found._replace(places=(Place("apart", (column,), found.explained),))


def _uplinks(timings: JobTimings, channels: Sequence[Channel], findings: _Findings) -> Explanation | None:
    """The machines behind one switch, where the ways between these and all others are what is slow."""
    from laggard.locate.links.uplinks import behind_a_switch  # asked where no smaller place explains what is slow

    machine = node_numbers(timings.nodes)
    on = {number: frozenset(machine[list(channels[number].columns)].tolist()) for number in findings.tested}
    slow = {on[number]: each.ratio for number, each in findings.slow.items() if number in on}
    fast = {way for number, way in on.items() if len(way) == 2 and number not in findings.slow}
    behind = behind_a_switch(slow, fast)
    if not behind:
        return None
    columns = tuple(np.flatnonzero(np.isin(machine, sorted(behind))).tolist())
    explained = frozenset(findings.slow)
    return Explanation((Place("uplinks", columns, explained),), explained)


def _unexplained(timings: JobTimings, steps: Steps, channels: Sequence[Channel], findings: _Findings) -> SlowLinks:
    """The slowest channels, each by itself, of those that take CHANNEL_PAIR_RATIO times as long as their equals."""
    far = [item for item in findings.slow.items() if item[1].ratio >= CHANNEL_PAIR_RATIO]
    worst = sorted(far, key=lambda item: -item[1].slowdown.excess)[:MAX_LINKS]
    alone = (
        Explanation((Place("group", channels[number].columns, frozenset({number})),), frozenset({number}))
        for number, _ in worst
    )
    culprits = tuple(_culprit(timings, steps, channels, findings, each) for each in alone)
    costs = (
        each.slowdown.excess / middle(steps.duration)
        if culprit.recoverable_ratio is None
        else culprit.recoverable_ratio
        for (_, each), culprit in zip(worst, culprits, strict=True)
    )
    return SlowLinks(several=culprits, several_cost=max(costs, default=0.0))


def _cost(channels: Sequence[Channel], excess: Mapping[int, float], found: Explanation) -> float:
    """The seconds a step that slow channels cost the rank that is in the most of them."""
    by_column: Counter[int] = Counter()
    for number in found.explained:
        by_column.update(dict.fromkeys(channels[number].columns, excess[number]))
    return max(by_column.values())


def _test(categories: Sequence[Category], channels: Sequence[Channel], steps: Steps) -> _Findings:
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
    return _Findings(slow, tested, equal_channels)


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
    them. Who does less is blocked longer by that."""
    own = median_over_steps(over_phases(steps.phases))
    slow: dict[int, SlowChannel] = {}
    for category in categories:
        if len(category.channels) < MIN_CHANNELS or channels[category.channels[0]].role in (PAIR_ROLE, ROUND_TRIP_ROLE):
            continue
        equals = others_median(category.least)
        works = np.array([median(own[list(channels[number].columns)]) for number in category.channels])
        for channel, found in longer_channels(category, category.least - equals, equals, steps):
            place = category.channels.index(channel)
            less = median(np.delete(works, place)) - works[place]
            if found.ratio < CHANNEL_PAIR_RATIO or not less <= MAX_LESS_WORK * found.slowdown.excess:  # nan: not known
                continue
            if channel not in slow or slow[channel].slowdown.excess < found.slowdown.excess:
                slow[channel] = found
    return slow


def slower_than_the_fastest(
    categories: Sequence[Category], channels: Sequence[Channel], steps: Steps, ratio: float = CHANNEL_PAIR_RATIO
) -> dict[int, SlowChannel]:
    """The pairs that take `ratio` times as long as the fastest of their equals, where those are most pairs:
    their median is then no measure of a healthy one. Round trips are not asked: they hold time in queues as well, which
    differs between stages."""
    slow: dict[int, SlowChannel] = {}
    for category in categories:
        count = len(category.channels)
        if count < 2 * MIN_CHANNELS or channels[category.channels[0]].role != PAIR_ROLE:
            continue
        fastest = np.argsort(median_over_steps(category.most))[: int(count * FASTEST_SHARE)]
        usual = last_axis_median(category.most[:, fastest])[:, None]
        equals = np.broadcast_to(usual, category.most.shape)
        longer = dict(longer_channels(category, category.least - equals, equals, steps, fastest))
        twice = {channel: found for channel, found in longer.items() if found.ratio >= ratio}
        if 2 * len(twice) > count:
            for channel, found in twice.items():
                if channel not in slow or slow[channel].slowdown.excess < found.slowdown.excess:
                    slow[channel] = found
    return slow


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
    return SlowChannel(found, own / max(typical, 1e-9), excess[:, place], own, typical)


def _culprit(
    timings: JobTimings, steps: Steps, channels: Sequence[Channel], findings: _Findings, found: Explanation
) -> Culprit:
    slow = {number: findings.slow[number] for number in found.explained}
    worst_number, worst = max(slow.items(), key=lambda item: item[1].slowdown.excess)
    columns = sorted({column for place in found.places for column in place.columns})
    kind = found.places[0].kind
    nodes = [timings.nodes[column] for column in columns]
    ranks = tuple(int(timings.ranks[column]) for column in columns)
    since = min(each.slowdown.since for each in slow.values())
    saved = saved_share(timings, steps, channels, slow, since)
    group = channels[worst_number].group if len(slow) == 1 else ""
    affected = {column for number in found.explained for column in channels[number].columns}
    victims = sorted(int(timings.ranks[column]) for column in affected - set(columns))
    return Culprit(
        kind="slow_link",
        ranks=ranks,
        node=nodes[0] if len(set(nodes)) == 1 else None,
        link=_ends(nodes) if len(found.places) == 1 and (kind in _WAYS or _is_within(kind, nodes)) else None,
        phase="collective",
        group=group or None,
        slowdown_ratio=round(max(each.ratio for each in slow.values()), 3),
        recoverable_ratio=None if saved is None else round(min(saved, 0.99), 3),
        since_step=int(steps.numbers[since]),
        confidence=_confidence(found, worst),
        evidence=_evidence(kind, ranks, channels, timings, slow),
        victims=tuple(victims[:MAX_NAMED_RANKS]),
        nodes=_machines(nodes),
    )


def saved_share(
    timings: JobTimings, steps: Steps, channels: Sequence[Channel], slow: Mapping[int, SlowChannel], since: int
) -> float | None:
    """The share of the step time that fixing it saves. None where round trips show the transfers: how much of these
    hides behind work is not known."""
    if any(channels[number].role == ROUND_TRIP_ROLE for number in slow):
        return None
    saved = link_payoff(timings, steps, channels, {number: 1 / each.ratio for number, each in slow.items()}, since)
    if saved is not None:
        return saved
    worst = max(slow.values(), key=lambda each: each.slowdown.excess)
    return float(np.nansum(np.fmax(worst.series[since:], 0.0)) / steps.duration[since:].sum())


def _ends(nodes: Sequence[str | None]) -> tuple[dict[str, str], dict[str, str]]:
    first, last = ({"node": node} if node else {} for node in (nodes[0], nodes[-1]))
    return first, last


def _is_within(kind: str, nodes: Sequence[str | None]) -> bool:
    return kind == "in_node" or (kind == "group" and len(set(nodes)) == 1)


def _machines(nodes: Sequence[str | None]) -> tuple[str, ...]:
    """The machines of a channel, where there are several."""
    several = tuple(dict.fromkeys(filter(None, nodes)))
    return several[:MAX_NAMED_RANKS] if len(several) > 1 else ()


def _confidence(found: Explanation, worst: SlowChannel) -> float:
    """Half of what the channel's own test gives where it may be any of several places."""
    return round(
        confidence(worst.slowdown.margin)
        * (0.5 if len(found.places) > 1 or found.places[0].kind in ("group", "among") else 1.0),
        2,
    )


def _evidence(
    kind: str,
    ranks: Sequence[int],
    channels: Sequence[Channel],
    timings: JobTimings,
    slow: Mapping[int, SlowChannel],
) -> tuple[str, ...]:
    ordered = sorted(slow.items(), key=lambda item: -item[1].slowdown.excess)
    lines = [
        f"{channel_name(channels[number], timings)}: transfers take {seconds_text(each.own)} a step, "
        f"{each.ratio:.1f} times as long as those of equal {_equals(channels[number])}"
        for number, each in ordered[:3]
    ]
    if kind == "apart":
        longer = f"exchanges hold up {ranks_text(ranks)} {CHANNEL_PAIR_RATIO:g} times as long as any other, or longer"
        return (*lines, f"{longer}: the network adapter there is the slow one")
    what = {
        "nic": "the network adapter of",
        "link": "the way between",
        "machines": "the way between the machines of",
        "node": "the network of the machine of",
        "rail": "the rail of",
        "in_node": "the links within the machine of",
        "among": "a way among the machines of",
        "group": "a way among",
        "uplinks": "the ways to others, as a switch's uplinks, of the machines of",
    }[kind]
    together = f"all {counted(len(slow), 'slow channel')} go through {what} {ranks_text(ranks)}, and no other does"
    return (*lines, together) if len(slow) > 1 else (*lines, f"{what} {ranks_text(ranks)}")


def channel_name(channel: Channel, timings: JobTimings) -> str:
    if channel.group:
        return f"group {channel.group}"
    source, target = (int(timings.ranks[column]) for column in channel.columns)
    if channel.role == ROUND_TRIP_ROLE:
        return f"between rank {source} and rank {target}"
    return f"from rank {source} to rank {target}"


def _equals(channel: Channel) -> str:
    return "groups" if channel.group else "pairs"
