"""Collectives that no Python call makes: DDP's reducer, functional collectives in compiled graphs, DeepCompile.

Every process group counts its collectives. Where that count has moved further than the hooks have seen, the Flight
Recorder is asked which the others were. While the number that is missing stays the same, the collectives are taken for
those of the last answer, and the Flight Recorder is asked only now and then: an answer takes milliseconds.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from laggard.rankfile.fact_names import (
    RECORDER_ABSENT,
    RECORDER_OFF,
    RECORDER_SMALL,
    RECORDER_UNSAFE,
    UNNAMED_COLLECTIVES,
    UNNAMED_REASONS,
)
from laggard.rankfile.layout import LANE_SHIFT
from laggard.trainer_hooks.collectives.flight_recorder import (
    GroupEntries,
    RecordedCollective,
    keeps_entries,
    nccl_entries_are_safe,
    operation,
    read_entries,
    saw_backends,
    without_known,
)
from laggard.trainer_hooks.collectives.groups import FunctionalWaits, ProcessGroups, backends_of, name_of
from laggard.trainer_hooks.device.gpu import GraphCaptures
from laggard.trainer_hooks.record.ending import FACTS, Facts
from laggard.trainer_hooks.record.events import LaneLog, Launch, Wait, with_waits
from laggard.trainer_hooks.record.recorder import Recorder, clock

# The launches of a process group, by the hook that torch 2.15 has for that (ProcessGroup.register_pre_hook).
#
# It sees what C++ launches, too, and needs no Flight Recorder. But it is called for each collective, and a call costs
# as much as all that the hooks in Python do (docs/development/measurements.md): so a group gets it only where the
# Flight Recorder cannot name what C++ makes in it. It tells neither when a collective is over nor who waits for it.

_HOOK_ID: Final = 0x1A66A2D  # hooks of one group are told apart by it
_MAX_LAUNCHES: Final = 4096  # launches
_NO_COLLECTIVES: Final = ("send", "recv", "split", "new_window", "unknown")


class LaunchHook:
    """The launches of one process group from here on. Raises AttributeError where torch has no such hook."""

    def __init__(self, group: Any) -> None:
        self._launches: deque[tuple[int, Any, int]] = deque(
            maxlen=_MAX_LAUNCHES
        )  # when, torch's name of the operation, bytes
        self._unregister = group.unregister_pre_hook
        self._since = clock()
        group.register_pre_hook(_HOOK_ID, self._launched)

    def _launched(self, args: Any) -> None:
        try:
            size = max(
                sum(each.nbytes for each in args.input_tensors), sum(each.nbytes for each in args.output_tensors)
            )
            self._launches.append((clock(), args.name, size))
        except Exception:  # torch would raise it in the training
            self._launches.append((clock(), args.name, 0))

    def entries(self, since: int) -> GroupEntries:
        """The collectives launched after `since` on the recorder's clock, as read_entries() has them."""
        launches = list(self._launches)
        first = launches[0][0] if len(launches) == _MAX_LAUNCHES else self._since
        names = [(str(name).rpartition(".")[2].lower(), size) for at, name, size in launches if at > since]
        return GroupEntries(
            [RecordedCollective(operation(name), size) for name, size in names if name not in _NO_COLLECTIVES],
            first <= since,
        )

    def remove(self) -> None:
        """The group, or the process, is about to end."""
        self._unregister(_HOOK_ID)


log = logging.getLogger("laggard")

_FREE_QUERIES: Final = 64
_TIME_SHARE_LIMIT: Final = 0.01  # of the time, for queries after those


class _Baseline(NamedTuple):
    """The state of a group when it was checked last: torch's count, the hooks' count, and when that was."""

    sequence: int
    hooked: int
    now: int


class _GroupWatch:
    """One process group. `backends`: their names. `sequence` asks torch for its count. `patterns`: what was missing, by
    the call site and by how many were."""

    def __init__(self, group: Any, groups: ProcessGroups) -> None:
        backends = backends_of(group)
        self.group = group
        self.name = name_of(group)
        self.backends = frozenset(str(backend.name()) for backend in backends)
        saw_backends(self.backends)
        self.patterns: dict[tuple[Hashable, int], _KnownPattern] = {}
        self.sequence: Callable[[], int] = group._get_sequence_number_for_group
        if len(backends) > 1:  # the group itself gives the count of one of them
            counts = [backend._get_sequence_number_for_group for backend in backends if _counts(backend)]
            self.sequence = lambda: sum(count() for count in counts)
        self.launch_hook: LaunchHook | None = None  # where the Flight Recorder cannot name what C++ makes
        self._pairs = self.backends == {"gloo"}  # gloo alone counts sends and receives with the rest
        self._counts = groups.counts_of(group)
        self.baseline = _Baseline(0, self._counts.when_ended(self._pairs), self._counts.ended_at)

    def hooked(self) -> int:
        """The number of collectives that the hooks have seen, as torch counts them."""
        return self._counts.launched(self._pairs)

    def why_no_answer(self) -> str:
        """The reason why the Flight Recorder has no entries of the group."""
        if not keeps_entries(self.backends):
            return RECORDER_ABSENT
        asked = "nccl" not in self.backends or nccl_entries_are_safe(os.environ)
        return RECORDER_OFF if asked else RECORDER_UNSAFE


class _KnownPattern:
    """The collectives that were missing, their lanes, and how often they have been since."""

    def __init__(self, missing: list[tuple[LaneLog, int]], generation: int) -> None:
        self.missing = missing  # with their sizes
        self.generation = generation  # ProcessGroups.generation of the lane logs
        self.uses = 0


class NativeCollectives:
    """Finds the collectives of this process's groups that were made by C++; not to be shared between threads."""

    def __init__(
        self,
        recorder: Recorder,
        groups: ProcessGroups,
        facts: Facts = FACTS,
        captures: GraphCaptures | None = None,
        waits: FunctionalWaits | None = None,
    ) -> None:
        """`waits`: the waits that are seen for what record_new() records; None: none are."""
        self.captured = 0  # collectives that went into CUDA graphs, and are not recorded
        self._captures = captures or GraphCaptures()
        self._recorder = recorder
        self._groups = groups
        self._facts = facts
        self._waits = waits
        self._watches: dict[Any, _GroupWatch | None] = {}  # None: a group that counts nothing
        self._queries = 0
        self._queried_at = 0
        self._query_ns = 0  # how long the last query took
        self._warned = False

    def start(self) -> None:
        """Leaves out what the groups did before the hooks were there."""
        for group in _process_groups():
            watch = self._watch(group)
            if watch is not None:
                watch.baseline = _Baseline(watch.sequence(), watch.hooked(), clock())

    def end(self, group: Any) -> None:
        """The process group is about to end."""
        watch = self._watches.pop(group, None)
        if watch is not None and watch.launch_hook is not None:
            watch.launch_hook.remove()

    def close(self) -> None:
        """The process is about to end."""
        for group in list(self._watches):
            self.end(group)

    def forget_groups(self) -> None:
        """The process groups are gone."""
        self._watches.clear()

    def record_new(self, group: Any = None, call_site: Hashable = None) -> int:
        """Records the collectives that C++ made in `group`, or in all groups, since the last time, by the host's clock.
        Returns how many. What is known of waits for them are those for functional collectives."""
        launches = []
        for each in _process_groups() if group is None else [group]:
            launches += self.take_new(each, call_site=call_site)
        waits = self._waits.take() if self._waits is not None else ()
        if launches:
            self._record(launches, clock(), waits)
        return len(launches)

    def record_step(self) -> int:
        """Does as record_new() for all groups, at the end of a step."""
        lost = self._recorder.totals.lost
        found = self.record_new()
        if self._waits is not None:
            self._waits.checked(found + self._recorder.totals.lost - lost)
        return found

    def _record(self, launches: Sequence[Launch], now: int, waits: Sequence[Wait]) -> None:
        device = self._recorder.live.device
        if device is not None:
            device.log_ended(launches, now)
            return
        for launch, wait in with_waits(launches, waits):
            if wait is None:
                self._recorder.events.ended_on_host(launch, now)
            else:
                began, ended = wait
                self._recorder.events.wait_counted_apart(launch, began, ended, ended - began, by_device=False)

    def take_new(self, group: Any, issued: int = 0, call_site: Hashable = None) -> list[Launch]:
        """Returns the collectives that C++ made in `group` since the last time, for the caller to record. They were
        launched by `issued`; 0: since the last time. `call_site` tells one place in the script from another: what is
        missing there is the same each time. One function for the usual case, for the reason that TorchSteps gives."""
        watch = self._watches.get(group) or self._watch(group)
        if watch is None or self._captures.under_way():
            return []
        baseline = watch.baseline
        sequence, now = watch.sequence(), clock()
        if sequence == baseline.sequence and baseline.now:
            return []  # it counts more than the hooks see, never less
        hooked = watch.hooked()
        watch.baseline = _Baseline(sequence, hooked, now)
        missing = sequence - baseline.sequence - (hooked - baseline.hooked)
        if missing <= 0:
            return []
        if 0 < baseline.now < self._captures.ended_at:
            return self._launched_beside_capture(watch, baseline, missing)
        pattern = watch.patterns.get((call_site, missing))
        # Learned anew at the 2nd, 4th, 8th, ... use: buckets are rebuilt, branches are taken.
        if pattern is None or not pattern.uses & (pattern.uses - 1) or pattern.generation != self._groups.generation:
            pattern = self._learn(watch, baseline, call_site, missing)
            if pattern is None:
                self._recorder.totals.lost += missing
                self._groups.used()
                return []
        pattern.uses += 1
        watch.baseline = _Baseline(sequence, hooked + len(pattern.missing), now)
        issued, step = issued or baseline.now or now, self._recorder.step
        return [(lane_log.next_word(), lane_log, issued, size, step) for lane_log, size in pattern.missing]

    def _launched_beside_capture(self, watch: _GroupWatch, baseline: _Baseline, missing: int) -> list[Launch]:
        """The launches as by take_new(), where a graph was captured since the last time. A captured collective is
        counted by its group and does not run; the Flight Recorder has the others alone (ProcessGroupNCCL.cpp:
        collective(), `enqueue`)."""
        answer = self._query(watch, baseline) if self._may_query() else None
        found = [(self._lane_log(each.op, watch.group), each.size) for each in answer or ()]
        self.captured += missing - len(found)
        watch.baseline = watch.baseline._replace(hooked=watch.baseline.hooked + len(found))
        step = self._recorder.step
        return [(lane_log.next_word(), lane_log, baseline.now, size, step) for lane_log, size in found]

    def _watch(self, group: Any) -> _GroupWatch | None:
        if group not in self._watches:
            try:
                watch = _GroupWatch(group, self._groups)
                watch.sequence()
                self._watches[group] = watch
            except Exception:  # of whatever kind: a group that is written in Python may raise what it likes
                self._watches[group] = None
        return self._watches[group]

    def _learn(
        self, watch: _GroupWatch, baseline: _Baseline, call_site: Hashable, missing: int
    ) -> _KnownPattern | None:
        """The pattern that the Flight Recorder answers now, or that it answered before, where it may not be asked, or
        its answer is not complete."""
        known = watch.patterns.get((call_site, missing))
        answer = self._query(watch, baseline, missing) if self._may_query() else None
        if answer is None:
            return known
        pattern = _KnownPattern(
            [(self._lane_log(each.op, watch.group), each.size) for each in answer], self._groups.generation
        )
        pattern.uses = known.uses if known else 0
        watch.patterns[call_site, missing] = pattern
        return pattern

    def _lane_log(self, op: str, group: Any) -> LaneLog:
        """The same that the hot path keeps."""
        logs = self._groups.lane_logs(op)
        lane_log = logs.get(group)
        if lane_log is None:
            lane_log = logs[group] = self._groups.lane_log(self._recorder, op, group)
        return lane_log

    def _may_query(self) -> bool:
        return self._queries < _FREE_QUERIES or self._query_ns < _TIME_SHARE_LIMIT * (clock() - self._queried_at)

    def _query(self, watch: _GroupWatch, baseline: _Baseline, missing: int = 0) -> list[RecordedCollective] | None:
        """The collectives that C++ made since the baseline, `missing` or more; None where the Flight Recorder has no
        full answer."""
        self._queries += 1
        self._queried_at = clock()
        answer = read_entries(watch.name, watch.backends, _unix_time(baseline.now) if baseline.now else 0)
        self._query_ns = clock() - self._queried_at
        if answer is None or not answer.complete:
            hooked = self._from_launch_hook(watch, baseline)
            if hooked is None:
                self._report_unnamed(RECORDER_SMALL if answer is not None else watch.why_no_answer())
            if hooked is None or not hooked.complete:
                return None
            answer = hooked
        self._facts.set(UNNAMED_COLLECTIVES, None)
        return without_known(answer.collectives, self._seen_by_hooks(watch.group, baseline.now), missing)

    def _from_launch_hook(self, watch: _GroupWatch, baseline: _Baseline) -> GroupEntries | None:
        """The launches that torch's own hook has seen since the baseline: the first time nothing, because it is put in
        only then. None where torch has no such hook."""
        if watch.launch_hook is None:
            try:
                watch.launch_hook = LaunchHook(watch.group)
            except AttributeError:
                return None
            watch.baseline = _Baseline(watch.sequence(), watch.hooked(), clock())
        return watch.launch_hook.entries(baseline.now)

    def _seen_by_hooks(self, group: Any, since: int) -> list[RecordedCollective]:
        """The collectives that the hooks saw in the group since, as far as the recorder remembers."""
        ops = {lane_log.index: lane.op for lane, lane_log in self._groups.lanes(group) if lane.peer < 0}
        return [
            RecordedCollective(ops[word >> LANE_SHIFT], size)
            for word, (issued, size) in self._recorder.recent_launches().items()
            if issued > since
            and word >> LANE_SHIFT in ops  # at `since` were launched, as far as is known, those before
        ]

    def _report_unnamed(self, reason: str) -> None:
        """Logs the reason once; keeps it in the rank file, where the agent finds it, until an answer is complete."""
        self._facts.set(UNNAMED_COLLECTIVES, reason)
        if not self._warned:
            wrong, fix = UNNAMED_REASONS[reason]
            log.warning("laggard: collectives made outside Python are not recorded: %s; %s", wrong, fix)
            self._warned = True


def _counts(backend: Any) -> bool:
    try:
        backend._get_sequence_number_for_group()
    except RuntimeError:
        return False
    return True


def _process_groups() -> list[Any]:
    """All process groups; none in a process that has not imported torch.distributed, whose end must not import it."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or not distributed.is_initialized():
        return []
    return list(distributed._world.pg_map)


def _unix_time(at: int) -> int:
    """Unix time, in nanoseconds, of a moment on our clock. The best of a few readings: a thread can lose its core in
    one."""

    def reading() -> tuple[int, int]:
        before, wall, after = clock(), time.time_ns(), clock()
        return after - before, wall - (before + after) // 2

    return at + min(reading() for _ in range(3))[1]
