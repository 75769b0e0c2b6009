"""The channels that transfers go through, and how long transfers take, without comparing clocks. Pure.

The last member to come to a collective does not wait in it, so that the least time of any member is the transfer,
whatever the others waited. A send and its receive end together: the shorter of the two is the transfer.

A rank that goes on with its own work while data are on the way learns late that they have come: its time is then a
bound alone. The transfer has lasted at least for as long as all members were blocked in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import RECV, SEND, Collectives, Numbers, Times
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import distinct, least_of, middle, numbered
from laggard.locate.shares import MOST
from laggard.locate.slow.steps import node_numbers

PAIR_ROLE, ROUND_TRIP_ROLE = "pair", "round trip"

PAIR_RATIO = 2.0
"""The ratio of two equal channels' times from which on the slower one is slow, and that of how long groups are blocked
by transfers beside work: two healthy ways of one kind do not differ by as much. Nor does the copy of a message from its
transfer, where the send ends once its data are copied. The ablation decides by it."""

MANY_MEMBERS = 16
"""The members of a group, all of which are seen, from which on MOST have to have recorded a collective: of a thousand
ranks that lose one record in a thousand, some lack almost every collective. Who is missing seldom came last."""


class Channel(NamedTuple):
    """A process group, a rank that sends and one that receives, or two ranks that do both: what transfers go through.
    `columns` are its ranks' columns."""

    group: str
    role: str
    columns: tuple[int, ...]


class Transfers(NamedTuple):
    """T transfers: through which channel, in which step, of which operation and size, and how long each took, at most
    (`most`) and at least (`least`)."""

    channel: Numbers
    step: Numbers
    op: Numbers
    size: Numbers
    most: Times
    least: Times

    def by_step(self, rows: Numbers, steps: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The numbers [C] of the channels of the transfers in `rows` [K], the cell of each by step and channel [K], and
        how many are in each [S, C]. `steps` [S] ascend, and have all of theirs."""
        channels, place = np.unique(self.channel[rows], return_inverse=True)
        cells = np.searchsorted(steps, self.step[rows]) * len(channels) + place.reshape(-1)
        count = np.bincount(cells, minlength=len(steps) * len(channels))
        return channels, cells, count.reshape(len(steps), len(channels))


class Category(NamedTuple):
    """Transfers that take equally long on equal links: of one operation and size, in channels of one role that have as
    many ranks on as many machines. `most` and `least` [S, K]: their time in each step, in each of K `channels`, is no
    more and no less; nan where there were none. `machines` [K]: those of each channel;
    `kinds` [K]: the same for channels among the same stages of the pipeline; `kinds_back` [K]: that of the way back."""

    channels: tuple[int, ...]
    machines: tuple[frozenset[int], ...]
    kinds: Numbers
    kinds_back: Numbers
    most: Times
    least: Times


class Ways(NamedTuple):
    """The channels of a job, and the transfers that go through links, in each of its steps."""

    channels: Sequence[Channel]
    categories: Sequence[Category]


def ways_of(timings: JobTimings, steps: Numbers) -> Ways:
    """Those of a job in each of `steps` [S], ascending; none where its collectives are not recorded."""
    if timings.collectives is None:
        return Ways((), ())
    return _ways_by(timings, steps, *channels_and_transfers(timings, timings.collectives))


def ways_of_messages(timings: JobTimings, steps: Numbers) -> Ways | None:
    """The ways of messages, each by itself, in each of `steps` [S]; None where no pair of ranks sends both ways. A link
    that lets a burst through at full rate and holds up what follows, as a token bucket does, shows in these alone."""
    messages = None if timings.collectives is None else _messages_of(timings.collectives, timings)
    if messages is None:
        return None
    trips = _round_trips(messages, messages.blocked[1] > 0)
    seconds = _on_the_way(messages, trips)
    known = np.flatnonzero(np.isfinite(seconds) & trips.is_sure[trips.kind])
    channels: list[Channel] = []
    channel = _pair_channels(channels, PAIR_ROLE, messages.source, messages.target)
    transfers = _transfers(messages, known, channel[known], SEND, seconds[known], seconds[known])
    return _ways_by(timings, steps, channels, transfers)


def _ways_by(timings: JobTimings, steps: Numbers, channels: Sequence[Channel], transfers: Transfers) -> Ways:
    """Those of which the transfers go through links. Ranks without a GPU that are on one machine share its memory: how
    long data take there says who got CPU time. A profile does not tell who has a GPU."""
    machine = node_numbers(timings.nodes)
    machines = [frozenset(machine[list(each.columns)].tolist()) for each in channels]
    in_memory = [
        not timings.profiled
        and len(on) == 1
        and not any(timings.gpus[column] is not None for column in channel.columns)
        for channel, on in zip(channels, machines, strict=True)
    ]
    shape = numbered([(each.role, len(each.columns), len(on)) for each, on in zip(channels, machines, strict=True)])
    stages = np.zeros(len(machine), np.int64) if timings.stages is None else timings.stages
    of_stages = [tuple(dict.fromkeys(stages[list(each.columns)].tolist())) for each in channels]
    kinds = numbered([*of_stages, *(each[::-1] for each in of_stages)]).reshape(2, -1)
    categories = _categories(transfers, shape, machines, kinds, steps)
    return Ways(channels, [each for each in categories if not all(in_memory[number] for number in each.channels)])


def _categories(
    transfers: Transfers, shape: Numbers, machines: Sequence[frozenset[int]], kinds: Numbers, steps: Numbers
) -> list[Category]:
    """`shape` [C]: the same number for channels of one role, with as many ranks on as many machines. `kinds` [2, C]."""
    known = np.flatnonzero(np.isin(transfers.step, steps))
    kind, op, size = shape[transfers.channel[known]], transfers.op[known], transfers.size[known]
    size, share = _comparable(kind, op, size, transfers.channel[known])
    order, first = _grouped((kind, op, size))
    found = []
    for those_of in np.split(order, first[1:]) if len(known) else ():
        rows = known[those_of]
        those, cells, count = transfers.by_step(rows, steps)
        usual = middle(count[count > 0])  # a record that is lost does not make a step shorter
        taken = (each[rows] * share[those_of] for each in (transfers.most, transfers.least))
        most, least = (_a_step(each, cells, count.shape) * usual for each in taken)
        numbers = tuple(those.tolist())
        on = tuple(machines[number] for number in numbers)
        found.append(Category(numbers, on, kinds[0, those], kinds[1, those], most, least))
    return found


def _comparable(kind: Numbers, op: Numbers, size: Numbers, channel: Numbers) -> tuple[Numbers, Times]:
    """The sizes by which transfers are compared, and what the seconds of each are multiplied with. Where most are one
    channel's alone, as those of tokens that a router sends, all within a factor of two are one size, per byte."""
    alike, share = size.copy(), np.ones(len(size))
    order, first = _grouped((kind, op))
    for rows in np.split(order, first[1:]) if len(order) else ():
        pairs = distinct(np.stack((size[rows], channel[rows])), axis=1)
        sizes, count = np.unique(pairs[0], return_counts=True)
        if len(distinct(pairs[1])) > 1 and middle(count[np.searchsorted(sizes, size[rows])]) < 2 and sizes[0] > 0:
            alike[rows] = 2 ** np.round(np.log2(size[rows])).astype(np.int64)
            share[rows] = alike[rows] / size[rows]
    return alike, share


def _a_step(seconds: Times, cells: Numbers, table: tuple[int, ...]) -> Times:
    """[S, K]: the mean of those `seconds` of each cell that are known; nan of none."""
    known = np.isfinite(seconds)
    total, count = (np.bincount(cells[known], each, math.prod(table)) for each in (seconds[known], None))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(table)


def _grouped(key: Sequence[NDArray[np.integer]]) -> tuple[Numbers, Numbers]:
    """The order in which rows with equal keys stand together, and where each of them begins."""
    order = np.lexsort(tuple(key))
    changes = np.zeros(len(order), np.bool_)
    changes[:1] = True
    for column in key:
        changes[1:] |= column[order[1:]] != column[order[:-1]]
    return order, np.flatnonzero(changes)


def channels_and_transfers(timings: JobTimings, collectives: Collectives) -> tuple[list[Channel], Transfers]:
    """The channels of a job, and every transfer through them."""
    channels, of_groups = _of_groups(collectives, timings)
    found = [of_groups]
    messages = _messages_of(collectives, timings)
    if messages is not None:
        found.append(_copied(messages, channels) or _ended_together(messages, channels))
    return channels, Transfers(*map(np.concatenate, zip(*found, strict=True)))


def _of_groups(collectives: Collectives, timings: JobTimings) -> tuple[list[Channel], Transfers]:
    """Each group as a channel, and the transfers of collectives that its members have finished: all of them, as far as
    records of members that are seen are not lost."""
    rows = np.flatnonzero((collectives.peer < 0) & (collectives.seq >= 0) & (collectives.op >= 0))
    order, first = _grouped((collectives.group[rows], collectives.op[rows], collectives.seq[rows]))
    rows = rows[order]
    group = collectives.group[rows][first]
    members, groups = _members(collectives, timings, rows), collectives.groups
    seconds, blocked = collectives.end[rows] - collectives.start[rows], _blocked_seconds(collectives, rows)
    most, least = (np.minimum.reduceat(each, first) for each in (seconds, blocked))
    count = np.diff(np.append(first, len(rows)))
    channels = [Channel(groups[number].name, groups[number].role, columns) for number, columns in members.items()]
    needed = np.array([*map(_needed, members.values())])
    place = np.searchsorted([*members], group)
    known = np.isfinite(most) & (count >= needed[place]) & (count > 1)
    some = rows[first[known]]
    step, op, size = collectives.step[some], collectives.op[some].astype(np.int64), collectives.size[some]
    return channels, Transfers(place[known], step, op, size, most[known], least[known])


def _members(collectives: Collectives, timings: JobTimings, rows: Numbers) -> dict[int, tuple[int, ...]]:
    """The columns of each group's members: as declared, -1 for one that is not seen; else of the ranks whose records
    name the group."""
    seen = distinct(np.stack((collectives.group[rows], collectives.column[rows])), axis=1)
    members = {}
    for number in distinct(seen[0]).tolist():
        declared = collectives.groups[number].ranks
        of_records = tuple(seen[1, seen[0] == number].tolist())
        members[number] = tuple(timings.column_of.get(rank, -1) for rank in declared) if declared else of_records
    return members


def _needed(members: tuple[int, ...]) -> int:
    """The number of members, by their columns, that have to have recorded a collective: more than all where one is not
    seen, since that one may have come last."""
    if -1 in members:
        return len(members) + 1
    return math.ceil(MOST * len(members)) if len(members) >= MANY_MEMBERS else len(members)


def _blocked_seconds(collectives: Collectives, rows: Numbers) -> Times:
    """For how long each rank was blocked in its collective. Without a record of it, in all of it."""
    seconds, waited = collectives.end[rows] - collectives.start[rows], collectives.waited[rows]
    return np.where(np.isnan(waited), seconds, np.clip(waited, 0.0, np.fmax(seconds, 0.0)))


# Messages between two ranks.
#
# It is sure that both sides were blocked for no longer than the transfer lasted. A **round trip** tells more: the way
# there and the way back, in which the difference of the two clocks has the other sign. It is sure where both receivers
# came first.


class Messages(NamedTuple):
    """M messages of which the send and the receive are recorded, and have ended. `sent` and `came`: the begin of the
    send and the end of the receive, each on its own clock. `seconds` and `blocked` [2, M]: how long the send and the
    receive took, and were blocked."""

    source: Numbers
    target: Numbers
    step: Numbers
    size: Numbers
    seq: Numbers
    sent: Times
    came: Times
    seconds: Times
    blocked: Times


class Trips(NamedTuple):
    """The shortest round trips of G kinds of messages: between the same two ranks, in one step, of one size. `kind`
    [M]: the kind of each message. `seconds` [G]: half of the shortest way there and back, which is a transfer or, where
    receivers came late, longer; nan where nothing went back. `is_sure` [G]: it is a transfer. In each direction some
    receiver was blocked for as long: it was there first, or the transfer lasts as long as it was blocked."""

    kind: Numbers
    seconds: Times
    is_sure: NDArray[np.bool_]


def _messages_of(collectives: Collectives, timings: JobTimings) -> Messages | None:
    """Those of a job; None without any."""
    rows = np.flatnonzero((collectives.peer >= 0) & (collectives.seq >= 0) & np.isfinite(collectives.end))
    rows = rows[collectives.is_message[rows] & np.isin(collectives.peer[rows], timings.ranks)]
    if not len(rows):
        return None
    rows = rows[np.argsort(collectives.op[rows] != SEND, kind="stable")]
    source, target = (np.searchsorted(timings.ranks, ends[rows]) for ends in collectives.ends(timings.ranks))
    order, first = _grouped((source, target, collectives.seq[rows]))
    first = first[np.diff(np.append(first, len(rows))) == 2]
    at, records = order[first], np.stack((rows[order[first]], rows[order[first + 1]]))
    seconds, blocked = collectives.end[records] - collectives.start[records], _blocked_seconds(collectives, records)
    send, recv = records
    return Messages(source[at], target[at], collectives.step[send], collectives.size[send], collectives.seq[send],
                    collectives.start[send], collectives.end[recv], seconds, blocked)  # fmt: skip


def _ended_together(messages: Messages, channels: list[Channel]) -> Transfers:
    most, least = messages.seconds.min(axis=0), messages.blocked.min(axis=0)
    trips = _round_trips(messages, messages.blocked[1] > 0)
    is_sure = trips.is_sure[trips.kind]
    exact = np.minimum(messages.seconds[1], trips.seconds[trips.kind])  # a send may end before its data arrive
    channel = _pair_channels(channels, PAIR_ROLE, messages.source, messages.target)
    every = np.arange(len(most))
    return _transfers(messages, every, channel, SEND, np.where(is_sure, exact, most), np.where(is_sure, exact, least))


def _copied(messages: Messages, channels: list[Channel]) -> Transfers | None:
    """The transfers by receives alone, which show them where a send ends once its data are copied: from the send's
    begin to the end of a receive that waited. None where sends last as long as transfers."""
    copied = messages.seconds[0]
    trips = _round_trips(messages, messages.blocked[1] > PAIR_RATIO * copied)
    known = np.flatnonzero(np.isfinite(trips.seconds))
    if not len(known) or middle(trips.seconds[known]) <= PAIR_RATIO * middle(copied):
        return None
    at = np.unique(trips.kind, return_index=True)[1][known]
    low, high = np.sort((messages.source[at], messages.target[at]), axis=0)
    channel = _pair_channels(channels, ROUND_TRIP_ROLE, low, high)
    seconds = trips.seconds[known] * np.bincount(trips.kind)[known]
    return _transfers(messages, at, channel, RECV, seconds, np.where(trips.is_sure[known], seconds, 0.0))


def _transfers(messages: Messages, some: Numbers, channel: Numbers, op: int, most: Times, least: Times) -> Transfers:
    """Those of some of the messages."""
    return Transfers(channel, messages.step[some], np.full(len(some), op), messages.size[some], most, least)


def _pair_channels(channels: list[Channel], role: str, source: Numbers, target: Numbers) -> Numbers:
    """The channel of each pair of columns; they are added."""
    pairs, place = np.unique((source.astype(np.int64) << 32) + target, return_inverse=True)
    first = len(channels)
    channels += [Channel("", role, divmod(pair, 1 << 32)) for pair in pairs.tolist()]
    found: Numbers = first + place
    return found


def _round_trips(messages: Messages, ended: NDArray[np.bool_]) -> Trips:
    """Round trips from the send's begin to the end of a receive. `ended` [M]: the receiver was blocked until it ended,
    so that its end is that of the transfer."""
    low, high = np.sort((messages.source, messages.target), axis=0)
    order, first = _grouped((low, high, messages.size, messages.step))
    kind = np.empty(len(order), np.int64)
    kind[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    way, total, waits = messages.came - messages.sent, np.zeros(len(first)), np.full(len(first), np.inf)
    for goes in (messages.source == low, messages.target == low):
        total += least_of(kind, np.where(goes & ended, way, np.inf), len(first))
        waits = np.minimum(waits, -least_of(kind, np.where(goes, -messages.blocked[1], 0.0), len(first)))
    seconds = np.where(np.isfinite(total), np.maximum(total, 0.0) / 2, np.nan)
    return Trips(kind, seconds, waits >= MOST * seconds)


def _on_the_way(messages: Messages, trips: Trips) -> Times:
    """[M]: for how long each message was on its way, as far as its receiver was blocked: the least is the shortest of
    its step; what queues behind another is not slower for that. nan where nothing went back."""
    ended = messages.blocked[1] > 0
    way = np.where(ended, messages.came - messages.sent, np.inf)
    direction = 2 * trips.kind + (messages.source < messages.target)
    shortest = least_of(direction, way, 2 * len(trips.seconds))[direction]
    usual = trips.seconds[trips.kind]
    known = ended & np.isfinite(usual)
    longer = np.where(known, way, 0.0) - np.where(known, shortest, 0.0)
    most = np.minimum(messages.blocked[1], _since_the_one_before(messages))  # who works meanwhile learns of it late
    found: Times = np.maximum(usual, np.minimum(usual + longer, most))
    return found


def _since_the_one_before(messages: Messages) -> Times:
    """[M]: from the end of the receive before, of the same two ranks, to the message's own; infinite for the first."""
    order = np.lexsort((messages.seq, messages.target, messages.source))
    same = (np.diff(messages.source[order]) == 0) & (np.diff(messages.target[order]) == 0)
    found = np.full(len(order), np.inf)
    found[order[1:][same]] = np.diff(messages.came[order])[same]
    return found
