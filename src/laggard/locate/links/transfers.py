"""The time that transfers take, without comparing clocks: the last member to come to a collective does not wait in it.
Pure.

So the least time that any member spends in a collective is its transfer, whatever the others waited. Sends and receives
are in pairs.py.

A rank that goes on with its own work while data are on the way learns late that they have come: its time in a transfer
is then no transfer, but a bound. The transfer has lasted at least for as long as all members were blocked in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from laggard.locate.links.pairs import transfers_of_pairs
from laggard.locate.medians import distinct, middle
from laggard.locate.slow.peers import node_numbers

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
    return ways_by(timings, steps, *channels_and_transfers(timings, timings.collectives))


def ways_by(timings: JobTimings, steps: Numbers, channels: Sequence[Channel], transfers: Transfers) -> Ways:
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
