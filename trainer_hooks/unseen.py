"""Collectives that no Python call makes: DDP's reducer, functional collectives in compiled graphs, DeepCompile.

Every process group counts its collectives. Where that count has moved further than the hooks have seen, the Flight
Recorder is asked which the others were. As long as as many are missing as when it was asked last, they are taken for
the same, and it is asked again only now and then: the answer takes milliseconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_hooks.groups import Groups, name_of
from laggard.trainer_hooks.recorder import LaneLog, Launched, Recorder, clock
from laggard.trainer_hooks.witness import Seen, unseen, witness

log = logging.getLogger("laggard")

_FREE_QUESTIONS: Final = 64
_MOST_SHARE: Final = 0.01  # of the time that questions may take after those


class _Base(NamedTuple):
    """Where a group stood when it was looked at last. `wall_ns`: Unix time."""

    sequence: int
    seen: dict[str, int]
    now: int
    wall_ns: int


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

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self._recorder = recorder
        self._groups = groups
        self._bases: dict[str, _Base] = {}
        self._lessons: dict[tuple[str, Hashable, int], _Lesson] = {}
        self._uncounted: set[str] = set()  # groups of backends that count nothing
        self._backends: dict[str, str] = {}
        self._questions = 0
        self._asked = 0  # when, and how long it took
        self._took = 0
        self._told = False

    def begin(self) -> None:
        """What the groups did before the hooks were there is none of ours."""
        for group in _groups():
            self._look(group)

    def settle(self, group: Any = None, where: Hashable = None) -> int:
        """Logs what has passed unseen in `group`, or in all groups, between the last time and now, by the host's
        clock; returns how many. No wait for them is known."""
        found = 0
        for each in _groups() if group is None else [group]:
            now, device = clock(), self._recorder.device
            launches = self.take(each, where=where)
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
        base = self._bases.get(name_of(group)) or _Base(0, {}, 0, 0)
        now = self._look(group)
        if now is None or now.sequence == base.sequence:
            return []
        return self._account(group, base, now, issued or base.now or now.now, where)

    def _look(self, group: Any) -> _Base | None:
        name = name_of(group)
        if name in self._uncounted:
            return None
        try:
            sequence = group._get_sequence_number_for_group()
        except RuntimeError:
            self._uncounted.add(name)
            return None
        base = self._bases.get(name)
        seen = base.seen if base and base.sequence == sequence else self._groups.launched(group)
        now = self._bases[name] = _Base(sequence, seen, clock(), time.time_ns())
        return now

    def _account(self, group: Any, base: _Base, now: _Base, issued: int, where: Hashable) -> list[Launched]:
        backend = self._backends.get(name_of(group)) or self._backends.setdefault(name_of(group), _backend(group))
        passed = {op: count - base.seen.get(op, 0) for op, count in now.seen.items()}
        if backend != "gloo":  # which alone counts them with the rest
            passed = {op: count for op, count in passed.items() if op not in ("send", "recv")}
        missing = now.sequence - base.sequence - sum(passed.values())
        if missing <= 0:
            return []
        found = self._which(group, backend, base, (name_of(group), where, missing))
        launches: list[Launched] = []
        seen = dict(now.seen)
        for each in found:
            lane = self._lane(each.op, group)
            launches.append((lane.take(), lane, issued, each.size, self._recorder.step))
            seen[each.op] = seen.get(each.op, 0) + 1
        self._bases[name_of(group)] = now._replace(seen=seen)
        return launches

    def _lane(self, op: str, group: Any) -> LaneLog:
        """As the hot path keeps it: asked for once, and again when groups are forgotten."""
        logs = self._groups.logs(op)
        log = logs.get(group)
        if log is None:
            log = logs[group] = self._groups.log(self._recorder, op, group)
        return log

    def _which(self, group: Any, backend: str, base: _Base, key: tuple[str, Hashable, int]) -> list[Seen]:
        lesson = self._lessons.get(key)
        if lesson is None or lesson.stale():
            answer = self._ask(group, backend, base) if self._may_ask() else None
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

    def _ask(self, group: Any, backend: str, base: _Base) -> list[Seen] | None:
        self._questions += 1
        self._asked = clock()
        answer = witness(name_of(group), backend, base.wall_ns)
        self._took = clock() - self._asked
        if answer is None:
            self._tell("is off; TORCH_FR_BUFFER_SIZE=2000 (before torch 2.6: TORCH_NCCL_TRACE_BUFFER_SIZE) turns it on")
            return None
        if not answer.whole:
            self._tell("is too small; a larger TORCH_FR_BUFFER_SIZE holds the collectives of a step")
            return None
        return unseen(answer.seen, self._known_since(group, base.now))

    def _known_since(self, group: Any, since: int) -> list[Seen]:
        """What the hooks saw in the group since, as far as they remember."""
        ops = {lane_log.index: lane.op for lane, lane_log in self._groups.lanes(group) if lane.peer < 0}
        return [
            Seen(ops[word >> LANE_SHIFT], size)
            for word, (issued, size) in self._recorder.known().items()
            if issued >= since and word >> LANE_SHIFT in ops
        ]

    def _tell(self, what: str) -> None:
        if not self._told:
            log.warning("laggard: collectives made outside Python are not recorded: torch's Flight Recorder %s", what)
            self._told = True


def _groups() -> list[Any]:
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map) if distributed_c10d.is_initialized() else []


def _backend(group: Any) -> str:
    import torch.distributed as dist

    return str(dist.get_backend(group))
