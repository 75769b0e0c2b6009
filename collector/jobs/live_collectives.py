"""The collectives of a live job's ranks, as their agents sent them, as arrays; and the ranks that are asked for them:
those that may sit at a slow link, and equal ones. Pure.

The rank that waits least in a step waits for nobody: what it waits is transfer. Where that is little, no link holds the
job up.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from laggard.kit.constants import OPS
from laggard.locate.collectives import Collectives, ProcessGroup
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.medians import median_over_steps, middle
from laggard.locate.positions import declared_groups
from laggard.locate.shares import MIN_COST
from laggard.locate.slow.noise import Blocks, blocks_of, joined_blocks
from laggard.locate.slow.steps import Steps
from laggard.rankfile.fact_names import members_of, size_of
from laggard.wire.ranks import RankCollectives, RankRow

_OPS = {name: number for number, name in enumerate(OPS)}


def with_collectives(
    timings: JobTimings, found: Mapping[int, RankCollectives], rows: Mapping[int, RankRow]
) -> JobTimings:
    """`timings` with the collectives of the steps that all of the ranks in `found` have: ranks are asked one after the
    other, and what only some had begun by then would look like a rank that never came. `rows`: the newest about each
    rank, for the members of its groups."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    held = {rank: found[rank] for rank in sorted(found) if rank in columns and rank in rows and found[rank].rows}
    if len(held) < 2:
        return timings
    first = max(min(row.step for row in it.rows) for it in held.values())
    last = min(max(row.step for row in it.rows) for it in held.values())
    groups: dict[ProcessGroup, int] = {}
    records = []
    for rank, it in held.items():
        members = {group.name: members_of(group.runs) for group in declared_groups(rows[rank])}
        of_lanes = [ProcessGroup(lane.group, lane.role, members.get(lane.group, ())) for lane in it.lanes]
        numbers = [groups.setdefault(group, len(groups)) for group in of_lanes]
        for row in it.rows:
            if first < row.step < last:  # the first and the last step that a ring holds may be cut
                lane, times = it.lanes[row.lane], (row.start, row.end, row.waited)
                group, op = numbers[row.lane], _OPS.get(lane.op, -1)
                records.append((columns[rank], row.step, group, op, row.seq, row.size, lane.peer, *times))
    return dataclasses.replace(timings, collectives=Collectives.from_records(records, groups)) if records else timings


MAX_RANKS = 64
"""The most ranks that are asked for their collectives; in a larger job, those of the suspect group and of equal
ones."""


def link_suspects(timings: JobTimings, rows: Mapping[int, RankRow]) -> tuple[int, ...]:
    """The ranks to ask, ascending; none where no link can cost MIN_COST. `rows`: the newest about each rank."""
    steps = Steps.usable(timings)
    if steps is None or not timings.waits_recorded or len(set(timings.nodes)) < 2:
        return ()
    least = np.fmin.reduce(steps.waited, axis=1)
    if not middle(least / steps.duration) > MIN_COST:
        return ()
    if len(timings.ranks) <= MAX_RANKS:
        return tuple(timings.ranks.tolist())
    return _suspect_and_equals(timings, steps, rows)


def _suspect_and_equals(timings: JobTimings, steps: Steps, rows: Mapping[int, RankRow]) -> tuple[int, ...]:
    """The members of the group that stands out most among equals, by the least that any member waits, and those of
    equal groups, as many whole groups as MAX_RANKS allows."""
    column = {int(rank): number for number, rank in enumerate(timings.ranks)}
    waited = np.nan_to_num(median_over_steps(steps.waited))
    declared = dict.fromkeys((group.role, group.runs) for row in rows.values() for group in declared_groups(row))
    kinds: dict[tuple[str, int], dict[tuple[int, ...], float]] = {}
    for role, runs in declared:
        members = members_of(runs) if 2 <= size_of(runs) <= MAX_RANKS // 2 else ()
        if members and column.keys() >= set(members):
            transfer = float(waited[[column[member] for member in members]].min())
            kinds.setdefault((role, len(members)), {})[members] = transfer
    equals = [found for found in kinds.values() if len(found) > 1]
    if not equals:
        return ()
    chosen = max(equals, key=lambda found: max(found.values()) - middle(list(found.values())))
    asked: set[int] = set()
    for members in sorted(chosen, key=lambda members: -chosen[members]):
        if len(asked.union(members)) > MAX_RANKS:
            break
        asked.update(members)
    return tuple(sorted(asked))


# How the noise of a live job's ranks lasted in windows that are over: a window of 128 steps does not tell what memory
# of hundreds of steps its noise has. Pure but for what is kept.

MAX_WINDOWS: Final = 16
"""The most windows that are kept of a job: what is older may have been another load."""

MAX_NOISE_RANKS: Final = 64
"""The most ranks that are looked at: their median tells as well as that of thousands."""


class _Window(NamedTuple):
    blocks: list[Blocks]
    levels: Floats  # [R]


class NoiseHistory:
    """The noise of one run of a job."""

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque(maxlen=MAX_WINDOWS)
        self._ranks: tuple[int, ...] = ()
        self._last = -1
        self.blocks: tuple[Blocks, ...] = ()

    def take(self, timings: JobTimings) -> None:
        """Takes a window in which nobody was accused, if none of its steps has been taken."""
        ranks, last = tuple(timings.ranks.tolist()), int(timings.steps[-1]) if len(timings.steps) else -1
        if ranks != self._ranks or last < self._last:
            self._windows.clear()
            self._ranks, self._last = ranks, -1
        if self._windows and last - self._last < len(timings.steps):
            return
        steps = Steps.usable(timings)
        if steps is None:
            return
        some = steps.excess[:, np.isfinite(steps.excess).all(axis=0)]
        relative = some[:, :: max(1, some.shape[1] // MAX_NOISE_RANKS)] / float(np.median(steps.duration))
        if relative.shape[1] < 2:
            return
        if self._windows and relative.shape[1] != len(self._windows[-1].levels):
            self._windows.clear()
        self._windows.append(_Window(blocks_of(relative), relative.mean(axis=0)))
        self._last = last
        longer = blocks_of(np.stack([each.levels for each in self._windows]))
        whole = [each._replace(length=each.length * len(steps.numbers)) for each in longer]
        self.blocks = tuple(joined_blocks([*(each.blocks for each in self._windows), whole]))
