"""Names the link or adapter that lets a burst of data through at full rate and holds up what follows, as a token bucket
does: the limit of a cloud's machine, a policer, a shaped port. Pure.

The shortest message of a step shows nothing of it, so that each one is looked at here. Where a receiver waits for a
message until it comes, the two clocks' difference is known from a round trip, and with it how long the message was on
its way, since its send began or the message before it had come: what queues behind another is not slower for that. A
message that finds its receiver at work is taken to be as short as the shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import Collectives, Times
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.links.channels import Channel, Transfers, blocked_seconds
from laggard.locate.links.pairs import PAIR_ROLE, SEND, Messages, Trips, messages_of, pair_channels, round_trips
from laggard.locate.links.slow_channels import (
    CHANNEL_PAIR_RATIO,
    MIN_CHANNELS,
    Findings,
    SlowChannel,
    fastest_of,
    longer_channels,
)
from laggard.locate.links.slow_links import places_of
from laggard.locate.links.transfers import Ways, ways_by
from laggard.locate.slow.steps import Steps
from laggard.model import Culprit

HELD_UP_RATIO = 3.0
"""The ratio of a channel's times to those of its fastest equals from which on its messages are held up. Equal ways
differ by as much as two, since more messages share some of them at a time."""

TELLS_MORE_RATIO = 2.0
"""The ratio of a slow channel's messages to the shortest of their step, and of what its repair saves to that of links
which the shortest messages tell, from which on it is named in place of these."""

MIN_SAVED_SHARE = 0.02
"""The least share of the step that its repair must save. Ranks that share CPUs hold messages up for moments, too."""


class _Burst(NamedTuple):
    """The ways of messages, each by itself. `longer` [K]: how many times as long as the shortest of their step those of
    each channel take."""

    ways: Ways
    longer: Floats


def links_with_bursts(timings: JobTimings, steps: Steps, links: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """The places whose messages are held up, or `links`, which the shortest messages tell, where these are other
    places, or cost about as much or nobody knows what."""
    burst = None if timings.collectives is None else _burst(timings, timings.collectives, steps)
    if burst is None:
        return links
    findings = _held_up(burst.ways, steps)
    if not findings.slow or (links and max(burst.longer[list(findings.slow)]) < TELLS_MORE_RATIO):
        return links
    found = places_of(timings, burst.ways, steps, findings).culprits
    held_up = [each for each in found if (each.recoverable_ratio or 0.0) >= MIN_SAVED_SHARE]
    return tuple(held_up) if held_up and _tell_more(held_up, links) else links


def _tell_more(held_up: Sequence[Culprit], links: Sequence[Culprit]) -> bool:
    ranks = {rank for each in held_up for rank in each.ranks}
    most = max(each.recoverable_ratio or 0.0 for each in held_up)
    return all(
        ranks & set(each.ranks)
        and each.recoverable_ratio is not None
        and most >= TELLS_MORE_RATIO * each.recoverable_ratio
        for each in links
    )


def _held_up(ways: Ways, steps: Steps) -> Findings:
    """The channels that take HELD_UP_RATIO times as long as the fastest of their equals. Those that take
    CHANNEL_PAIR_RATIO times as long, and the ways back of slow ones, are neither slow nor fast: behind a slow link
    messages come one by one, and pass."""
    slow: dict[int, SlowChannel] = {}
    untold: set[int] = set()
    compared = [category for category in ways.categories if len(category.channels) >= MIN_CHANNELS]
    for category in compared:
        fastest, equals = fastest_of(category)
        for channel, found in longer_channels(category, category.least - equals, equals, steps, fastest):
            if found.ratio >= HELD_UP_RATIO and (channel not in slow or slow[channel].ratio < found.ratio):
                slow[channel] = found
            elif found.ratio >= CHANNEL_PAIR_RATIO:
                untold.add(channel)
    slow_ends = {frozenset(ways.channels[number].columns) for number in slow}
    untold.update(number for number, each in enumerate(ways.channels) if frozenset(each.columns) in slow_ends)
    equal_channels = tuple(frozenset(category.channels) for category in compared)
    return Findings(slow, frozenset().union(*equal_channels) - (untold - slow.keys()), equal_channels)


def _burst(timings: JobTimings, collectives: Collectives, steps: Steps) -> _Burst | None:
    messages = messages_of(collectives, timings)
    if messages is None:
        return None
    ended = blocked_seconds(collectives)[messages.recv] > 0
    trips = round_trips(collectives, messages, ended)
    seconds = _on_the_way(collectives, messages, trips, ended)
    known = np.flatnonzero(np.isfinite(seconds) & trips.is_sure[trips.kind])
    channels: list[Channel] = []
    channel = pair_channels(channels, PAIR_ROLE, messages.source, messages.target, len(timings.ranks))[known]
    at, least = messages.send[known], seconds[known]
    transfers = Transfers(channel, collectives.step[at], np.full(len(at), SEND), collectives.size[at],
                          least, least, np.ones(len(at), np.int64))  # fmt: skip
    shortest = np.bincount(channel, trips.seconds[trips.kind][known], len(channels))
    with np.errstate(invalid="ignore", divide="ignore"):
        longer = np.bincount(channel, least, len(channels)) / shortest
    return _Burst(ways_by(timings, steps.numbers, channels, transfers), longer)


def _on_the_way(collectives: Collectives, messages: Messages, trips: Trips, ended: NDArray[np.bool_]) -> Times:
    """[M]: for how long each message was on its way, as far as its receiver was blocked: the least is the shortest of
    its step. nan where nothing went back. `ended` [M]: its receiver was blocked until it came."""
    came, sent = collectives.end[messages.recv], collectives.start[messages.send]
    way = np.where(ended, came - sent, np.inf)
    direction = 2 * trips.kind + (messages.source < messages.target)
    shortest = np.full(2 * len(trips.seconds), np.inf)
    np.minimum.at(shortest, direction, way)
    usual = trips.seconds[trips.kind]
    known = ended & np.isfinite(shortest[direction]) & np.isfinite(usual)
    longer = np.where(known, way, 0.0) - np.where(known, shortest[direction], 0.0)
    blocked = blocked_seconds(collectives)[messages.recv]  # one that works meanwhile learns late that it has come
    most = np.minimum(blocked, _since_the_one_before(collectives, messages))
    found: Times = np.maximum(usual, np.minimum(usual + longer, most))
    return found


def _since_the_one_before(collectives: Collectives, messages: Messages) -> Times:
    """[M]: from the end of the receive before, of the same two ranks, to the message's own; infinite for the first."""
    order = np.lexsort((collectives.seq[messages.send], messages.target, messages.source))
    came, source, target = (each[order] for each in (collectives.end[messages.recv], messages.source, messages.target))
    same = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
    gap = np.full(len(order), np.inf)
    gap[1:][same] = np.diff(came)[same]
    found = np.empty(len(order))
    found[order] = gap
    return found
