"""How long transfers take, without comparing clocks: the last member to come to a collective does not wait in it. Pure.

So the least time that any member spends in a collective is its transfer, whatever the others waited. Of a send and its
receive it is the shorter of the two.
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
PAIR_ROLE = "pair"


class Channel(NamedTuple):
    """A process group, or a rank that sends and one that receives: what transfers go through. `columns` are its ranks'
    columns."""

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
    least = np.minimum.reduceat((collectives.end - collectives.start)[rows], first)
    both = np.diff(np.append(first, len(rows))) == 2
    some, least = first[both], least[both]
    pairs = source[some].astype(np.int64) * len(timings.ranks) + target[some]
    found = {number: Channel("", PAIR_ROLE, divmod(number, len(timings.ranks))) for number in np.unique(pairs).tolist()}
    places = _add_channels(channels, found)
    channel = np.array([places[number] for number in pairs.tolist()], np.int64)
    at = rows[some]
    return _Transfers(channel, collectives.step[at], np.full(len(at), SEND), collectives.size[at], least)


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
