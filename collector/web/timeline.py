"""What some ranks did in the last steps, each beside a peer: the numbers behind the page's timeline. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from laggard.collector.locate.job_timings import Floats, JobTimings
from laggard.collector.web.documents import CollectiveWait, TimelineDocument, TimelineRow
from laggard.constants import OPS, PHASES

MAX_RANKS = 16
"""How many ranks one document shows, with as many peers at most."""

MAX_STEPS = 64

SHOWN_STEPS = 8
"""So many steps side by side leave a phase of a twentieth of a step a few pixels."""

_MOST_WAITS = 6


def mean_own_seconds(timings: JobTimings) -> Floats:
    """[R]: each rank's own time in a step, the mean over the steps that it has; 0 of a rank without steps."""
    own = timings.phase_seconds.sum(axis=2)
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
) -> TimelineDocument:
    """The last `steps` steps (those up to step `before`, if given) of `ranks` and of a peer of theirs. Ranks that the
    job lacks are left out; without any, nothing is shown. `mean_own`: the mean_own_seconds() where the caller has
    them."""
    mean_own = mean_own_seconds(timings) if mean_own is None else mean_own
    column = {int(rank): place for place, rank in enumerate(timings.ranks)}
    asked = [column[rank] for rank in dict.fromkeys(ranks) if rank in column][:MAX_RANKS]
    end = len(timings.steps) if before is None else int(np.searchsorted(timings.steps, before, side="right"))
    window = slice(max(0, end - steps), end)
    peers = [
        peer for peer in dict.fromkeys(_peer(timings, place, asked, mean_own) for place in asked) if peer is not None
    ]
    rows = [_row(timings, place, "asked", window) for place in asked]
    rows += [_row(timings, place, "peer", window) for place in peers]
    return TimelineDocument(job, timings.steps[window].tolist(), tuple(rows))


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


def _row(timings: JobTimings, place: int, role: str, window: slice) -> TimelineRow:
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
        waits=_waits(timings, place, window),
    )


def _waits(timings: JobTimings, place: int, window: slice) -> tuple[CollectiveWait, ...]:
    """What the rank waited in, by operation and group."""
    found = timings.collectives
    steps = timings.steps[window]
    if found is None or not len(steps):
        return ()
    chosen = np.flatnonzero((found.column == place) & (found.step >= steps[0]) & (found.step <= steps[-1]))
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for at in chosen:
        blocked = found.waited[at] if not np.isnan(found.waited[at]) else found.end[at] - found.start[at]
        op = OPS[found.op[at]] if found.op[at] >= 0 else "collective"
        total = totals[op, found.groups[found.group[at]].name]
        total[0] += 1
        total[1] += 0.0 if np.isnan(blocked) else float(blocked)
    waits = [CollectiveWait(op, group, int(count), round(spent, 6)) for (op, group), (count, spent) in totals.items()]
    return tuple(sorted(waits, key=lambda wait: -wait.seconds)[:_MOST_WAITS])


def _listed(values: Floats) -> Any:
    return np.round(values, 6).tolist()
