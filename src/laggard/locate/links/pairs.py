"""The time that messages between two ranks take, by what sends and their receives tell, each on its own clock. Pure.

A send and its receive end together, so that whoever came last did not wait: the shorter of the two is the transfer.
But a rank that goes on with its own work learns late that a transfer is over, and its time is then a bound alone. It is
sure that both sides were blocked for no longer than the transfer lasts. A **round trip** tells more: the way there and
the way back, in which the difference of the two clocks has the other sign. It is sure where both receivers came first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.constants import OPS
from laggard.locate.collectives import Collectives, Numbers, Times
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import (
    Channel,
    Transfers,
    add_channels,
    blocked_seconds,
    grouped,
    no_transfers,
)
from laggard.locate.medians import distinct, middle

SEND, RECV = OPS.index("send"), OPS.index("recv")
PAIR_ROLE, ROUND_TRIP_ROLE = "pair", "round trip"

COPY_TIME_RATIO = 3.0
"""The ratio of a receive's time to that of the copy that its send was, from which on it waited for data that were on
the way."""

RECEIVER_BLOCKED_SHARE = 0.9
"""The share of a round trip's half for which a receiver that came before the send must be blocked; it is blocked for
the whole transfer."""


class Messages(NamedTuple):
    """M messages: the record of each one's send and of its receive, and the columns of the two ranks."""

    send: Numbers
    recv: Numbers
    source: Numbers
    target: Numbers


class Trips(NamedTuple):
    """The shortest round trips of G kinds of messages: between the same two ranks, in one step, of one size. `kind`
    [M]: the kind of each message. `seconds` [G]: half of the shortest way there and back, which is a transfer or, where
    receivers came late, longer; nan where nothing went back. `is_sure` [G]: it is a transfer. In each direction some
    receiver was blocked for as long: it was there first, or the transfer lasts as long as it was blocked."""

    kind: Numbers
    seconds: Times
    is_sure: NDArray[np.bool_]


def transfers_of_pairs(collectives: Collectives, timings: JobTimings, channels: list[Channel]) -> Transfers:
    """The transfers of sends whose receive is recorded too. The pairs are added to `channels`."""
    messages = messages_of(collectives, timings)
    if messages is None:
        return no_transfers()
    return _copied(collectives, timings, channels, messages) or _ended_together(
        collectives, timings, channels, messages
    )


def messages_of(collectives: Collectives, timings: JobTimings) -> Messages | None:
    """Those of which the send and the receive are recorded, and have ended; None without any."""
    rows = np.flatnonzero((collectives.peer >= 0) & (collectives.seq >= 0) & np.isfinite(collectives.end))
    rows = rows[np.isin(collectives.op[rows], (SEND, RECV))]
    peer = np.searchsorted(timings.ranks, collectives.peer[rows])
    seen = (peer < len(timings.ranks)) & (
        timings.ranks[np.minimum(peer, len(timings.ranks) - 1)] == collectives.peer[rows]
    )
    rows, peer = rows[seen], peer[seen]
    sends = collectives.op[rows] == SEND
    column = collectives.column[rows]
    source, target = np.where(sends, column, peer), np.where(sends, peer, column)
    order, first = grouped((source, target, collectives.seq[rows]))
    rows, source, target = rows[order], source[order], target[order]
    if not len(rows):
        return None
    both = np.flatnonzero(np.diff(np.append(first, len(rows))) == 2)
    one, other = rows[first[both]], rows[first[both] + 1]
    sent = collectives.op[one] == SEND
    return Messages(np.where(sent, one, other), np.where(sent, other, one), source[first[both]], target[first[both]])


def _ended_together(
    collectives: Collectives, timings: JobTimings, channels: list[Channel], messages: Messages
) -> Transfers:
    seconds, blocked = collectives.end - collectives.start, blocked_seconds(collectives)
    most, least = (np.minimum(each[messages.send], each[messages.recv]) for each in (seconds, blocked))
    trips = round_trips(collectives, messages, blocked[messages.recv] > 0)
    trip, is_sure = trips.seconds[trips.kind], trips.is_sure[trips.kind]
    exact = np.minimum(seconds[messages.recv], trip)  # a send may end before its data arrive
    channel = pair_channels(channels, PAIR_ROLE, messages.source, messages.target, len(timings.ranks))
    at, once = messages.send, np.ones(len(messages.send), np.int64)
    return Transfers(channel, collectives.step[at], np.full(len(at), SEND), collectives.size[at],
                     np.where(is_sure, exact, most), np.where(is_sure, exact, least), once)  # fmt: skip


def _copied(
    collectives: Collectives, timings: JobTimings, channels: list[Channel], messages: Messages
) -> Transfers | None:
    """The transfers by receives alone, which show them where a send ends once its data are copied: from the send's
    begin to the end of a receive that waited. None where sends last as long as transfers."""
    copied = (collectives.end - collectives.start)[messages.send]
    waited = blocked_seconds(collectives)[messages.recv]
    trips = round_trips(collectives, messages, waited > COPY_TIME_RATIO * copied)
    known = np.flatnonzero(np.isfinite(trips.seconds))
    if not len(known) or middle(trips.seconds[known]) <= COPY_TIME_RATIO * middle(copied):
        return None
    _, at = np.unique(trips.kind, return_index=True)
    at = at[known]
    low, high = (each(messages.source[at], messages.target[at]) for each in (np.minimum, np.maximum))
    channel = pair_channels(channels, ROUND_TRIP_ROLE, low, high, len(timings.ranks))
    count = np.bincount(trips.kind)[known]
    seconds = trips.seconds[known] * count
    row = messages.send[at]
    return Transfers(channel, collectives.step[row], np.full(len(at), RECV), collectives.size[row],
                     seconds, np.where(trips.is_sure[known], seconds, 0.0), count)  # fmt: skip


def round_trips(collectives: Collectives, messages: Messages, ended: NDArray[np.bool_]) -> Trips:
    """Round trips from the send's begin to the end of a receive. `ended` [M]: the receiver was blocked until it ended,
    so that its end is that of the transfer."""
    way = np.where(ended, collectives.end[messages.recv] - collectives.start[messages.send], np.inf)
    low, high = np.minimum(messages.source, messages.target), np.maximum(messages.source, messages.target)
    order, first = grouped((low, high, collectives.size[messages.send], collectives.step[messages.send]))
    kind = np.empty(len(order), np.int64)
    kind[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    blocked = blocked_seconds(collectives)[messages.recv]
    there, back = messages.source == low, messages.target == low
    total = sum(_at_least(kind, np.where(goes, way, np.inf), len(first)) for goes in (there, back))
    seconds = np.where(np.isfinite(total), np.maximum(total, 0.0) / 2, np.nan)
    waits = [-_at_least(kind, np.where(goes, -blocked, 0.0), len(first)) for goes in (there, back)]
    return Trips(kind, seconds, np.minimum(*waits) >= RECEIVER_BLOCKED_SHARE * seconds)


def _at_least(kind: Numbers, values: Times, count: int) -> Times:
    """[count]: the least of the `values` [M] of each kind."""
    found = np.full(count, np.inf)
    np.minimum.at(found, kind, values)
    return found


def pair_channels(channels: list[Channel], role: str, source: Numbers, target: Numbers, ranks: int) -> Numbers:
    """The channel of each pair of columns; those that are new are added."""
    pairs = source.astype(np.int64) * ranks + target
    found = {number: Channel("", role, divmod(number, ranks)) for number in distinct(pairs).tolist()}
    places = add_channels(channels, found)
    return np.array([places[number] for number in pairs.tolist()], np.int64)
