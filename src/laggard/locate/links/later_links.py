"""Names the links that have become slow, or are slow now and then: their transfers are compared with what they were.
Pure.

own_past.py decides when the steps became longer and whose transfers did; here is through what all of
these go.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Channel, Ways
from laggard.locate.links.link_culprits import channel_name
from laggard.locate.links.own_past import Change, Rise, change_of, is_work_of_several, risen_channels
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.locate.slow.significance import confidence
from laggard.locate.slow.steps import Steps, node_numbers
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

# Finds between which machines a link has become slow: the places that all transfers which take longer go through, and
# none that does not. Pure.
#
# Which ways a collective of many ranks takes is not known; between which machines is. So several places may remain, and
# all of them are told.


class RisenPlace(NamedTuple):
    """The place that became slow. `kind`: nic (of the rank in `columns`), node (the network of one machine), link
    (between two machines), sides (between the machines of one side and of another), among (some way among the
    machines), in_node (the links within one). `columns`: the ranks of these machines."""

    kind: str
    columns: tuple[int, ...]


def risen_place(
    channels: Sequence[Channel], machine: NDArray[np.int64], risen: Set[int], calm: Set[int], steady: Set[int]
) -> RisenPlace | None:
    """The place that explains which channels rose (by number), and which equal ones did not. `machine` [R]: the number
    of each rank's machine. `steady`: channels of other kinds that did not rise. None where no machine is in all that
    rose, and nothing else goes between machines as fast as before: it is the network as a whole."""
    on = {number: _machines(channels[number], machine) for number in {*risen, *calm, *steady}}
    if any(len(on[number]) == 1 for number in risen):
        return _within(channels, on, risen)
    common = frozenset[int].intersection(*(on[number] for number in risen))
    crossing = {number for number in calm if len(on[number]) > 1}
    if not common:
        return _between_sides(machine, [on[number] for number in risen], [on[number] for number in {*calm, *steady}])
    adapters = _adapters(channels, machine, risen, crossing)
    nodes = common - frozenset().union(*(on[number] for number in crossing))
    ways = {frozenset(pair) for pair in itertools.combinations(sorted(common), 2)} - {on[it] for it in crossing}
    if len(adapters) == 1 and not nodes:
        return RisenPlace("nic", (adapters[0],))
    if len(nodes) == 1:
        return _place("node", channels, machine, risen, nodes)
    left = nodes or frozenset().union(*ways) or common
    return _place("link" if len(left) == 2 else "among", channels, machine, risen, left)


def _machines(channel: Channel, machine: NDArray[np.int64]) -> frozenset[int]:
    return frozenset(machine[list(channel.columns)].tolist())


def _between_sides(
    machine: NDArray[np.int64], risen: Sequence[frozenset[int]], fast: Sequence[frozenset[int]]
) -> RisenPlace | None:
    """The way between sides of the network, as a switch's uplinks: on each side transfers between machines are as fast
    as before, and all that rose goes from one side to another. None where nothing between machines is fast."""
    if not any(len(each) > 1 for each in fast):
        return None
    side = {number: frozenset((number,)) for number in frozenset().union(*risen, *fast)}
    for machines in fast:
        joined = frozenset().union(*(side[number] for number in machines))
        side.update(dict.fromkeys(joined, joined))
    ends = {side[number] for machines in risen for number in machines}
    apart = all(len({side[number] for number in machines}) == 2 for machines in risen)
    if apart:
        return RisenPlace("sides", tuple(np.flatnonzero(np.isin(machine, sorted(frozenset().union(*ends)))).tolist()))
    return RisenPlace("among", tuple(np.flatnonzero(np.isin(machine, sorted(frozenset().union(*risen)))).tolist()))


def _within(channels: Sequence[Channel], on: Mapping[int, frozenset[int]], risen: Set[int]) -> RisenPlace | None:
    """The links within a machine, which all that rose goes through; those between machines go through them, too."""
    common = frozenset[int].intersection(*(on[number] for number in risen))
    if len(common) != 1:
        return None
    inside = [number for number in risen if len(on[number]) == 1]
    return RisenPlace("in_node", tuple(sorted({column for number in inside for column in channels[number].columns})))


def _adapters(
    channels: Sequence[Channel], machine: NDArray[np.int64], risen: Set[int], crossing: Set[int]
) -> list[int]:
    """The ranks that all which rose goes through, and no calm transfer for certain: a rank that is alone on its machine
    in a group uses its own adapter there."""
    shared = frozenset[int].intersection(*(frozenset(channels[number].columns) for number in risen))
    used: set[int] = set()
    for number in crossing:
        columns = np.array(channels[number].columns)
        here = machine[columns]
        used.update(columns[np.bincount(here)[here] == 1].tolist())
    return sorted(shared - used)


def _place(
    kind: str, channels: Sequence[Channel], machine: NDArray[np.int64], risen: Set[int], on: frozenset[int]
) -> RisenPlace:
    through = {column for number in risen for column in channels[number].columns}
    return RisenPlace(kind, tuple(sorted(column for column in through if int(machine[column]) in on)))


MIN_COST_SHARE = 0.3
"""The part of the largest rise from which on a channel counts: who waits for a slow link comes late elsewhere."""

NOTED_RATIO = 0.05
"""The share by which steps became longer from which on a job is not healthy, whatever the reason."""

NOTED_COST = 0.03
"""The share of the time that longer steps cost, of those that come again and again, from which on a job is not healthy,
whatever the reason."""

NO_TRAFFIC_RATIO = 25.0
"""The ratio from which on transfers take so much longer than before that no other traffic explains it: as many others
would have to share the way evenly."""

SLOWER_SINCE, SLOWER_AT_TIMES, SLOW_TRANSFERS = "slower_since", "slower_at_times", "slow_transfers"


_EXACT = ("nic", "node", "in_node")
"""The kinds of places that are one thing to repair."""

_NARROW = (*_EXACT, "link")
"""The kinds of places that are within one machine, or between two."""

_PLACES = {
    "nic": "the network adapter of",
    "node": "the network of the machine of",
    "link": "a way between the machines of",
    "sides": "a way between sides of the network, of the machines of",
    "among": "a way among the machines of",
    "in_node": "the links within the machine of",
}


def later_links(timings: JobTimings, ways: Ways | None, steps: Steps) -> PartialVerdict:
    """The place in the network that has become slow, or is now and then. Where it came too seldom to accuse anything,
    where no place explains which transfers take longer, or where the steps became much longer and nothing does, a note
    that says so; the job is then not healthy, either."""
    change = change_of(steps)
    if change is None or _is_in_memory(timings):
        return NOTHING_FOUND
    slower = _slower(timings, ways, steps, change) if ways is not None else None
    if slower is None:
        return PartialVerdict(notes=_notes(steps, change))
    if slower.place is None:
        text = f"{'; '.join(_evidence(timings, steps, change, slower))}: no place in the network explains which do"
        return PartialVerdict(notes=(Note(SLOW_TRANSFERS, text),))
    culprit = _culprit(timings, steps, change, slower, slower.place)
    if change.often or (change.twice and (slower.place.kind in _NARROW or _is_no_traffic(slower.rises))):
        return PartialVerdict((culprit,))
    text = f"too seldom to accuse anything: {'; '.join(culprit.evidence)}"
    return PartialVerdict(notes=(Note(SLOW_TRANSFERS, text, culprit.ranks[:MAX_NAMED_RANKS]),))


def _is_no_traffic(rises: Mapping[int, Rise]) -> bool:
    """Whether transfers became longer by more than the traffic of any other jobs makes them."""
    return all(rise.now > NO_TRAFFIC_RATIO * rise.usual for rise in rises.values())


def _is_in_memory(timings: JobTimings) -> bool:
    """Whether all ranks are on one machine and have no GPU: they share its memory, and how long their transfers and
    steps take says who else got CPU time."""
    one = len(set(node_numbers(timings.nodes).tolist())) == 1
    return one and not timings.profiled and not any(timings.gpus)


class _Slower(NamedTuple):
    """The channels of which the transfers take longer, and the place that all go through, where one does."""

    channels: Sequence[Channel]
    rises: Mapping[int, Rise]
    place: RisenPlace | None


def _slower(timings: JobTimings, ways: Ways, steps: Steps, change: Change) -> _Slower | None:
    channels = ways.channels
    found = risen_channels(ways.categories, steps, change)
    whole = len(timings.ranks) >= timings.world_size
    rises = {number: rise for number, rise in found.rises.items() if whole or rise.blocked}
    if not rises:
        return None
    most = max(rise.seconds for rise in rises.values())
    machine = node_numbers(timings.nodes)
    large = {number: rise for number, rise in rises.items() if rise.seconds >= MIN_COST_SHARE * most}
    slower = _without_queued(channels, machine, large)
    return _Slower(channels, slower, risen_place(channels, machine, slower.keys(), found.calm, found.steady))


def _without_queued(
    channels: Sequence[Channel], machine: NDArray[np.int64], rises: Mapping[int, Rise]
) -> Mapping[int, Rise]:
    """The rises without those within several machines, where transfers between machines rose as well: a collective that
    is launched behind a slow one takes longer, from its launch on, and is not slow itself."""
    inside = {
        number: int(machine[channels[number].columns[0]])
        for number in rises
        if len(set(machine[list(channels[number].columns)].tolist())) == 1
    }
    if len(inside) == len(rises) or len(set(inside.values())) < 2 or any(rises[number].blocked for number in inside):
        return rises
    return {number: rise for number, rise in rises.items() if number not in inside}


def _culprit(timings: JobTimings, steps: Steps, change: Change, slower: _Slower, place: RisenPlace) -> Culprit:
    channels, rises = slower.channels, slower.rises
    ranks = tuple(int(timings.ranks[column]) for column in place.columns)
    nodes = tuple(dict.fromkeys(filter(None, (timings.nodes[column] for column in place.columns))))
    affected = {int(timings.ranks[column]) for number in rises for column in channels[number].columns}
    worst = max(rises.values(), key=lambda rise: rise.seconds)
    return Culprit(
        kind="slow_link",
        ranks=ranks,
        node=nodes[0] if len(nodes) == 1 else None,
        link=({"node": nodes[0]}, {"node": nodes[-1]}) if nodes and place.kind in ("link", "in_node") else None,
        phase="collective",
        group=channels[next(iter(rises))].group or None if len(rises) == 1 else None,
        recoverable_ratio=round(min(change.cost, 0.99), 3),
        since_step=int(steps.numbers[change.since]),
        persistence="persistent" if change.lasts else "intermittent",
        confidence=round(confidence(worst.margin) * (1.0 if place.kind in _EXACT else 0.5), 2),
        evidence=_evidence(timings, steps, change, slower),
        victims=tuple(sorted(affected - set(ranks))[:MAX_NAMED_RANKS]),
        nodes=nodes[:MAX_NAMED_RANKS] if len(nodes) > 1 else (),
    )


def _evidence(timings: JobTimings, steps: Steps, change: Change, slower: _Slower) -> tuple[str, ...]:
    ordered = sorted(slower.rises.items(), key=lambda item: -item[1].seconds)[:3]
    when = f"since step {steps.numbers[change.since]}" if change.lasts else "in the slow steps"
    before = "before" if change.lasts else "in the others"
    lines = tuple(
        f"{channel_name(slower.channels[number], timings)}: transfers take {seconds_text(rise.now)} a step {when}, "
        f"{seconds_text(rise.usual)} {before}"
        for number, rise in ordered
    )
    if slower.place is None:
        return (*lines, _step_text(steps, change))
    ranks = ranks_text(int(timings.ranks[column]) for column in slower.place.columns)
    count = len(slower.rises)
    slow = f"all {count} slower channels go" if count > 1 else "it goes"
    return (*lines, f"{slow} through {_PLACES[slower.place.kind]} {ranks}", _step_text(steps, change))


def _step_text(steps: Steps, change: Change) -> str:
    usual, now = (float(np.median(steps.duration[those])) for those in (change.usual, change.active))
    times = f"{seconds_text(now)} {'now' if change.lasts else 'then'}, {seconds_text(usual)} otherwise"
    if change.lasts:
        return f"steps are longer since step {steps.numbers[change.since]} ({times}), and no rank's own work is"
    return f"{int(change.active.sum())} of {len(change.active)} steps are longer ({times}), and no rank's own work is"


def _notes(steps: Steps, change: Change) -> tuple[Note, ...]:
    usual = float(np.median(steps.duration[change.usual]))
    if not change.lasts:
        if not change.often or change.cost < NOTED_COST or is_work_of_several(steps, change):
            return ()
        text = f"{_step_text(steps, change)}: nothing recorded tells what they wait for"
        return (Note(SLOWER_AT_TIMES, text),)
    if change.longer < NOTED_RATIO * usual:
        return ()
    return (Note(SLOWER_SINCE, f"{_step_text(steps, change)}: nothing recorded tells what they wait for"),)
