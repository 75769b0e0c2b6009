"""Collectives that no Python call makes: DDP's reducer, functional collectives in compiled graphs, DeepCompile.

Every process group counts its collectives. Where that count has moved further than the hooks have seen, the Flight
Recorder is asked which the others were. As long as as many are missing as when it was asked last, they are taken for
the same, and it is asked again only now and then: the answer takes milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_facts import RECORDER_OFF, RECORDER_SMALL, UNNAMED, UNNAMED_REASONS
from laggard.trainer_hooks.facts import FACTS, Facts
from laggard.trainer_hooks.groups import Groups, name_of
from laggard.trainer_hooks.recorder import LaneLog, Launched, Recorder, clock
from laggard.trainer_hooks.witness import Seen, unseen, witness

log = logging.getLogger("laggard")

_FREE_QUESTIONS: Final = 64
_MOST_SHARE: Final = 0.01  # of the time that questions may take after those
_FIRST_STEPS: Final = 16
_SELDOM: Final = 8  # steps


class _Base(NamedTuple):
    """Where a group stood when it was looked at last: torch's count, and the hooks'."""

    sequence: int
    seen: int
    now: int


class _Watched:
    """One process group, with what torch says of it once asked."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.name = name_of(group)
        self.base = _Base(0, 0, 0)
        self._backend: str | None = None
        self.sequence: Callable[[], int] = group._get_sequence_number_for_group

    @property
    def backend(self) -> str:
        if self._backend is None:
            import torch.distributed as dist

            self._backend = str(dist.get_backend(self.group))
        return self._backend


class _Lesson:
    """What was missing, and how often it has been since."""

    def __init__(self, missing: list[Seen]) -> None:
        self.missing = missing
        self.uses = 0

    def stale(self) -> bool:
        """At the 2nd, 4th, 8th, ... use it is asked for anew: buckets are rebuilt, branches are taken."""
        return self.uses & (self.uses - 1) == 0


class Unseen:
    """Looks at the process's groups; not to be shared between threads."""

    def __init__(self, recorder: Recorder, groups: Groups, facts: Facts = FACTS) -> None:
        self._recorder = recorder
        self._groups = groups
        self._facts = facts
        self._watched: dict[Any, _Watched | None] = {}  # None: a group of a backend that counts nothing
        self._lessons: dict[tuple[str, Hashable, int], _Lesson] = {}
        self._questions = 0
        self._asked = 0  # when, and how long it took
        self._took = 0
        self._told = False
        self._found = False  # by the last look at all groups

    def begin(self) -> None:
        """What the groups did before the hooks were there is none of ours."""
        for group in _groups():
            watched = self._watch(group)
            if watched is not None:
                self._look(watched)

    def forget(self) -> None:
        """Process groups are gone."""
        self._watched.clear()

    def after_step(self, step: int) -> None:
        """Looks at all groups: after each step where that finds something, else after one in eight, once a few have
        passed. Every rank so does it after the same ones, and numbers its collectives alike."""
        if self._found or step < _FIRST_STEPS or step % _SELDOM == 0:
            self._found = self.settle() > 0

    def settle(self, group: Any = None, where: Hashable = None) -> int:
        """Logs what has passed unseen in `group`, or in all groups, between the last time and now, by the host's
        clock; returns how many. No wait for them is known."""
        found = 0
        for each in _groups() if group is None else [group]:
            launches = self.take(each, where=where)
            if launches:
                now, device = clock(), self._recorder.device
                if device is None:
                    self._recorder.passed(launches, now)
                else:
                    device.over(launches, now)
                found += len(launches)
        return found

    def take(self, group: Any, issued: int = 0, where: Hashable = None) -> list[Launched]:
        """What has passed unseen in `group` since the last time, for the caller to log. They were launched by
        `issued`, left out: since the last look. `where` tells one place in the script from another: what is missing
        there is alike each time."""
        watched = self._watch(group)
        if watched is None:
            return []
        base, now = watched.base, self._look(watched)
        missing = now.sequence - base.sequence - (now.seen - base.seen)
        if missing <= 0:
            return []
        return self._account(watched, base, missing, issued or base.now or now.now, where)

    def _watch(self, group: Any) -> _Watched | None:
        if group not in self._watched:
            watched = _Watched(group)
            try:
                watched.sequence()
                self._watched[group] = watched
            except RuntimeError:
                self._watched[group] = None
        return self._watched[group]

    def _look(self, watched: _Watched) -> _Base:
        sequence, base = watched.sequence(), watched.base
        if sequence == base.sequence and base.now:
            return base  # it counts more than the hooks see, never less
        # Gloo alone counts sends and receives with the rest.
        seen = self._groups.launched(watched.group, pairs=watched.backend == "gloo")
        watched.base = _Base(sequence, seen, clock())
        return watched.base

    def _account(self, watched: _Watched, base: _Base, missing: int, issued: int, where: Hashable) -> list[Launched]:
        found = self._which(watched, base, (watched.name, where, missing))
        step, now = self._recorder.step, watched.base
        launches = [(lane.take(), lane, issued, each.size, step) for each, lane in self._lanes(found, watched.group)]
        watched.base = now._replace(seen=now.seen + len(found))
        return launches

    def _lanes(self, found: list[Seen], group: Any) -> Iterator[tuple[Seen, LaneLog]]:
        """As the hot path keeps them: asked for once, and again when groups are forgotten."""
        for each in found:
            logs = self._groups.logs(each.op)
            if group not in logs:
                logs[group] = self._groups.log(self._recorder, each.op, group)
            yield each, logs[group]

    def _which(self, watched: _Watched, base: _Base, key: tuple[str, Hashable, int]) -> list[Seen]:
        lesson = self._lessons.get(key)
        if lesson is None or lesson.stale():
            answer = self._ask(watched, base) if self._may_ask() else None
            if answer is not None:
                uses = lesson.uses if lesson else 0
                lesson = self._lessons[key] = _Lesson(answer)
                lesson.uses = uses
        if lesson is None:
            self._recorder.totals.lost += key[-1]
            return []
        lesson.uses += 1
        return lesson.missing

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
        self._facts.set(UNNAMED, None)
        return unseen(answer.seen, self._known_since(watched.group, base.now))

    def _known_since(self, group: Any, since: int) -> list[Seen]:
        """What the hooks saw in the group since, as far as they remember."""
        ops = {lane_log.index: lane.op for lane, lane_log in self._groups.lanes(group) if lane.peer < 0}
        return [
            Seen(ops[word >> LANE_SHIFT], size)
            for word, (issued, size) in self._recorder.known().items()
            if issued >= since and word >> LANE_SHIFT in ops
        ]

    def _tell(self, reason: str) -> None:
        """In the log once; in the rank file until an answer is whole, from where the agent tells it."""
        self._facts.set(UNNAMED, reason)
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
