"""Says of a slow place in the network who it is, what it costs, and why. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.collectives import Collectives
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import PAIR_ROLE, ROUND_TRIP_ROLE, SEND, Category, Channel, Ways
from laggard.locate.links.slow_channels import CHANNEL_PAIR_RATIO, Explanation, SlowChannel
from laggard.locate.medians import median, median_over_steps
from laggard.locate.slow.replay import TOLERANCE, Replay
from laggard.locate.slow.significance import confidence
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Culprit


def link_payoff(
    timings: JobTimings, steps: Steps, channels: Sequence[Channel], shares: Mapping[int, float], since: int
) -> float | None:
    """The share of the step time that is saved where transfers through channels (by their number) take such shares
    of their time alone; None where what was recorded cannot be replayed."""
    replay = Replay.of(timings, steps, since)
    if replay is None or timings.collectives is None:
        return None
    now, recorded = replay.seconds(()), replay.recorded_seconds(steps)
    if not abs(now - recorded) <= TOLERANCE * recorded:
        return None
    fixed = replay.with_transfers(_shares(timings, timings.collectives, channels, shares, replay.rows)).seconds(())
    return float(np.clip((now - fixed) / max(now, recorded), 0.0, 1.0))


def _shares(
    timings: JobTimings,
    collectives: Collectives,
    channels: Sequence[Channel],
    shares: Mapping[int, float],
    rows: NDArray[np.int64],
) -> NDArray[np.float64]:
    """[M]: of the meetings of which `rows` [M] are records, the share of its time that each takes then."""
    groups = {channels[number].group: share for number, share in shares.items() if channels[number].group}
    pairs = {channels[number].columns: share for number, share in shares.items() if not channels[number].group}
    found = np.array([groups.get(group.name, 1.0) for group in collectives.groups])[collectives.group[rows]]
    column, peer = collectives.column[rows], np.searchsorted(timings.ranks, collectives.peer[rows])
    for place in np.flatnonzero(collectives.peer[rows] >= 0).tolist():
        ends = int(column[place]), int(peer[place])
        found[place] = pairs.get(ends if collectives.op[rows[place]] == SEND else ends[::-1], 1.0)
    return found


# Tells which member of a slow ring has the slow adapter, by what else goes through it. Pure.
#
# A ring is as slow as its slowest edge, and all of its members look alike. But each member may send to ranks of other
# stages as well: through a slow adapter that takes longer than what other ranks of its machine send to the same
# machine.

MIN_BESIDE: Final = 3
"""The least number of other pairs between the same two machines that a pair is compared with."""

BESIDE_RATIO: Final = 1.1
"""The least ratio of a pair's time to that of those beside it which a slow adapter shows."""

ALIKE_RATIO: Final = 1.05
"""The largest ratio of the pairs of all other members of the ring: these have the same place on their machines, and so
the same way to their adapters."""


def slow_beside_others(ways: Ways, machine: NDArray[np.int64], columns: frozenset[int]) -> int | None:
    """The one of a ring's members, by `columns`, all of whose sends and receives take BESIDE_RATIO times as long as
    those of other ranks between the same two machines. `machine` [R]: the number of each rank's machine. None where
    there is none, or another member is nearly so slow."""
    ratios = dict(_least_ratios(ways, machine, columns))
    slow = [column for column, ratio in ratios.items() if ratio >= BESIDE_RATIO]
    between = [ratio for column, ratio in ratios.items() if column not in slow and ratio > ALIKE_RATIO]
    return slow[0] if len(slow) == 1 and not between else None


def _least_ratios(ways: Ways, machine: NDArray[np.int64], columns: frozenset[int]) -> Iterator[tuple[int, float]]:
    of_column: dict[int, list[float]] = defaultdict(list)
    for category in ways.categories:
        if ways.channels[category.channels[0]].role not in (PAIR_ROLE, ROUND_TRIP_ROLE):
            continue
        for places in _between_two_machines(category, ways.channels, machine).values():
            if len(places) > MIN_BESIDE:
                _add_ratios(category, ways.channels, places, of_column)
    yield from ((column, min(of_column[column])) for column in sorted(columns & of_column.keys()))


def _between_two_machines(
    category: Category, channels: Sequence[Channel], machine: NDArray[np.int64]
) -> Mapping[frozenset[int], list[int]]:
    """The places in the category of the pairs between each two machines."""
    found: dict[frozenset[int], list[int]] = defaultdict(list)
    for place, number in enumerate(category.channels):
        ends = frozenset(machine[list(channels[number].columns)].tolist())
        if len(ends) == 2:
            found[ends].append(place)
    return found


def _add_ratios(
    category: Category, channels: Sequence[Channel], places: Sequence[int], of_column: dict[int, list[float]]
) -> None:
    level = median_over_steps(category.most[:, list(places)])
    ranks = [frozenset(channels[category.channels[place]].columns) for place in places]
    for own, those in enumerate(ranks):
        others = np.array([level[other] for other, its in enumerate(ranks) if not its & those])
        if len(others) >= MIN_BESIDE and np.isfinite(level[own]):
            ratio = float(level[own]) / max(median(others), 1e-9)
            for column in those:
                of_column[column].append(ratio)


MAX_TOLD_RATIO = 1000.0
"""The largest ratio that is told: equal transfers may take next to no time where they hide behind work."""

_WAYS = ("link", "machines")
"""The kinds of places that are a way between two ends."""


def link_culprit(
    timings: JobTimings,
    steps: Steps,
    channels: Sequence[Channel],
    slow_channels: Mapping[int, SlowChannel],
    found: Explanation,
) -> Culprit:
    """The culprit that the places of an explanation are."""
    slow = {number: slow_channels[number] for number in found.explained}
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
        slowdown_ratio=round(min(MAX_TOLD_RATIO, max(each.ratio for each in slow.values())), 3),
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
    worst = max(slow.values(), key=lambda each: each.slowdown.excess).series[since:]
    known = np.isfinite(worst)  # of a live job the collectives of some of the steps are asked for
    return float(np.fmax(worst[known], 0.0).sum() / steps.duration[since:][known].sum())


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
        f"{_ratio_text(each.ratio)} as long as those of equal {_equals(channels[number])}"
        for number, each in ordered[:3]
    ]
    if kind == "apart":
        longer = f"exchanges hold up {ranks_text(ranks)} {CHANNEL_PAIR_RATIO:g} times as long as any other, or longer"
        return (*lines, f"{longer}: the network adapter there is the slow one")
    if kind == "beside":
        longer = f"what {ranks_text(ranks)} sends and receives besides takes {BESIDE_RATIO:g} times as long, or longer,"
        return (*lines, f"{longer} as that of others between the same machines: its network adapter is the slow one")
    what = {
        "nic": "the network adapter of",
        "shared": "an adapter that several of a machine share, of",
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


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < MAX_TOLD_RATIO else f"more than {MAX_TOLD_RATIO:.0f} times"


def channel_name(channel: Channel, timings: JobTimings) -> str:
    if channel.group:
        return f"group {channel.group}"
    source, target = (int(timings.ranks[column]) for column in channel.columns)
    if channel.role == ROUND_TRIP_ROLE:
        return f"between rank {source} and rank {target}"
    return f"from rank {source} to rank {target}"


def _equals(channel: Channel) -> str:
    return "groups" if channel.group else "pairs"
