"""The collectives of a live job's ranks, as their agents sent them, as arrays. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from laggard.kit.constants import OPS
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.locate.job_timings import JobTimings
from laggard.locate.live_positions import declared_groups
from laggard.rankfile.fact_names import members_of
from laggard.wire.ranks import CollectiveRow, RankCollectives, RankRow

_OPS = {name: number for number, name in enumerate(OPS)}


def with_collectives(
    timings: JobTimings, found: Mapping[int, RankCollectives], rows: Mapping[int, RankRow]
) -> JobTimings:
    """`timings` with the collectives of the steps that all of the ranks in `found` have: ranks are asked one after the
    other, and what only some had begun by then would look like a rank that never came. `rows`: the newest about each
    rank, for the members of its groups."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    held = {rank: it for rank, it in found.items() if rank in columns and rank in rows and it.rows}
    if len(held) < 2:
        return timings
    first = max(min(row.step for row in it.rows) for it in held.values())
    last = min(max(row.step for row in it.rows) for it in held.values())
    groups: dict[ProcessGroup, int] = {}
    table = []
    for rank, it in sorted(held.items()):
        places = _places(it, rows[rank], groups)
        table += [
            (columns[rank], *places[row.lane], it.lanes[row.lane].peer, *_numbers(row))
            for row in it.rows
            if first < row.step < last  # the first and the last step that a ring holds may be cut
        ]
    return dataclasses.replace(timings, collectives=_arrays(table, tuple(groups))) if table else timings


def _places(it: RankCollectives, row: RankRow, groups: dict[ProcessGroup, int]) -> list[tuple[int, int]]:
    """The number of each lane's group, which is added to `groups` where it is new, and that of its operation."""
    members = {group.name: members_of(group.runs) for group in declared_groups(row)}
    found = []
    for lane in it.lanes:
        group = ProcessGroup(lane.group, lane.role, members.get(lane.group, ()))
        found.append((groups.setdefault(group, len(groups)), _OPS.get(lane.op, -1)))
    return found


def _numbers(row: CollectiveRow) -> tuple[float, ...]:
    return row.step, row.seq, row.size, row.start, row.end, row.waited


def _arrays(table: list[tuple[float, ...]], groups: tuple[ProcessGroup, ...]) -> Collectives:
    column, group, op, peer, step, seq, size, start, end, waited = np.array(table, np.float64).T
    return Collectives(
        column=column.astype(np.int32),
        step=step.astype(np.int64),
        group=group.astype(np.int32),
        op=op.astype(np.int8),
        seq=seq.astype(np.int64),
        size=size.astype(np.int64),
        peer=peer.astype(np.int32),
        start=start,
        end=end,
        waited=waited,
        groups=groups,
    )
