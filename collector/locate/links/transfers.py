"""How long transfers take, without comparing clocks: the last member to come to a collective does not wait in it. Pure.

So the least time that any member spends in a collective is its transfer, whatever the others waited. Of a send and its
receive it is the shorter of the two; where sends end before their data arrive, it is half of a round trip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.locate.collectives import Collectives, Numbers, Times
from laggard.collector.locate.job_timings import JobTimings
from laggard.collector.locate.slow.peers import node_numbers
from laggard.constants import OPS

SEND, RECV = OPS.index("send"), OPS.index("recv")
PAIR_ROLE, ROUND_TRIP_ROLE = "pair", "round trip"

TIMES_COPY = 3.0
"""A receive that takes so many times as long as the copy that its send was waited for data that were on the way."""


class Channel(NamedTuple):
    """A process group, a rank that sends and one that receives, or two ranks that do both: what transfers go through.
    `columns` are its ranks' columns."""

    group: str
    role: str
    columns: tuple[int, ...]


class Category(NamedTuple):
    """Transfers that take equally long on equal links: of one operation and size, in channels of one role that have as
    many ranks on as many machines. `seconds` [S, K] is their time in each step, in each of K `channels`; nan where
    there were none."""

    channels: tuple[int, ...]
    seconds: Times


@dataclasses.dataclass(frozen=True)
class _Transfers:
    """T transfers: through which channel, in which step, of which operation and size, and how long each took."""

    channel: Numbers
    step: Numbers
    op: Numbers
    size: Numbers
    seconds: Times


def channels_and_categories(
    timings: JobTimings, collectives: Collectives, steps: Numbers
) -> tuple[list[Channel], list[Category]]:
    """The channels of a job, and their times in each of `steps` [S], ascending."""
    channels: list[Channel] = []
    transfers = [_of_groups(collectives, timings, channels), _of_pairs(collectives, timings, channels)]
    names = [field.name for field in dataclasses.fields(_Transfers)]
    merged = _Transfers(*(np.concatenate([getattr(each, name) for each in transfers]) for name in names))
    return channels, _categories(merged, channels, node_numbers(timings.nodes), steps)


def _of_groups(collectives: Collectives, timings: JobTimings, channels: list[Channel]) -> _Transfers:
    """The transfers of collectives that all members of the group have finished."""
    rows = np.flatnonzero((collectives.peer < 0) & (collectives.seq >= 0) & (collectives.op >= 0))
    key = (collectives.group[rows], collectives.op[rows], collectives.seq[rows])
    order, first = _grouped(key)
    rows = rows[order]
    if not len(rows):
        return _nothing()
    least = np.minimum.reduceat((collectives.end - collectives.start)[rows], first)
    count = np.diff(np.append(first, len(rows)))
    group = collectives.group[rows][first]
    members = _members(collectives, timings, group, rows, first)
    known = np.isfinite(least) & (count == np.array([len(members[int(each)]) for each in group])) & (count > 1)
    places = _add_channels(
        channels,
        {
            number: Channel(collectives.groups[number].name, collectives.groups[number].role, members[number])
            for number in members
        },
    )
    some = rows[first[known]]
    channel = np.array([places[int(each)] for each in group[known]], np.int64)
    return _Transfers(channel, collectives.step[some], collectives.op[some].astype(np.int64),
                      collectives.size[some], least[known])  # fmt: skip


def _members(
    collectives: Collectives, timings: JobTimings, group: NDArray[np.int32], rows: Numbers, first: Numbers
) -> dict[int, tuple[int, ...]]:
    """The columns of each group's members: as declared, else of the ranks whose records name the group. A group of
    which a member is not seen has no transfer: that one may have come last."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    seen = np.unique(np.stack((collectives.group[rows], collectives.column[rows])), axis=1)
    members = {}
    for number in np.unique(group).tolist():
        declared = collectives.groups[number].ranks
        if declared:
            members[number] = tuple(columns.get(rank, -1) for rank in declared)
        else:
            members[number] = tuple(seen[1, seen[0] == number].tolist())
    return members


def _of_pairs(collectives: Collectives, timings: JobTimings, channels: list[Channel]) -> _Transfers:
    """The transfers of sends whose receive is recorded too."""
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
    order, first = _grouped((source, target, collectives.seq[rows]))
    rows, source, target = rows[order], source[order], target[order]
    if not len(rows):
        return _nothing()
    both = np.flatnonzero(np.diff(np.append(first, len(rows))) == 2)
    one, other = rows[first[both]], rows[first[both] + 1]
    sent = collectives.op[one] == SEND
    ends = _Messages(np.where(sent, one, other), np.where(sent, other, one), source[first[both]], target[first[both]])
    return _round_trips(collectives, timings, channels, ends) or _least_of_both(collectives, timings, channels, ends)


class _Messages(NamedTuple):
    """M messages: the record of each one's send and of its receive, and the columns of the two ranks."""

    send: Numbers
    recv: Numbers
    source: Numbers
    target: Numbers


def _least_of_both(
    collectives: Collectives, timings: JobTimings, channels: list[Channel], messages: _Messages
) -> _Transfers:
    """A send and its receive end together, so that whoever came last did not wait."""
    seconds = collectives.end - collectives.start
    least = np.minimum(seconds[messages.send], seconds[messages.recv])
    channel = _pair_channels(channels, PAIR_ROLE, messages.source, messages.target, len(timings.ranks))
    at = messages.send
    return _Transfers(channel, collectives.step[at], np.full(len(at), SEND), collectives.size[at], least)


def _round_trips(
    collectives: Collectives, timings: JobTimings, channels: list[Channel], messages: _Messages
) -> _Transfers | None:
    """Where a send ends once its data are copied, a receive alone shows the transfer: from the send's begin to the end
    of a receive that waited. Between two clocks their difference is in it, and with the other sign in what goes back:
    half of the shortest way there and back in a step is a transfer. None where sends last as long as transfers."""
    seconds = collectives.end - collectives.start
    copied, received = seconds[messages.send], seconds[messages.recv]
    way = collectives.end[messages.recv] - collectives.start[messages.send]
    low, high = np.minimum(messages.source, messages.target), np.maximum(messages.source, messages.target)
    size, step = collectives.size[messages.send], collectives.step[messages.send]
    key = (low, high, size, step)
    order, first = _grouped(key)
    if not len(order):
        return None
    number = np.empty(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    there, back = (
        _least(number, np.where(waiting & (received > TIMES_COPY * copied), way, np.inf), len(first))
        for waiting in (messages.source == low, messages.source == high)
    )
    known = np.flatnonzero(np.isfinite(there + back))
    trip = (there + back)[known] / 2
    if not len(known) or float(np.median(trip)) <= TIMES_COPY * float(np.median(copied)):
        return None
    at = order[first[known]]
    channel = _pair_channels(channels, ROUND_TRIP_ROLE, low[at], high[at], len(timings.ranks))
    count = np.bincount(number, minlength=len(first))[known]
    return _Transfers(channel, step[at], np.full(len(at), RECV), size[at], np.maximum(trip, 0.0) * count)


def _least(number: Numbers, values: Times, count: int) -> Times:
    """[count]: the least of the `values` with each number."""
    found = np.full(count, np.inf)
    np.minimum.at(found, number, values)
    return found


def _pair_channels(channels: list[Channel], role: str, source: Numbers, target: Numbers, ranks: int) -> Numbers:
    """The channel of each pair of columns; those that are new are added."""
    pairs = source.astype(np.int64) * ranks + target
    found = {number: Channel("", role, divmod(number, ranks)) for number in np.unique(pairs).tolist()}
    places = _add_channels(channels, found)
    return np.array([places[number] for number in pairs.tolist()], np.int64)


def _grouped(key: Sequence[NDArray[np.integer]]) -> tuple[Numbers, Numbers]:
    """The order in which rows with equal keys stand together, and where each of them begins."""
    order = np.lexsort(tuple(key))
    if not len(order):
        return order, order
    changes = np.zeros(len(order), np.bool_)
    changes[0] = True
    for column in key:
        changes[1:] |= column[order[1:]] != column[order[:-1]]
    return order, np.flatnonzero(changes)


def _add_channels(channels: list[Channel], found: dict[int, Channel]) -> dict[int, int]:
    places = {number: len(channels) + place for place, number in enumerate(found)}
    channels += found.values()
    return places


def _nothing() -> _Transfers:
    empty = np.zeros(0, np.int64)
    return _Transfers(empty, empty, empty, empty, np.zeros(0))


def _categories(transfers: _Transfers, channels: Sequence[Channel], machine: Numbers, steps: Numbers) -> list[Category]:
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
    order, first = _grouped((shape[transfers.channel[known]], transfers.op[known], transfers.size[known]))
    found = []
    for rows in np.split(known[order], first[1:]):
        if not len(rows):
            continue
        those, position = np.unique(transfers.channel[rows], return_inverse=True)
        cells = place[rows] * len(those) + position
        total = np.bincount(cells, transfers.seconds[rows], len(steps) * len(those))
        count = np.bincount(cells, minlength=len(total))
        usual = float(np.median(count[count > 0]))  # a record that is lost does not make a step shorter
        seconds = np.where(count > 0, total / np.maximum(count, 1) * usual, np.nan).reshape(len(steps), len(those))
        found.append(Category(tuple(those.tolist()), seconds))
    return found
