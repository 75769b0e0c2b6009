"""Names the link or adapter that lets a burst of data through at full rate and holds up what follows, as a token bucket
does: the limit of a cloud's machine, a policer, a shaped port. Pure.

The shortest message of a step shows nothing of it, so that each one is looked at here. Where a receiver waits for a
message until it comes, the two clocks' difference is known from a round trip, and with it how long the message was on
its way, since its send began or the message before it had come: what queues behind another is not slower for that. A
message that finds its receiver at work is taken to be as short as the shortest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.words import ranks_text
from laggard.locate.collectives import Collectives, Times
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.links.channels import (
    PAIR_ROLE,
    SEND,
    Channel,
    Messages,
    Transfers,
    Trips,
    Ways,
    blocked_seconds,
    messages_of,
    pair_channels,
    round_trips,
    ways_by,
)
from laggard.locate.links.later_links import SLOW_TRANSFERS
from laggard.locate.links.slow_channels import (
    CHANNEL_PAIR_RATIO,
    MIN_CHANNELS,
    Findings,
    SlowChannel,
    fastest_of,
    longer_channels,
)
from laggard.locate.links.slow_links import places_of
from laggard.locate.partial_verdict import PartialVerdict
from laggard.locate.slow.host_facts import as_slow_host, waits_for_a_cpu
from laggard.locate.slow.steps import Steps
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

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


class Told(NamedTuple):
    """The slow links that are left beside slow ranks: `hosts` stand in place of links."""

    hosts: tuple[Culprit, ...] = ()
    links: tuple[Culprit, ...] = ()


def without_moved_by_slow(timings: JobTimings, links: Sequence[Culprit], slow: Sequence[Culprit]) -> Told:
    """The links without those that the CPU of a slow rank explains, and the ranks whose threads wait for a CPU, each in
    place of a link. In a job with GPUs all links stay: its transfers need little of a CPU."""
    if not _is_moved_by_cpus(timings):
        return Told(links=tuple(links))
    known = {rank for culprit in slow for rank in culprit.ranks}
    kept, hosts = list[Culprit](), list[Culprit]()
    for link in links:
        ends = {*link.ranks, *link.victims}
        if len(ends) == 2 and known & ends:
            continue
        host = _host_of(timings, link)
        if host is None:
            kept.append(link)
        elif not known & set(host.ranks):
            known.update(host.ranks)
            hosts.append(host)
    return Told(tuple(hosts), tuple(kept))


def doubted_by_cpus(timings: JobTimings, later: PartialVerdict) -> PartialVerdict:
    """`later`, what became slower in the network, with a note in place of a link at an end of which threads wait for a
    CPU: they may do so since then."""
    if not later.culprits or not _is_moved_by_cpus(timings):
        return later
    hosts, links = without_moved_by_slow(timings, later.culprits, ())
    told = [(link, _waiting(timings, link)) for link in links]
    notes = (_note(link, ranks) for link, ranks in told if ranks)
    sure = (link for link, ranks in told if not ranks)
    return PartialVerdict((*hosts, *sure), (*later.notes, *notes))


def _is_moved_by_cpus(timings: JobTimings) -> bool:
    return not timings.profiled and not any(timings.gpus)


def _host_of(timings: JobTimings, link: Culprit) -> Culprit | None:
    """The rank at an end of all slow transfers of the link, where its threads wait for a CPU and those of no other such
    rank do; as a culprit."""
    found = [host for rank in _ends_of_all(link) if (host := as_slow_host(timings, rank, link)) is not None]
    return found[0] if len(found) == 1 else None


def _ends_of_all(link: Culprit) -> Iterator[int]:
    if len(link.ranks) <= 2:
        yield from link.ranks
    if len(link.ranks) == 1 and len(link.victims) == 1:
        yield from link.victims


def _waiting(timings: JobTimings, link: Culprit) -> tuple[int, ...]:
    ends = sorted({*link.ranks, *link.victims})
    return tuple(rank for rank in ends if waits_for_a_cpu(timings, rank, link.recoverable_ratio or 0.0))


def _note(link: Culprit, ranks: tuple[int, ...]) -> Note:
    text = (
        f"{'; '.join(link.evidence)}: threads of {ranks_text(ranks)} wait for a CPU, which moves the data here, so that"
        " it is not known whether the way is slow"
    )
    return Note(SLOW_TRANSFERS, text, link.ranks[:MAX_NAMED_RANKS])


# Tells slow links from transfers that take longer for a slow rank's sake. Pure.
#
# A collective within a machine that is launched behind one between machines takes longer, from its launch on, while
# that one waits for a slow rank elsewhere. On the slow rank's own machine it does not: nobody there waits. But what its
# ranks send comes later, into other traffic.

QUEUED_RATIO: Final = 2.0
"""The most times as long as a slow rank makes others wait that a transfer behind them takes longer: there may be two in
a row."""


SHADOW_SHARE: Final = 0.25
"""The share of what a slow rank costs below which links of its own machine are no culprits beside it."""


FAR_SHADOW_SHARE: Final = 0.1
"""The same of links elsewhere that take less than CHANNEL_PAIR_RATIO times as long as their equals: where one stage of
a pipeline is late, others meet other traffic than they would."""


def without_queued(links: Sequence[Culprit], slow: Sequence[Culprit], waited_share: float) -> Iterator[Culprit]:
    """The links without those within machines that have none of the `slow` ranks, and without those that cost far less
    and begin or end at the machine of one, or are little slower than others. `waited_share`: of the step, by how much a
    slow rank takes longer."""
    at = {culprit.node for culprit in slow}
    longest = max((culprit.recoverable_ratio or 0.0 for culprit in slow), default=0.0)
    for link in links:
        saved = 1.0 if link.recoverable_ratio is None else link.recoverable_ratio
        if saved < SHADOW_SHARE * longest and at & {link.node, *link.nodes}:
            continue
        if saved < FAR_SHADOW_SHARE * longest and (link.slowdown_ratio or 0.0) < CHANNEL_PAIR_RATIO:
            continue
        is_within = link.node is not None and link.link is not None and link.link[0] == link.link[1]
        is_more = (link.recoverable_ratio or 0.0) > QUEUED_RATIO * waited_share
        if not slow or not is_within or link.node in at or is_more:
            yield link
