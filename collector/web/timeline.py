"""The last steps of some ranks, each beside a peer: the numbers behind the page's timeline. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from laggard.collector.scrape.looked_ranks import LookedRank
from laggard.collector.web.documents import TimelineDocument, TimelineRow
from laggard.collector.web.rank_collectives import (
    RankCollective,
    group_waits,
    looked_collectives,
    recorded_collectives,
    spans_of,
    waits_of,
)
from laggard.constants import PHASES
from laggard.locate.job_timings import Floats, JobTimings
from laggard.locate.step_tables import over_phases

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
