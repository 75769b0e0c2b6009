"""Replays the last steps of a recording with culprits as fast as their peers. Pure.

Each rank's time is cut into work, between its collectives, and waiting. A collective is over its transfer after its
last member came; a rank that waits for it goes on then. Work replaced by a peer's shows how long the steps would have
taken: slack in pipelines, overlap and several culprits are in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.collectives import NEEDS_ALL, Collectives
from laggard.locate.job_timings import JobTimings
from laggard.locate.medians import least_of
from laggard.locate.slow.ranks import Slow
from laggard.locate.slow.steps import Steps, node_numbers

MAX_RECORDS = 40_000
"""The most records of collectives that are replayed, of the last steps: a microsecond or two each."""

MIN_REPLAYED_STEPS = 4
"""The first of them fills the pipeline, and is not counted."""

TOLERANCE = 0.15
"""A replay that takes longer or shorter than what was recorded, by so much, does not understand the job."""

MAX_LACKING_SHARE = 0.01
"""The largest share of the collectives that lack a record: work before and after a lost one is no one piece. In five
golden cases more lack one, and a replay of what is left would tell half of the saving or less."""

MAX_PEERS = 9
"""Work is replaced by the median of so many peers' at most."""


class _Event(NamedTuple):
    """A rank comes to meeting `meeting`, or (`waits`) needs its result, after `work` seconds."""

    work: float
    meeting: int
    waits: bool
    step: int


class Replay(NamedTuple):
    """The events of each rank by column, in order; of each meeting how many come to it, and how long it then takes."""

    events: Mapping[int, tuple[_Event, ...]]
    members: NDArray[np.int64]
    transfers: NDArray[np.float64]
    rows: NDArray[np.int64]  # [M]: a record of each meeting
    first_step: int
    steps: Steps  # the window that they are of
    recorded: float  # seconds of the steps that `seconds` counts

    @classmethod
    def of(cls, timings: JobTimings, steps: Steps, since: int) -> Replay | None:
        """The last steps from index `since` on; None where too little is recorded to replay any, or where that takes
        another time than was recorded."""
        collectives = timings.collectives
        if collectives is None:
            return None
        chosen = _last_steps(collectives, steps.numbers[since:])
        if len(chosen) < MIN_REPLAYED_STEPS:
            return None
        rows = np.flatnonzero(np.isin(collectives.step, chosen) & np.isfinite(collectives.end) & (collectives.seq >= 0))
        if not len(rows):  # as in what a collector holds of a live job
            return None
        # A collective, or a send and its receive.
        keys = np.stack((collectives.lanes(timings.ranks)[rows], collectives.seq[rows]))
        _, first, meeting = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        meeting = np.asarray(meeting).reshape(-1)
        members = np.bincount(meeting)
        if _lacks_members(collectives, rows[first], members):
            return None
        transfers = _transfers(collectives, rows, meeting, node_numbers(timings.nodes))
        events = _events(collectives, rows, meeting)
        recorded = float(steps.duration[int(np.searchsorted(steps.numbers, chosen[0])) + 1 :].sum())
        made = cls(events, members, transfers, rows[first], int(chosen[0]), steps, recorded)
        return made if abs(made.seconds(()) - recorded) <= TOLERANCE * recorded else None

    def seconds(self, fixed: Sequence[Slow]) -> float:
        """The time that the steps take, but for the first, where `fixed` are as fast as their peers; nan where they do
        not come to an end."""
        culprits = {column: each for each in fixed for column in each.columns if column in self.events}
        replaced = {column: self._as_peers(column, each, culprits) for column, each in culprits.items()}
        return _run({**self.events, **replaced}, self.members, self.transfers, self.first_step)

    def _as_peers(self, column: int, slow: Slow, culprits: Mapping[int, Slow]) -> tuple[_Event, ...]:
        """The rank's events with its work replaced by the median of its peers', event by event; where no peer does the
        same in the same order, shortened by its excess."""
        own = self.events[column]
        mates = np.flatnonzero(self.steps.peers.number == self.steps.peers.number[column]).tolist()
        alike = [self.events[mate] for mate in mates if mate not in culprits and mate in self.events]
        alike = [events for events in alike if [each.waits for each in events] == [each.waits for each in own]]
        if not alike:
            return self._shortened(own, slow)
        some = alike[:: max(1, len(alike) // MAX_PEERS)]
        work = np.median([[each.work for each in events] for events in some], axis=0)
        return tuple(event._replace(work=float(seconds)) for event, seconds in zip(own, work, strict=True))

    def _shortened(self, own: tuple[_Event, ...], slow: Slow) -> tuple[_Event, ...]:
        work: dict[int, float] = {}
        for event in own:
            work[event.step] = work.get(event.step, 0.0) + event.work
        excess = dict(zip(self.steps.numbers.tolist(), np.nan_to_num(slow.series).tolist(), strict=True))
        left = {
            step: min(1.0, max(0.0, 1 - excess.get(step, 0.0) / total)) if total else 1.0
            for step, total in work.items()
        }
        return tuple(event._replace(work=event.work * left[event.step]) for event in own)


def _last_steps(collectives: Collectives, steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last of `steps` [S] that hold at most MAX_RECORDS records together; none where the newest step is a stall."""
    recorded = collectives.step[np.isin(collectives.step, steps)]
    count = np.bincount(np.searchsorted(steps, recorded), minlength=len(steps))
    held = np.cumsum(count[::-1])
    return steps[len(steps) - int((held <= MAX_RECORDS).sum()) :]


def _lacks_members(collectives: Collectives, rows: NDArray[np.int64], members: NDArray[np.int64]) -> bool:
    """Whether records of members are lost: their collectives have fewer of them than others of the same group. `rows`
    [M]: a record of each meeting; `members` [M]."""
    group = np.where(collectives.peer[rows] >= 0, len(collectives.groups), collectives.group[rows])
    most = np.zeros(len(collectives.groups) + 1, np.int64)
    np.maximum.at(most, group, members)
    return bool((members < most[group]).mean() > MAX_LACKING_SHARE)


def _transfers(
    collectives: Collectives, rows: NDArray[np.int64], meeting: NDArray[np.int64], machine: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The seconds that each meeting [M] takes at most once its last member came: the least that a member spent. Who
    launches it long before it waits spends the work between as well. So the ranks of one machine [N], whose clocks are
    one, tell more: the time from the last one's start to the first one's end. Where an operation that needs all seems
    to end before it, each has a clock of its own."""
    start, end = collectives.start[rows], collectives.end[rows]
    least = least_of(meeting, end - start, int(meeting.max(initial=-1)) + 1)
    joint = np.isin(collectives.op[rows], list(NEEDS_ALL))
    there = np.stack((meeting, machine[collectives.column[rows]]))[:, joint]
    (number, node), place = np.unique(there, axis=1, return_inverse=True)
    came = -least_of(place.reshape(-1), -start[joint], len(number))
    over = least_of(place.reshape(-1), end[joint], len(number))
    one_clock = ~np.isin(node, node[over < came])
    np.minimum.at(least, number[one_clock], (over - came)[one_clock])
    return least


def _events(
    collectives: Collectives, rows: NDArray[np.int64], meeting: NDArray[np.int64]
) -> dict[int, tuple[_Event, ...]]:
    """Each rank's events, ascending in time: it comes to a meeting when it begins there, and needs its result where it
    begins to wait, for however short a time."""
    end, start = collectives.end[rows], collectives.start[rows]
    waited = np.where(np.isnan(collectives.waited[rows]), end - start, collectives.waited[rows])
    time = np.concatenate((start, np.maximum(end - waited, start)))
    until = np.concatenate((start, end))
    number, step, column = (np.tile(each, 2) for each in (meeting, collectives.step[rows], collectives.column[rows]))
    waits = np.arange(len(time)) >= len(rows)
    order = np.lexsort((waits, time, column))
    found: dict[int, tuple[_Event, ...]] = {}
    for part in np.split(order, np.flatnonzero(np.diff(column[order])) + 1):
        over = np.maximum.accumulate(until[part])
        work = np.maximum(time[part] - np.concatenate((time[part][:1], over[:-1])), 0.0)
        values = (work.tolist(), number[part].tolist(), waits[part].tolist(), step[part].tolist())
        found[int(column[part[0]])] = tuple(_Event(*each) for each in zip(*values, strict=True))
    return found


def _run(
    events: Mapping[int, Sequence[_Event]],
    members: NDArray[np.int64],
    transfers: NDArray[np.float64],
    first_step: int,
) -> float:
    """The time that the last rank needs for all steps but the first; nan where ranks wait for ever."""
    left, ready, takes = members.tolist(), [0.0] * len(members), transfers.tolist()
    waiting: dict[int, list[int]] = {}
    now, place = dict.fromkeys(events, 0.0), dict.fromkeys(events, 0)
    first_end, done = 0.0, 0
    active = list(events)
    while active:
        rank = active.pop()
        own, at, clock = events[rank], place[rank], now[rank]
        while at < len(own):
            work, meeting, waits, step = own[at]
            if not waits:
                clock += work
                ready[meeting] = max(ready[meeting], clock)
                left[meeting] -= 1
                if not left[meeting]:
                    active += waiting.pop(meeting, ())
            elif left[meeting]:
                waiting.setdefault(meeting, []).append(rank)
                break
            else:
                clock = max(clock + work, ready[meeting] + takes[meeting])
            if step == first_step:
                first_end = max(first_end, clock)
            at += 1
        place[rank], now[rank] = at, clock
        done += at == len(own)
    return max(now.values(), default=0.0) - first_end if done == len(events) else math.nan
