"""The last steps of some ranks, each beside a peer, and their single collectives in them: the numbers behind the
page's timeline. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from laggard.collector.scrape.collective_rounds import LookedRank
from laggard.collector.web.documents import CollectiveSpan, CollectiveWait, GroupWait, TimelineDocument, TimelineRow
from laggard.kit.constants import OPS, PHASES
from laggard.locate.job_timings import START, STEP, Floats, JobTimings
from laggard.locate.medians import over_phases

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


Look = Callable[[Sequence[int]], Mapping[int, LookedRank]]

MAX_RANKS = 16
"""The most ranks that one document shows, with as many peers at most."""

MAX_STEPS = 64

SHOWN_STEPS = 8
"""The number of steps side by side that leave a phase of a twentieth of a step a few pixels."""


def mean_own_seconds(timings: JobTimings) -> Floats:
    """[R]: each rank's own time in a step, the mean over the steps that it has; 0 of a rank without steps."""
    own = over_phases(timings.phase_seconds)
    known = ~np.isnan(own)
    means: Floats = np.where(known, own, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return means


def timeline_document(
    job: str | None,
    timings: JobTimings,
    ranks: Sequence[int],
    steps: int = SHOWN_STEPS,
    before: int | None = None,
    mean_own: Floats | None = None,
    look: Look | None = None,
) -> TimelineDocument:
    """The last `steps` steps (those up to step `before`, if given) of `ranks` and of a peer of theirs. Ranks that the
    job lacks are left out; without any, nothing is shown. `mean_own`: the mean_own_seconds() where the caller has
    them. `look`: returns what is known of single collectives of ranks, beside what the timings have."""
    mean_own = mean_own_seconds(timings) if mean_own is None else mean_own
    column = {int(rank): place for place, rank in enumerate(timings.ranks)}
    asked = [column[rank] for rank in dict.fromkeys(ranks) if rank in column][:MAX_RANKS]
    end = len(timings.steps) if before is None else int(np.searchsorted(timings.steps, before, side="right"))
    window = slice(max(0, end - steps), end)
    peers = [
        peer for peer in dict.fromkeys(_peer(timings, place, asked, mean_own) for place in asked) if peer is not None
    ]
    numbers = [int(timings.ranks[place]) for place in (*asked, *peers)]
    looked = look(numbers) if look else {}
    found = {
        rank: looked_collectives(looked[rank], timings, window)
        if rank in looked
        else recorded_collectives(timings, column[rank], window)
        for rank in numbers
    }
    roles = ["asked"] * len(asked) + ["peer"] * len(peers)
    rows = [_row(timings, column[it], role, window, found[it]) for it, role in zip(numbers, roles, strict=True)]
    return TimelineDocument(job, timings.steps[window].tolist(), tuple(rows), group_waits(found))


def _peer(timings: JobTimings, place: int, asked: Sequence[int], mean_own: Floats) -> int | None:
    """The column of the rank that stands for the others that do the same work: their median by own time, the lower one
    of two. None where there is no other."""
    alike = np.ones(len(timings.ranks), dtype=bool)
    if timings.positions is not None:
        alike = timings.positions == timings.positions[place]
    alike[list(asked)] = False
    others = np.flatnonzero(alike)
    if not len(others):
        return None
    return int(others[np.argsort(mean_own[others], kind="stable")[(len(others) - 1) // 2]])


def _row(
    timings: JobTimings, place: int, role: str, window: slice, collectives: Sequence[RankCollective]
) -> TimelineRow:
    state = timings.states[place]
    seconds = {phase: timings.phase_seconds[window, place, at] for at, phase in enumerate(PHASES)}
    return TimelineRow(
        rank=int(timings.ranks[place]),
        role=role,
        node=timings.nodes[place],
        gpu=timings.gpus[place],
        state=state.state,
        stopped=state.stopped,
        last_step=state.step,
        phase=state.phase,
        in_flight=state.in_flight,
        seconds={name: _listed(of_steps) for name, of_steps in seconds.items()}
        | {"waited": _listed(timings.waited_seconds[window, place])},
        waits=waits_of(collectives),
        collectives=spans_of(collectives),
        collectives_seen=len(collectives),
    )


def _listed(values: Floats) -> Any:
    return np.round(values, 6).tolist()
