"""Says of a slow place in the network who it is, what it costs, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Channel
from laggard.locate.links.pairs import ROUND_TRIP_ROLE
from laggard.locate.links.payoff import link_payoff
from laggard.locate.links.places import Explanation
from laggard.locate.links.ring_member import BESIDE_RATIO
from laggard.locate.links.slow_channels import CHANNEL_PAIR_RATIO, SlowChannel
from laggard.locate.slow.significance import confidence
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Culprit
from laggard.text.words import counted, ranks_text, seconds_text

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
