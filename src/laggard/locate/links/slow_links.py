"""Decides which links, NICs, rails and machines make transfers slow. Pure.

A channel (a process group, or a pair of ranks) is slow where its transfers take longer than those of equal channels, by
the test that ranks are put to. The culprit is the place in the network through which the slow channels go, and the
others do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from laggard.kit.words import seconds_text
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Category, Channel, Ways
from laggard.locate.links.later_links import SLOW_TRANSFERS
from laggard.locate.links.link_culprits import channel_name, link_culprit, saved_share
from laggard.locate.links.slow_channels import (
    CHANNEL_PAIR_RATIO,
    COST_RATIO,
    MIN_CHANNELS,
    Explanation,
    Findings,
    Place,
    SlowChannel,
    explain,
    longer_channels,
    slow_among_equals,
    slower_than_the_fastest,
)
from laggard.locate.medians import middle, others_median
from laggard.locate.slow.steps import Steps, node_numbers
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

MIN_RECOVERABLE_RATIO = 0.005
"""The least share of the step that a faster link would save, by the replay. A link that would save less, as where its
collectives wait in a queue behind others, makes nobody wait: it is no culprit of a slow job."""

TOGETHER_RATIO = 2.0
"""The ratio of what several places save together to what any of them saves alone, from which on they are one culprit,
or told together."""

MAX_LINKS = 4
"""The most places that are named."""

MIN_COST_SHARE = 0.3
"""The share of the slowest channel's cost from which on a channel counts as slow itself: waiting for a slow link shows
in what its ends do elsewhere."""

MAX_UNEXPLAINED_SHARE = 0.25
"""The largest share of the slow channels' cost that places may leave unexplained; where they leave more, the network as
a whole is uneven."""

_WAYS_OF_MACHINES = {"machines": 1, "among": 2}
"""The ways between machines, by the kind of place: one, or several."""


class SlowLinks(NamedTuple):
    """The places in the network that are slow, the one that costs most first; or `several` ways at once that no such
    place explains, the slowest first: a switch, or longer ways by design, which only the time before tells apart.
    `several_cost`: the share of the step that these cost, at most."""

    culprits: tuple[Culprit, ...] = ()
    several: tuple[Culprit, ...] = ()
    several_cost: float = 0.0


def slow_links(timings: JobTimings, ways: Ways, steps: Steps) -> SlowLinks:
    """The places that channels are slow by which are slower than equal ones."""
    return places_of(timings, ways, steps, slow_among_equals(ways.categories, ways.channels, steps))


def places_of(timings: JobTimings, ways: Ways, steps: Steps, findings: Findings) -> SlowLinks:
    """The places that the slow channels of `findings` go through."""
    channels = ways.channels
    explanations, left = _explanations(timings, ways, steps, findings)
    ways_of_machines = _ways_of_machines(timings, explanations)
    if left > MAX_UNEXPLAINED_SHARE or ways_of_machines > 1:
        uplinks = _uplinks(timings, channels, findings)
        if uplinks is not None:
            return SlowLinks((link_culprit(timings, steps, channels, findings.slow, uplinks),))
    if left > MAX_UNEXPLAINED_SHARE:
        return _unexplained(timings, steps, channels, findings)
    named = list(without_inner(timings, channels, explanations))
    culprits = [link_culprit(timings, steps, channels, findings.slow, each) for each in named]
    worth = _worth_together(timings, steps, channels, findings, named, culprits) or [
        each for each in culprits if each.recoverable_ratio is None or each.recoverable_ratio >= MIN_RECOVERABLE_RATIO
    ]
    ordered = tuple(sorted(worth, key=lambda culprit: -(culprit.recoverable_ratio or 0.0)))
    if ways_of_machines < 2 or (
        len(named) == 1 and _are_beyond_design(timings, channels, findings, named[0].explained)
    ):
        return SlowLinks(ordered)
    costs = (
        _share(findings, each, steps) if culprit.recoverable_ratio is None else culprit.recoverable_ratio
        for each, culprit in zip(named, culprits, strict=True)
    )
    return SlowLinks(several=ordered, several_cost=max(costs, default=0.0))


def _worth_together(
    timings: JobTimings,
    steps: Steps,
    channels: Sequence[Channel],
    findings: Findings,
    named: Sequence[Explanation],
    culprits: Sequence[Culprit],
) -> list[Culprit]:
    """The `culprits`, where all of them together save COST_RATIO, and TOGETHER_RATIO times as much as any by itself:
    the job waits for each. Those on the same machines are one: an adapter that several ranks of a machine share."""
    alone = [each.recoverable_ratio for each in culprits if each.recoverable_ratio is not None]
    if len(alone) < max(2, len(culprits)):
        return []
    slow = {number: findings.slow[number] for each in named for number in each.explained}
    saved = saved_share(timings, steps, channels, slow, min(each.slowdown.since for each in slow.values()))
    if saved is None or saved < max(COST_RATIO, TOGETHER_RATIO * max(alone)):
        return []
    shared = _of_shared_adapter(timings, named)
    if shared is not None:
        return [link_culprit(timings, steps, channels, findings.slow, shared)]
    told = f"it is one of {len(culprits)} that only save something if all are as fast as their equals"
    return [
        structs.replace(each, recoverable_ratio=round(min(saved, 0.99), 3), evidence=(*each.evidence, told))
        for each in culprits
    ]


def _of_shared_adapter(timings: JobTimings, named: Sequence[Explanation]) -> Explanation | None:
    """The explanations, of an adapter each, as one adapter of one of their machines, if these are the same ones."""
    machine = node_numbers(timings.nodes)
    columns = [{column for place in each.places for column in place.columns} for each in named]
    machines = {frozenset(machine[list(those)].tolist()) for those in columns}
    if len(machines) > 1 or any(each.places[0].kind != "nic" for each in named):
        return None
    explained = frozenset[int]().union(*(each.explained for each in named))
    every = sorted(set[int]().union(*columns))
    on = {int(number): [column for column in every if machine[column] == number] for number in machine[every].tolist()}
    return Explanation(tuple(Place("shared", tuple(those), explained) for those in on.values()), explained)


def _explanations(timings: JobTimings, ways: Ways, steps: Steps, findings: Findings) -> tuple[list[Explanation], float]:
    """The places that explain the slow channels, the one that explains most first, and the share of these channels'
    cost that is left."""
    channels = ways.channels
    cost = {number: each.slowdown.excess for number, each in findings.slow.items()}
    left = {number: each for number, each in cost.items() if each >= MIN_COST_SHARE * max(cost.values())}
    whole, tested = sum(left.values()), findings.tested - (cost.keys() - left.keys())
    explanations = list[Explanation]()
    while left and len(explanations) < MAX_LINKS:
        found = explain(timings, channels, left, tested, findings.equals)
        if found is None:
            break
        if _cost(channels, left, found) > COST_RATIO * middle(steps.duration):
            explanations.append(_of_one_adapter(timings, ways, steps, found.with_all(cost.keys())))
        tested -= found.explained
        left = {number: each for number, each in left.items() if number not in found.explained}
    return explanations, sum(left.values()) / max(whole, 1e-9)


def _ways_of_machines(timings: JobTimings, explanations: Sequence[Explanation]) -> int:
    """How many ways between machines are taken to be slow at once. Ways between several ranks of the same two machines
    count as well: such ranks have no cables of their own."""
    machine = node_numbers(timings.nodes)
    places = [each.places[0] for each in explanations]
    ends = Counter(frozenset(machine[list(place.columns)].tolist()) for place in places if place.kind == "link")
    together = sum(count for count in ends.values() if count > 1)
    return together + sum(_WAYS_OF_MACHINES.get(place.kind, 0) for place in places)


def _are_beyond_design(
    timings: JobTimings, channels: Sequence[Channel], findings: Findings, slow: frozenset[int]
) -> bool:
    """Whether all of the channels `slow` are slower than equal ones can be by design."""

    machine = node_numbers(timings.nodes)
    for number in slow:
        columns, found = list(channels[number].columns), findings.slow[number]
        on_one_machine = len(columns) / len(set(machine[columns].tolist()))
        if not is_beyond_design(found.ratio, found.rate / on_one_machine):
            return False
    return True


def _share(findings: Findings, found: Explanation, steps: Steps) -> float:
    """The share of the step by which the slowest of the explained channels is longer; 0 where none takes
    CHANNEL_PAIR_RATIO times as long as its equals."""
    slow = [findings.slow[number] for number in found.explained]
    far = (each.slowdown.excess for each in slow if each.ratio >= CHANNEL_PAIR_RATIO)
    return max(far, default=0.0) / middle(steps.duration)


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


def _of_one_adapter(timings: JobTimings, ways: Ways, steps: Steps, found: Explanation) -> Explanation:
    """The explanation with one adapter in place of all the members of a ring, where exchanges, or what else its members
    send, tell which it is."""
    kind, columns = found.places[0].kind, frozenset(column for place in found.places for column in place.columns)
    if kind not in ("nic", "group", "among") or len(columns) < 2:
        return found
    from laggard.locate.links.exchanges import held_up_most  # asked where a slow ring has several adapters
    from laggard.locate.links.link_culprits import slow_beside_others

    column = held_up_most(timings, steps, columns)
    if column is not None:
        return found._replace(places=(Place("apart", (column,), found.explained),))
    column = slow_beside_others(ways, node_numbers(timings.nodes), columns)
    return found if column is None else found._replace(places=(Place("beside", (column,), found.explained),))


def _uplinks(timings: JobTimings, channels: Sequence[Channel], findings: Findings) -> Explanation | None:
    """The machines behind one switch, where the ways between these and all others are what is slow."""

    machine = node_numbers(timings.nodes)
    on = {number: frozenset(machine[list(channels[number].columns)].tolist()) for number in findings.tested}
    slow = {on[number] for number in findings.slow if number in on}
    fast = {on[number] for number in findings.tested - findings.slow.keys() if len(on[number]) > 1}
    explained = frozenset(findings.slow)
    behind = behind_a_switch(slow, fast)
    if not behind or not _are_beyond_design(timings, channels, findings, explained):
        return None
    columns = tuple(np.flatnonzero(np.isin(machine, sorted(behind))).tolist())
    return Explanation((Place("uplinks", columns, explained),), explained)


def _unexplained(timings: JobTimings, steps: Steps, channels: Sequence[Channel], findings: Findings) -> SlowLinks:
    """The slowest channels, each by itself, of those that take CHANNEL_PAIR_RATIO times as long as their equals."""
    far = [item for item in findings.slow.items() if item[1].ratio >= CHANNEL_PAIR_RATIO]
    worst = sorted(far, key=lambda item: -item[1].slowdown.excess)[:MAX_LINKS]
    alone = (
        Explanation((Place("group", channels[number].columns, frozenset({number})),), frozenset({number}))
        for number, _ in worst
    )
    culprits = tuple(link_culprit(timings, steps, channels, findings.slow, each) for each in alone)
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


# Tells of equal channels of which some take longer, where that is too little to accuse a link. Pure.
#
# Two ways of one kind may differ by design: one crosses a switch more. With a third equal one the slow one is told;
# with two it is not, nor where most of many are slower than the fastest. Where the difference holds the job up, nobody
# can call it healthy either.

UNLIKE_RATIO: Final = 1.25
"""The ratio of two equal channels' times from which on they are unlike."""

MIN_SAVED: Final = 0.03
"""The share of the step that would be saved if the slower took no longer than the other, from which on it is told."""


class _Unlike(NamedTuple):
    """A channel that takes longer than `equals`, in words."""

    slow: SlowChannel
    equals: str


def unlike_ways(timings: JobTimings, ways: Ways, steps: Steps, found: SlowLinks) -> tuple[Note, ...]:
    """The note that tells of them, or of several ways that are slow at once, as `found`; none where no such difference
    costs the job MIN_SAVED of its steps, as far as that is known."""
    if found.several_cost >= MIN_SAVED:
        told = "; ".join(each.evidence[0] for each in found.several)
        ranks = sorted({rank for each in found.several for rank in each.ranks})
        text = f"{told}: a switch that is slow, or longer ways by design"
        return (Note(SLOW_TRANSFERS, text, ranks=tuple(ranks[:MAX_NAMED_RANKS])),)
    channels, categories = ways
    unlike = dict(_of_two(timings, channels, categories, steps)) or {
        channel: _Unlike(slow, "the fastest third of its equals")
        for channel, slow in slower_than_the_fastest(categories, channels, steps, UNLIKE_RATIO).items()
    }
    if not unlike:
        return ()
    slower = {channel: each.slow for channel, each in unlike.items()}
    since = min(each.slowdown.since for each in slower.values())
    saved = saved_share(timings, steps, channels, slower, since)
    if saved is None or saved < MIN_SAVED:
        return ()
    told = "; ".join(
        f"{channel_name(channels[channel], timings)}: transfers take {seconds_text(each.slow.own)} a step,"
        f" {each.slow.ratio:.1f} times as long as those of {each.equals}"
        for channel, each in sorted(unlike.items(), key=lambda it: -it[1].slow.slowdown.excess)[:3]
    )
    text = f"{told}: a slow link, or a longer way by design; as fast as that, steps would take {100 * saved:.0f} % less"
    shared = set.intersection(*(set(channels[channel].columns) for channel in unlike))
    ranks = sorted(int(timings.ranks[column]) for column in shared)
    return (Note(SLOW_TRANSFERS, text, ranks=tuple(ranks[:MAX_NAMED_RANKS])),)


def _of_two(
    timings: JobTimings, channels: Sequence[Channel], categories: Sequence[Category], steps: Steps
) -> Iterator[tuple[int, _Unlike]]:
    """Of each two equal channels the one that takes longer; a channel comes again where it does so in several sizes,
    the most last."""
    found: list[tuple[int, _Unlike]] = []
    for category in categories:
        if not 1 < len(category.channels) < MIN_CHANNELS:
            continue
        equals = others_median(category.most)
        for channel, slow in longer_channels(category, category.least - equals, equals, steps, pair_ratio=UNLIKE_RATIO):
            other = next(each for each in category.channels if each != channel)
            found.append((channel, _Unlike(slow, f"{channel_name(channels[other], timings)}, its only equal")))
    yield from sorted(found, key=lambda it: it[1].slow.slowdown.excess)


# Finds the machines whose ways to all others are slow, as those behind one switch are. Pure.
#
# Which machines are behind one switch is not known. Where every slow way is one of several from the same machine, and
# nothing is fast between these machines and others, they are what the slow ways have in common. So are the machines of
# one side, where transfers among themselves are fast, and all that leads to the other side is slow.

MAX_DESIGN_RATIO: Final = 25.0
"""The ratio of the times of equal ways up to which they may differ by design: NVLink 5 moves 900 GB/s of a GPU each
way, an adapter of 400 Gbit/s 50 (NVIDIA, GB200 NVL72)."""

MAX_OVERSUBSCRIPTION: Final = 10.0
"""The same where the faster ones are no faster than an adapter. Switches above a pod carry a seventh of what is below
them (The Llama 3 Herd of Models, 3.3.1), and others may use them at the same time."""

MAX_ADAPTER_RATE: Final = 100e9
"""The bytes a second of an adapter of 800 Gbit/s: what is faster went through NVLink."""

Machines = frozenset[int]
"""The numbers of the machines that a transfer goes among: two of a way."""


def is_beyond_design(ratio: float, rate: float) -> bool:
    """Whether ways that take `ratio` times as long as equal ones are broken, and not longer by design. `rate`: what the
    equal ones move, in bytes a second, for each member on a machine; nan: not known."""
    return ratio >= (MAX_OVERSUBSCRIPTION if rate <= MAX_ADAPTER_RATE else MAX_DESIGN_RATIO)


def behind_a_switch(slow: Set[Machines], fast: Set[Machines]) -> Machines:
    """The machines of which the ways to others are slow: of the `slow` ways each has one of them at one end, and no
    `fast` one leads away from them. Each of them has two slow ways at least, or the fast ones join them to one side,
    and what is slow leads to others. Empty where there is one such machine alone, and where it may be either end."""
    ends = _neighbours(slow)
    centres = frozenset(machine for machine, others in ends.items() if len(others) > 1)
    apart = all(len(way) == 2 and len(way & centres) == 1 for way in slow)
    leads_away = any(0 < len(way & centres) < len(way) for way in fast)
    if apart and len(centres) > 1 and not leads_away:
        return centres
    return _one_side(slow, fast) if len(slow) > 1 else frozenset()


def _one_side(slow: Set[Machines], fast: Set[Machines]) -> Machines:
    """The machines beside the largest side, if all `slow` transfers lead from them to it, and they are fewer."""
    side = {machine: frozenset((machine,)) for machine in frozenset[int]().union(*slow, *fast)}
    for machines in fast:
        joined = frozenset[int]().union(*(side[machine] for machine in machines))
        side.update(dict.fromkeys(joined, joined))
    largest = max(side.values(), key=len)
    rest = frozenset(side) - largest
    apart = all(machines & largest and machines & rest for machines in slow)
    return rest if apart and 1 < len(rest) < len(largest) else frozenset()


def _neighbours(slow: Iterable[Machines]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for machines in slow:
        for machine in machines:
            found.setdefault(machine, set()).update(machines - {machine})
    return found
