"""Single collectives of the ranks that a timeline shows: as intervals within steps, and who waits for what. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from laggard.collector.scrape.looked_ranks import LookedRank
from laggard.collector.web.documents import CollectiveSpan, CollectiveWait, GroupWait
from laggard.constants import OPS
from laggard.locate.job_timings import JobTimings
from laggard.locate.step_tables import START, STEP

MAX_SPANS: Final = 256
"""The most spans of one rank in one document: those in which it waited the longest."""

_MAX_WAITS: Final = 6
_MAX_GROUPS: Final = 8


class RankCollective(NamedTuple):
    """`column`: the place of its step in the window. `start` and `end`: from the begin of that step, None where that is
    not known."""

    column: int
    op: str
    group: str
    peer: int | None
    start: float | None
    end: float | None
    waited: float


def recorded_collectives(timings: JobTimings, place: int, window: slice) -> list[RankCollective]:
    """Those of the rank in column `place` that the timings have."""
    found, steps = timings.collectives, timings.steps[window]
    if found is None or not len(steps):
        return []
    known = timings.step_starts
    starts = np.full(len(steps), np.nan) if known is None else known[window, place]
    chosen = np.flatnonzero((found.column == place) & (found.step >= steps[0]) & (found.step <= steps[-1]))
    return [
        _in_step(
            np.searchsorted(steps, found.step[at]),
            starts,
            OPS[found.op[at]] if found.op[at] >= 0 else "collective",
            found.groups[found.group[at]].name,
            int(found.peer[at]),
            (float(found.start[at]), float(found.end[at]), float(found.waited[at])),
        )
        for at in chosen
    ]


def looked_collectives(looked: LookedRank, timings: JobTimings, window: slice) -> list[RankCollective]:
    """Those that an agent sent of a rank, in the steps of the window. Its first step may be cut."""
    steps, lanes = timings.steps[window], looked.collectives.lanes
    starts = np.full(len(steps), np.nan)
    numbers = looked.steps[:, STEP].astype(np.int64)
    held = np.isin(numbers, steps)
    starts[np.searchsorted(steps, numbers[held])] = looked.steps[held, START]
    first = min((row.step for row in looked.collectives.rows), default=0)
    column = {int(step): place for place, step in enumerate(steps)}
    return [
        _in_step(
            column[row.step],
            starts,
            lanes[row.lane].op,
            lanes[row.lane].group,
            lanes[row.lane].peer,
            (row.start, row.end, row.waited),
        )
        for row in looked.collectives.rows
        if row.step in column and row.step > first
    ]


def _in_step(
    column: int, starts: np.ndarray, op: str, group: str, peer: int, times: tuple[float, float, float]
) -> RankCollective:
    start, end, waited = times
    begun, blocked = float(starts[column]), waited if not np.isnan(waited) else end - start
    known = not np.isnan(begun) and not np.isnan(end)
    return RankCollective(
        int(column),
        op,
        group,
        peer if peer >= 0 else None,
        start - begun if known else None,
        end - begun if known else None,
        0.0 if np.isnan(blocked) else blocked,
    )


def spans_of(found: Sequence[RankCollective]) -> tuple[CollectiveSpan, ...]:
    """The longest waits of those whose time is known, in the order of their begin."""
    known = [it for it in found if it.start is not None and it.end is not None]
    longest = sorted(known, key=lambda it: -it.waited)[:MAX_SPANS]
    return tuple(
        CollectiveSpan(it.column, it.op, it.group, it.peer, round(it.start, 6), round(it.end, 6), round(it.waited, 6))
        for it in sorted(longest, key=lambda it: (it.column, it.start))
        if it.start is not None and it.end is not None
    )


def waits_of(found: Iterable[RankCollective]) -> tuple[CollectiveWait, ...]:
    """The collectives that one rank waited in, by operation and group, the longest first."""
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for it in found:
        totals[it.op, it.group].append(it.waited)
    waits = [CollectiveWait(op, group, len(each), round(sum(each), 6)) for (op, group), each in totals.items()]
    return tuple(sorted((it for it in waits if it.seconds), key=lambda wait: -wait.seconds)[:_MAX_WAITS])


def group_waits(by_rank: Mapping[int, Sequence[RankCollective]]) -> tuple[GroupWait, ...]:
    """The waits of all ranks that are shown, by what they wait for."""
    totals: dict[tuple[str, str, int | None], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank, found in by_rank.items():
        for it in found:
            totals[it.op, it.group, it.peer][rank].append(it.waited)
    waits = [_group_wait(*place, ranks) for place, ranks in totals.items()]
    return tuple(sorted((it for it in waits if it.longest), key=lambda wait: -wait.longest)[:_MAX_GROUPS])


def _group_wait(op: str, group: str, peer: int | None, ranks: Mapping[int, Sequence[float]]) -> GroupWait:
    seconds = {rank: sum(each) for rank, each in ranks.items()}
    longest, least = max(seconds, key=lambda it: seconds[it]), min(seconds, key=lambda it: seconds[it])
    several = len(seconds) > 1
    return GroupWait(
        op=op,
        group=group,
        peer=peer,
        count=max(len(each) for each in ranks.values()),
        longest_rank=longest,
        longest=round(seconds[longest], 6),
        least_rank=least if several else None,
        least=round(seconds[least], 6) if several else None,
    )
