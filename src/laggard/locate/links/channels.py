"""The channels that transfers go through, and the facts that are known of each, as values. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS
from laggard.locate.collectives import Collectives, Numbers, Times
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import distinct, middle
from laggard.locate.slow.steps import node_numbers


class Channel(NamedTuple):
    """A process group, a rank that sends and one that receives, or two ranks that do both: what transfers go through.
    `columns` are its ranks' columns."""

    group: str
    role: str
    columns: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Transfers:
    """T transfers: through which channel, in which step, of which operation and size, and how long each took, at most
    (`most`) and at least (`least`). `messages`: of so many, of that size each, these are the times."""

    channel: Numbers
    step: Numbers
    op: Numbers
    size: Numbers
    most: Times
    least: Times
    messages: Numbers


def no_transfers() -> Transfers:
    empty = np.zeros(0, np.int64)
    return Transfers(empty, empty, empty, empty, np.zeros(0), np.zeros(0), empty)


def add_channels(channels: list[Channel], found: dict[int, Channel]) -> dict[int, int]:
    """Adds the channels that were `found`, and returns the place of each by its number."""
    places = {number: len(channels) + place for place, number in enumerate(found)}
    channels += found.values()
    return places


def blocked_seconds(collectives: Collectives) -> Times:
    """[C]: how long each rank was blocked in its collective. Without a record of it, in all of it."""
    seconds = collectives.end - collectives.start
    return np.where(np.isnan(collectives.waited), seconds, np.clip(collectives.waited, 0.0, np.fmax(seconds, 0.0)))


def grouped(key: Sequence[NDArray[np.integer]]) -> tuple[Numbers, Numbers]:
    """The order in which rows with equal keys stand together, and where each of them begins."""
    order = np.lexsort(tuple(key))
    if not len(order):
        return order, order
    changes = np.zeros(len(order), np.bool_)
    changes[0] = True
    for column in key:
        changes[1:] |= column[order[1:]] != column[order[:-1]]
    return order, np.flatnonzero(changes)


# The time that messages between two ranks take, by what sends and their receives tell, each on its own clock. Pure.
#
# A send and its receive end together, so that whoever came last did not wait: the shorter of the two is the transfer.
# But a rank that goes on with its own work learns late that a transfer is over, and its time is then a bound alone. It
# is sure that both sides were blocked for no longer than the transfer lasts. A **round trip** tells more: the way there
# and the way back, in which the difference of the two clocks has the other sign. It is sure where both receivers came
# first.

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


def ways_of_messages(timings: JobTimings, steps: Numbers) -> Ways | None:
    """The ways of messages, each by itself, in each of `steps` [S]; None where no pair of ranks sends both ways. A link
    that lets a burst through at full rate and holds up what follows, as a token bucket does, shows in these alone."""
    collectives = timings.collectives
    messages = None if collectives is None else messages_of(collectives, timings)
    if collectives is None or messages is None:
        return None
    ended = blocked_seconds(collectives)[messages.recv] > 0
    trips = round_trips(collectives, messages, ended)
    seconds = _on_the_way(collectives, messages, trips, ended)
    known = np.flatnonzero(np.isfinite(seconds) & trips.is_sure[trips.kind])
    channels: list[Channel] = []
    channel = pair_channels(channels, PAIR_ROLE, messages.source, messages.target, len(timings.ranks))[known]
    at, seconds = messages.send[known], seconds[known]
    transfers = Transfers(channel, collectives.step[at], np.full(len(at), SEND), collectives.size[at],
                          seconds, seconds, np.ones(len(at), np.int64))  # fmt: skip
    return _ways_by(timings, steps, channels, transfers)


def _on_the_way(collectives: Collectives, messages: Messages, trips: Trips, ended: NDArray[np.bool_]) -> Times:
    """[M]: for how long each message was on its way, as far as its receiver was blocked: the least is the shortest of
    its step; what queues behind another is not slower for that. nan where nothing went back. `ended` [M]: its receiver
    was blocked until it came."""
    came, sent = collectives.end[messages.recv], collectives.start[messages.send]
    way = np.where(ended, came - sent, np.inf)
    direction = 2 * trips.kind + (messages.source < messages.target)
    shortest = _at_least(direction, way, 2 * len(trips.seconds))
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


# The time that transfers take, without comparing clocks: the last member to come to a collective does not wait in it.
# Pure.
#
# So the least time that any member spends in a collective is its transfer, whatever the others waited. Sends and
# receives follow below.
#
# A rank that goes on with its own work while data are on the way learns late that they have come: its time in a
# transfer is then no transfer, but a bound. The transfer has lasted at least for as long as all members were blocked in
# it.

RECORDED_SHARE, MANY_MEMBERS = 0.75, 16
"""The share of a group's members that have to have recorded a collective, in groups of so many, all of which are seen:
of a thousand ranks that lose one record in a thousand, some lack almost every collective. Who is missing seldom came
last."""


class Category(NamedTuple):
    """Transfers that take equally long on equal links: of one operation and size, in channels of one role that have as
    many ranks on as many machines. `most` and `least` [S, K]: their time in each step, in each of K `channels`, is no
    more and no less; nan where there were none. `size`: the bytes of a channel's transfers of a step."""

    channels: tuple[int, ...]
    most: Times
    least: Times
    size: float = 0.0


class Ways(NamedTuple):
    """The channels of a job, and the transfers that go through links, in each of its steps."""

    channels: Sequence[Channel]
    categories: Sequence[Category]


def ways_of(timings: JobTimings, steps: Numbers) -> Ways | None:
    """Those of a job in each of `steps` [S], ascending; None where its collectives are not recorded."""
    if timings.collectives is None:
        return None
    return _ways_by(timings, steps, *channels_and_transfers(timings, timings.collectives))


def _ways_by(timings: JobTimings, steps: Numbers, channels: Sequence[Channel], transfers: Transfers) -> Ways:
    """Those of these channels and transfers, in each of `steps` [S], ascending."""
    categories = _categories(transfers, channels, node_numbers(timings.nodes), steps)
    return Ways(channels, _with_links(categories, channels, timings))


def _with_links(categories: Sequence[Category], channels: Sequence[Channel], timings: JobTimings) -> Sequence[Category]:
    """Those of which the transfers go through links. Ranks without a GPU that are on one machine share its memory: how
    long data take there says who got CPU time. A profile does not tell who has a GPU."""
    if timings.profiled:
        return categories
    machine = node_numbers(timings.nodes)
    has_gpu = np.array([gpu is not None for gpu in timings.gpus])
    in_memory = [
        len(set(machine[list(each.columns)].tolist())) == 1 and not has_gpu[list(each.columns)].any()
        for each in channels
    ]
    return [category for category in categories if not all(in_memory[number] for number in category.channels)]


def channels_and_transfers(timings: JobTimings, collectives: Collectives) -> tuple[list[Channel], Transfers]:
    """The channels of a job, and every transfer through them."""
    channels: list[Channel] = []
    transfers = [_of_groups(collectives, timings, channels), transfers_of_pairs(collectives, timings, channels)]
    names = [field.name for field in dataclasses.fields(Transfers)]
    return channels, Transfers(*(np.concatenate([getattr(each, name) for each in transfers]) for name in names))


def _of_groups(collectives: Collectives, timings: JobTimings, channels: list[Channel]) -> Transfers:
    """The transfers of collectives that the members of the group have finished: all of them, as far as records of
    members that are seen are not lost."""
    rows = np.flatnonzero((collectives.peer < 0) & (collectives.seq >= 0) & (collectives.op >= 0))
    key = (collectives.group[rows], collectives.op[rows], collectives.seq[rows])
    order, first = grouped(key)
    rows = rows[order]
    if not len(rows):
        return no_transfers()
    least = np.minimum.reduceat((collectives.end - collectives.start)[rows], first)
    blocked = np.minimum.reduceat(blocked_seconds(collectives)[rows], first)
    count = np.diff(np.append(first, len(rows)))
    group = collectives.group[rows][first]
    members = _members(collectives, timings, group, rows, first)
    needed = {number: _needed(columns) for number, columns in members.items()}
    known = np.isfinite(least) & (count >= np.array([needed[int(each)] for each in group])) & (count > 1)
    places = add_channels(
        channels,
        {
            number: Channel(collectives.groups[number].name, collectives.groups[number].role, members[number])
            for number in members
        },
    )
    some = rows[first[known]]
    channel = np.array([places[int(each)] for each in group[known]], np.int64)
    return Transfers(channel, collectives.step[some], collectives.op[some].astype(np.int64),
                      collectives.size[some], least[known], blocked[known], np.ones(len(some), np.int64))  # fmt: skip


def _needed(members: tuple[int, ...]) -> int:
    """The number of members, by their columns, that have to have recorded a collective: more than all where one is not
    seen, since that one may have come last."""
    if -1 in members:
        return len(members) + 1
    return math.ceil(RECORDED_SHARE * len(members)) if len(members) >= MANY_MEMBERS else len(members)


def _members(
    collectives: Collectives, timings: JobTimings, group: NDArray[np.int32], rows: Numbers, first: Numbers
) -> dict[int, tuple[int, ...]]:
    """The columns of each group's members: as declared, else of the ranks whose records name the group. A group of
    which a member is not seen has no transfer: that one may have come last."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    seen = distinct(np.stack((collectives.group[rows], collectives.column[rows])), axis=1)
    members = {}
    for number in distinct(group).tolist():
        declared = collectives.groups[number].ranks
        if declared:
            members[number] = tuple(columns.get(rank, -1) for rank in declared)
        else:
            members[number] = tuple(seen[1, seen[0] == number].tolist())
    return members


def _categories(transfers: Transfers, channels: Sequence[Channel], machine: Numbers, steps: Numbers) -> list[Category]:
    shapes: dict[tuple[str, int, int], int] = {}
    shape = np.array(
        [
            shapes.setdefault(
                (each.role, len(each.columns), len(set(machine[list(each.columns)].tolist()))), len(shapes)
            )
            for each in channels
        ],
        np.int64,
    )
    place = np.minimum(np.searchsorted(steps, transfers.step), max(len(steps) - 1, 0))
    known = np.flatnonzero(steps[place] == transfers.step) if len(steps) else np.zeros(0, np.int64)
    order, first = grouped((shape[transfers.channel[known]], transfers.op[known], transfers.size[known]))
    found = []
    for rows in np.split(known[order], first[1:]):
        if not len(rows):
            continue
        those, position = np.unique(transfers.channel[rows], return_inverse=True)
        cells = place[rows] * len(those) + position
        table = len(steps), len(those)
        count = np.bincount(cells, minlength=len(steps) * len(those))
        usual = middle(count[count > 0])  # a record that is lost does not make a step shorter
        most, least = (
            np.where(
                count > 0, np.bincount(cells, each[rows], len(count)) / np.maximum(count, 1) * usual, np.nan
            ).reshape(table)
            for each in (transfers.most, transfers.least)
        )
        size = transfers.size[rows[0]] * middle(transfers.messages[rows]) * usual
        found.append(Category(tuple(those.tolist()), most, least, float(size)))
    return found
