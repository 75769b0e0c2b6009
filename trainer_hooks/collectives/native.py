"""Collectives that no Python call makes: DDP's reducer, functional collectives in compiled graphs, DeepCompile.

Every process group counts its collectives. Where that count has moved further than the hooks have seen, the Flight
Recorder is asked which the others were. As long as as many are missing as when it was asked last, they are taken for
the same, and it is asked again only now and then: the answer takes milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from laggard.rankfile.fact_names import RECORDER_OFF, RECORDER_SMALL, UNNAMED_COLLECTIVES, UNNAMED_REASONS
from laggard.rankfile.layout import LANE_SHIFT, SEQUENCE_MASK
from laggard.trainer_hooks.collectives.flight_recorder_entries import Seen, unseen, witness
from laggard.trainer_hooks.collectives.groups import Groups, name_of
from laggard.trainer_hooks.record.events import LaneLog, Launch
from laggard.trainer_hooks.record.facts import FACTS, Facts
from laggard.trainer_hooks.record.recorder import Recorder, clock

log = logging.getLogger("laggard")

_FREE_QUESTIONS: Final = 64
_MOST_SHARE: Final = 0.01  # of the time that questions may take after those


class _Base(NamedTuple):
    """Where a group stood when it was looked at last: torch's count, and the hooks'."""

    sequence: int
    seen: int
    now: int


class _Watched:
    """One process group. `sequence` asks torch for its count; `lanes`: as Groups.kept; `lessons`: what was missing, by
    the place in the script and by how many were."""

    def __init__(self, group: Any, groups: Groups) -> None:
        self.group = group
        self.name = name_of(group)
        self.backend = _backend(group)
        self.base = _Base(0, 0, 0)
        self.lanes = groups.kept(self.name)
        self.lessons: dict[tuple[Hashable, int], _Lesson] = {}
        self.sequence: Callable[[], int] = group._get_sequence_number_for_group

    def seen(self) -> int:
        """How many the hooks have seen. Gloo alone counts sends and receives with the rest."""
        pairs = self.backend == "gloo"
        count = 0
        for lane, log in self.lanes.values():
            if pairs or (lane.peer < 0 and lane.op != "recv"):
                count += log.last & SEQUENCE_MASK
        return count


class _Lesson:
    """What was missing, in which lanes, and how often it has been since."""

    def __init__(self, missing: list[tuple[LaneLog, int]], groups: int) -> None:
        self.missing = missing  # with their sizes
        self.groups = groups  # as they were then: Groups.forgotten
        self.uses = 0


class Unseen:
    """Looks at the process's groups; not to be shared between threads."""

    def __init__(self, recorder: Recorder, groups: Groups, facts: Facts = FACTS) -> None:
        self._recorder = recorder
        self._groups = groups
        self._facts = facts
        self._watched: dict[Any, _Watched | None] = {}  # None: a group of a backend that counts nothing
        self._questions = 0
        self._asked = 0  # when, and how long it took
        self._took = 0
        self._told = False

    def begin(self) -> None:
        """What the groups did before the hooks were there is none of ours."""
        for group in _groups():
            watched = self._watch(group)
            if watched is not None:
                watched.base = _Base(watched.sequence(), watched.seen(), clock())

    def forget(self) -> None:
        """Process groups are gone."""
        self._watched.clear()

    def settle(self, group: Any = None, where: Hashable = None) -> int:
        """Logs what has passed unseen in `group`, or in all groups, between the last time and now, by the host's
        clock; returns how many. No wait for them is known."""
        found = 0
        for each in _groups() if group is None else [group]:
            launches = self.take(each, where=where)
            if launches:
                now, device = clock(), self._recorder.live.device
                if device is None:
                    self._recorder.ended_on_host(launches, now)
                else:
                    device.over(launches, now)
                found += len(launches)
        return found

    def take(self, group: Any, issued: int = 0, where: Hashable = None) -> list[Launch]:
        """What has passed unseen in `group` since the last time, for the caller to log. They were launched by
        `issued`, left out: since the last look. `where` tells one place in the script from another: what is missing
        there is alike each time. One function for the usual case: see TorchSteps."""
        watched = self._watched.get(group) or self._watch(group)
        if watched is None:
            return []
        base = watched.base
        sequence, now = watched.sequence(), clock()
        if sequence == base.sequence and base.now:
            return []  # it counts more than the hooks see, never less
        seen = watched.seen()
        watched.base = _Base(sequence, seen, now)
        missing = sequence - base.sequence - (seen - base.seen)
        if missing <= 0:
            return []
        lesson = watched.lessons.get((where, missing))
        # At the 2nd, 4th, 8th, ... use it is asked for anew: buckets are rebuilt, branches are taken.
        if lesson is None or not lesson.uses & (lesson.uses - 1) or lesson.groups != self._groups.forgotten:
            lesson = self._learn(watched, base, where, missing)
            if lesson is None:
                self._recorder.totals.lost += missing
                return []
        lesson.uses += 1
        watched.base = _Base(sequence, seen + len(lesson.missing), now)
        issued, step = issued or base.now or now, self._recorder.step
        return [(log.next_word(), log, issued, size, step) for log, size in lesson.missing]

    def _watch(self, group: Any) -> _Watched | None:
        if group not in self._watched:
            try:
                watched = _Watched(group, self._groups)
                watched.sequence()
                self._watched[group] = watched
            except RuntimeError:
                self._watched[group] = None
        return self._watched[group]

    def _learn(self, watched: _Watched, base: _Base, where: Hashable, missing: int) -> _Lesson | None:
        """What the Flight Recorder says now; what it said before, where it is not to be asked or does not tell."""
        known = watched.lessons.get((where, missing))
        answer = self._ask(watched, base) if self._may_ask() else None
        if answer is None:
            return known
        lesson = _Lesson([(self._lane(each.op, watched.group), each.size) for each in answer], self._groups.forgotten)
        lesson.uses = known.uses if known else 0
        watched.lessons[where, missing] = lesson
        return lesson

    def _lane(self, op: str, group: Any) -> LaneLog:
        """As the hot path keeps it."""
        logs = self._groups.logs(op)
        log = logs.get(group)
        if log is None:
            log = logs[group] = self._groups.log(self._recorder, op, group)
        return log

    def _may_ask(self) -> bool:
        return self._questions < _FREE_QUESTIONS or self._took < _MOST_SHARE * (clock() - self._asked)

    def _ask(self, watched: _Watched, base: _Base) -> list[Seen] | None:
        self._questions += 1
        self._asked = clock()
        answer = witness(watched.name, watched.backend, _unix_time(base.now) if base.now else 0)
        self._took = clock() - self._asked
        if answer is None or not answer.whole:
            self._tell(RECORDER_OFF if answer is None else RECORDER_SMALL)
            return None
        self._facts.set(UNNAMED_COLLECTIVES, None)
        return unseen(answer.seen, self._known_since(watched.group, base.now))

    def _known_since(self, group: Any, since: int) -> list[Seen]:
        """What the hooks saw in the group since, as far as they remember."""
        ops = {lane_log.index: lane.op for lane, lane_log in self._groups.lanes(group) if lane.peer < 0}
        return [
            Seen(ops[word >> LANE_SHIFT], size)
            for word, (issued, size) in self._recorder.recent_launches().items()
            if issued >= since and word >> LANE_SHIFT in ops
        ]

    def _tell(self, reason: str) -> None:
        """In the log once; in the rank file until an answer is whole, from where the agent tells it."""
        self._facts.set(UNNAMED_COLLECTIVES, reason)
        if not self._told:
            wrong, fix = UNNAMED_REASONS[reason]
            log.warning("laggard: collectives made outside Python are not recorded: %s; %s", wrong, fix)
            self._told = True


def _groups() -> list[Any]:
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map) if distributed_c10d.is_initialized() else []


def _unix_time(at: int) -> int:
    """In nanoseconds, of a moment on our clock. The best of a few readings: a thread can lose its core in one."""

    def reading() -> tuple[int, int]:
        before, wall, after = clock(), time.time_ns(), clock()
        return after - before, wall - (before + after) // 2

    return at + min(reading() for _ in range(3))[1]


def _backend(group: Any) -> str:
    import torch.distributed as dist

    return str(dist.get_backend(group))
