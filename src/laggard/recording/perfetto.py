"""A judged recording as Chrome trace JSON, which Perfetto opens: a process for each rank, the culprits' first. Pure.

Each rank's times are on its own clock. They are moved so that its steps end, by the median, when those of the rank with
the most steps do: steps end together where ranks wait for each other. So a difference within a step is measured, and
one of microseconds between ranks is not.

As Perfetto reads it (importers/json/ and importers/common/slice_tracker.cc in src/trace_processor of google/perfetto):
slices of one thread that overlap are moved elsewhere with an error, and what begins before zero is rejected.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS, PHASES
from laggard.kit.errors import UsageError
from laggard.kit.words import printable_line
from laggard.locate.job_timings import Floats, JobTimings
from laggard.recording.judged import JudgedRecording

MAX_SLICES: Final = 1_000_000
"""The most slices of one trace, so that a file of any recording stays within what a browser can take."""

STEPS, PARTS, FIRST_GROUP = 1, 2, 3
"""The threads of a process; those of collectives follow."""

_MAX_NAME: Final = 80

Event = dict[str, Any]


class Trace(NamedTuple):
    """`events` are those of the format. `steps` of `recorded` steps are in it, the newest."""

    events: Iterator[Event]
    steps: int
    recorded: int


def trace_of(judged: JudgedRecording, most: int = MAX_SLICES) -> Trace:
    """Raises UsageError where the recording does not tell when steps began."""
    timings = judged.timings
    starts = timings.step_starts
    if starts is None or not np.isfinite(starts).any():
        raise UsageError("the recording does not tell when steps began: --perfetto has nothing to show")
    begun = starts - _shifts(starts, starts + timings.step_seconds)
    steps = _fitting(timings, most)
    first = len(timings.steps) - steps
    zero = float(np.nanmin(begun[first:])) if np.isfinite(begun[first:]).any() else 0.0
    culprits = [rank for culprit in judged.location.culprits for rank in culprit.ranks]
    order = sorted(range(len(timings.ranks)), key=lambda place: (timings.ranks[place] not in culprits, place))
    slices = (_Rank(timings, place, begun[:, place] - zero, first, starts[:, place]).slices() for place in order)
    names = (_process(timings, place, sort, culprits) for sort, place in enumerate(order))
    return Trace(
        chain(chain.from_iterable(names), islice(chain.from_iterable(slices), most)), steps, len(timings.steps)
    )


def _shifts(starts: Floats, ends: Floats) -> Floats:
    """[R]: how far each rank's clock is ahead; of one without a step in common, so that it begins then."""
    reference = int(np.isfinite(ends).sum(axis=0).argmax())
    base = np.nanmin(starts[:, reference])
    found = np.zeros(starts.shape[1])
    for place in range(len(found)):
        apart = ends[:, place] - ends[:, reference]
        known = apart[np.isfinite(apart)]
        own = starts[:, place][np.isfinite(starts[:, place])]
        found[place] = np.median(known) if len(known) else own.min() - base if len(own) else 0.0
    return found


def _fitting(timings: JobTimings, most: int) -> int:
    """The number of the newest steps whose slices are at most `most`; at least one."""
    counts = np.isfinite(timings.step_seconds).sum(axis=1) + (timings.phase_seconds > 0).sum(axis=(1, 2))
    counts += (timings.waited_seconds > 0).sum(axis=1)
    if timings.collectives is not None:
        numbers = timings.collectives.step[np.isin(timings.collectives.step, timings.steps)]
        counts += np.bincount(np.searchsorted(timings.steps, numbers), minlength=len(counts))
    return max(1, int((np.cumsum(counts[::-1]) <= most).sum()))


def _process(timings: JobTimings, place: int, sort: int, culprits: list[int]) -> Iterator[Event]:
    rank, node = int(timings.ranks[place]), timings.nodes[place]
    name = f"rank {rank}{f' on {node}' if node else ''}{', the culprit' if rank in culprits else ''}"
    yield _named("process_name", rank, STEPS, name=printable_line(name, _MAX_NAME))
    yield _named("process_sort_index", rank, STEPS, sort_index=sort)
    yield from _thread(rank, STEPS, "steps")
    yield from _thread(rank, PARTS, "phases: how long in each step, not when")


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    """With its place: Perfetto puts a thread that has its process's number before the others."""
    yield _named("thread_name", pid, tid, name=printable_line(name, _MAX_NAME))
    yield _named("thread_sort_index", pid, tid, sort_index=tid)


def _named(what: str, pid: int, tid: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


class _Rank(NamedTuple):
    """`begun` [S]: seconds from the trace's zero; `own` [S]: the same on the rank's clock."""

    timings: JobTimings
    place: int
    begun: Floats
    first: int
    own: Floats

    def slices(self) -> Iterator[Event]:
        seconds = self.timings.step_seconds[:, self.place]
        known = np.flatnonzero(np.isfinite(self.begun) & np.isfinite(seconds))
        known = known[known >= self.first]
        over = np.fmin(self.begun + seconds, np.append(self.begun[1:], np.inf))  # clocks have steps overlap by some ns
        for row in known.tolist():
            step = int(self.timings.steps[row])
            yield self._slice(STEPS, f"step {step}", self.begun[row], over[row], step)
            yield from self._parts(row, step, over[row])
        if len(known) and self.timings.collectives is not None:
            yield from self._collectives(known, float(self.begun[known[-1]] + seconds[known[-1]]))

    def _parts(self, row: int, step: int, over: float) -> Iterator[Event]:
        at = float(self.begun[row])
        lengths = [*self.timings.phase_seconds[row, self.place], self.timings.waited_seconds[row, self.place]]
        for name, length in zip((*PHASES, "waits in collectives"), lengths, strict=True):
            if length > 0 and at < over:
                until = min(at + length, over)
                yield self._slice(PARTS, name, at, until, step)
                at = until

    def _collectives(self, known: NDArray[np.intp], over: float) -> Iterator[Event]:
        """Those that overlap are on threads of their own; one that never finished lasts until the rank's last step."""
        found, shift = self.timings.collectives, float(self.own[known[0]] - self.begun[known[0]])
        rank = int(self.timings.ranks[self.place])
        assert found is not None
        mine = np.flatnonzero((found.column == self.place) & (found.step >= self.timings.steps[known[0]]))
        free: dict[int, list[tuple[float, int]]] = {}
        tids = FIRST_GROUP
        for at in mine[np.argsort(found.start[mine], kind="stable")].tolist():
            start, end = float(found.start[at]) - shift, float(found.end[at]) - shift
            if not np.isfinite(start):
                continue
            start = max(start, 0.0)  # Perfetto takes nothing from before zero
            end, finished = (end, True) if np.isfinite(end) else (max(over, start), False)
            group = int(found.group[at])
            lanes = free.setdefault(group, [])
            if lanes and lanes[0][0] <= start:
                tid = heapq.heappop(lanes)[1]
            else:
                tid, tids = tids, tids + 1
                yield from _thread(rank, tid, f"collectives of {found.groups[group].name}")
            heapq.heappush(lanes, (end, tid))
            op = OPS[found.op[at]] if found.op[at] >= 0 else "collective"
            text = op if finished else f"{op}, never finished"
            yield self._slice(tid, text, start, end, int(found.step[at]))

    def _slice(self, tid: int, name: str, start: float, end: float, step: int) -> Event:
        """Whole nanoseconds, so that what lies in another slice does so after rounding, too."""
        begin, until = round(start * 1e9), round(end * 1e9)
        pid = int(self.timings.ranks[self.place])
        duration = max(until - begin, 0) / 1e3
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin / 1e3, "dur": duration,
                "args": {"step": step}}  # fmt: skip
