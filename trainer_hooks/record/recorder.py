"""One rank's steps, phases and collectives as its training thread meets them: the recorder logs events, and the
aggregator does the rest.

All times are nanoseconds of CLOCK_MONOTONIC (time.perf_counter_ns on Linux). Where the process computes on a device,
what happens is reported twice: by the hooks when the host launches it, and by the device's timeline when its time is
known. The events come from the second report; what must be visible at once (the live words) from the first.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from laggard.rankfile import Lane
from laggard.rankfile.layout import WORD_PHASE, WORD_PROGRESS
from laggard.trainer_hooks.record.event_log import EventLog, HotPathState, PeriodicThread, unread_words
from laggard.trainer_hooks.record.events import (
    LATE_STEPS,
    NO_PHASE,
    OPTIMIZER,
    PHASE_ENTERED,
    PHASE_LEFT,
    STEP_ENDED,
    LaneLog,
    Launch,
    PendingWork,
    Sink,
    StepRecord,
)

clock = time.perf_counter_ns

FIRST_STEPS: Final = 16  # in each of these a device is searched for and the native check made; later in one step of
STEPS_PER_SAMPLE: Final = 8
_CLOSE_SECONDS: Final = 1.0  # that the end waits for a sink which another thread is stuck in

FindDevice = Callable[["Recorder"], Any]
"""Returns what times a recorder's work on a device, where the process computes on one by now."""


class Recorder:
    """Fed by the hooks of one training process; not to be shared between threads that run at the same time.

    `live` and the lane logs belong to the hot path (collectives/process_group.py). `events` takes what a device's
    timeline or a hook logs with times of its own. `find_device` is called at the start of a step, until it returns a
    device; without it the host's clock times everything.

    Attributes that hooks read and set without a call, because a call costs a microsecond where it runs once a step:
    - `entered_at`: when the training thread entered the outermost phase.
    - `worked`: whether there was a phase of training other than the optimizer's since the last update.
    - `step_will_end`: whether an update has ended the step. It ends when the outermost phase is left.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        words: memoryview | None = None,
        find_device: FindDevice | None = None,
    ) -> None:
        pending: PendingWork[Launch] = PendingWork(self._never_ended, LATE_STEPS)
        self.live = HotPathState(unread_words() if words is None else words, pending)
        self.events = EventLog(self.live, sinks)
        self.totals = self.events.totals
        self._logs: dict[Lane, LaneLog] = {}
        self._depth = 0
        self.entered_at = 0
        self.worked = False
        self.step_will_end = False
        self._native_check: Callable[[], bool] = lambda: False
        self._found_native = False  # when the check was made last
        self._find_device = find_device or _no_device
        self._searched = False  # for a device, since the last step ended
        self._unwaited = False  # whether collectives were given up that nobody waited for
        self._is_sample = True  # the step under way, in which more is looked at than in each

    @property
    def depth(self) -> int:
        """The number of phases that the training thread is in, one inside the other; 0: it is between two."""
        return self._depth

    @property
    def step(self) -> int:
        """The step that the training thread is in."""
        return self.live.step

    def add_sinks(self, sinks: Sequence[Sink], words: memoryview | None = None) -> None:
        """Sends records to `sinks`, too, from here on, and what is in flight to `words`. The sinks get the known
        lanes."""
        for sink in sinks:
            self.events.add_sink(sink)
        if words is not None:
            former = self.live.words
            words[WORD_PHASE], words[WORD_PROGRESS] = former[WORD_PHASE], former[WORD_PROGRESS]
            self.live.words = words

    def set_background(self, thread: PeriodicThread | None) -> None:
        """Has `thread` drain the events from here on; None: no thread does."""
        self.events.set_background(thread)
        for log in list(self._logs.values()):
            log.append = self.events.append

    def lane(self, lane: Lane, members: Sequence[int]) -> LaneLog:
        """The log of the collectives of this lane."""
        known = self._logs.get(lane)
        if known is None:
            known = self._logs[lane] = LaneLog(len(self._logs), self.events.append)
            self.events.add_lane(lane, tuple(members))
            if self.events.background is None:
                self.drain()
        return known

    def lanes(self) -> tuple[Lane, ...]:
        """The lanes in the order of their indices. For any thread."""
        return tuple(self._logs)

    def launched(self) -> int:
        """The number of collectives that were launched."""
        return sum(map(LaneLog.launched, list(self._logs.values())))

    def progress(self) -> tuple[tuple[int, int], ...]:
        """The number of collectives of each lane that were entered, and of those that are done. For another thread than
        the training's."""
        entered = [log.launched() for log in list(self._logs.values())]
        self.drain()
        return tuple((first, min(first, done)) for first, done in zip(entered, self.totals.lanes[::3], strict=False))

    def drain(self, timeout: float = -1) -> bool:
        """Drains as Aggregator.drain does."""
        return self.events.drain(timeout)

    def set_native_check(self, check: Callable[[], bool]) -> None:
        """`check` logs collectives that no Python call made, and returns whether there were any. It is called before a
        step ends: in each of the first steps, then in one of eight, and always in the step after one in which there
        were any. So every rank checks in the same steps, and numbers its collectives alike."""
        self._native_check = check

    def enter(self, phase: int, work: int = 0) -> None:
        """The training thread enters `phase`. Phases do not nest: an inner one belongs to the outer. `work`: of a
        forward pass the elements of its first input, as far as they are known."""
        if phase < OPTIMIZER:
            self.worked = True
        depth = self._depth
        self._depth = depth + 1
        if depth > 0:
            return
        try:
            self.entered_at = now = clock()
            if not self._searched:
                self._search_device()
            live = self.live
            words = live.words
            words[WORD_PHASE] = phase
            words[WORD_PROGRESS] = now
            if live.device is None:
                self.events.append((PHASE_ENTERED, now, phase, work, 0))
            else:
                live.device.enter(now, phase, work)
        except Exception:
            self.totals.errors += 1

    def leave(self) -> None:
        """The training thread leaves the phase that it entered last."""
        self._depth = depth = self._depth - 1
        if depth > 0:
            return
        try:
            now, live = clock(), self.live
            words = live.words
            words[WORD_PHASE] = NO_PHASE
            words[WORD_PROGRESS] = now
            if live.device is None:
                self.events.append((PHASE_LEFT, now, 0, 0, 0))
            else:
                live.device.leave()
            if self.step_will_end:
                self.end_step(live.step + 1)
        except Exception:
            self.totals.errors += 1

    def _search_device(self) -> None:
        """Searches the device in the first phase of a step: by now the script may have started its device."""
        self._searched = True
        if self.live.device is None:
            self.live.device = self._find_device(self)

    def optimizer_updated(self) -> bool:
        """An optimizer has updated its parameters. Returns whether there was a phase of other work since the last
        update."""
        worked, self.worked = self.worked, False
        return worked

    def end_step(self, next_step: int) -> None:
        """The optimizer step is done, with the phase left last; what follows belongs to `next_step`."""
        self._depth, self.step_will_end = 0, False
        live, events = self.live, self.events
        try:
            if self._is_sample or self._found_native:
                self._found_native = self._native_check()
            pending = live.pending
            if pending.key or pending.others or pending.batches or pending.dropped:
                pending.expire(live.step)
            finished, live.step = live.step, next_step
            self._is_sample = is_sample = next_step % STEPS_PER_SAMPLE == 0 or next_step < FIRST_STEPS
            self._searched = not is_sample
            if live.device is None:
                events.append((STEP_ENDED, next_step, 0, 0, 0))
            else:
                live.device.end_step(finished, next_step)
        except Exception:
            self.totals.errors += 1
        if events.background is None or self._is_sample:
            events.drain_if_needed()

    def add_step(self, record: StepRecord) -> None:
        """Adds a step that is known otherwise than by its phases. For a sink, from its collectives()."""
        self.events.add_step(record)
        self.live.step = record.step + 1

    def search_device_again(self) -> None:
        """The process computes on another device than the one that was found: that is searched for at the next phase,
        and the step under way has no record."""
        self.live.device = None
        self._searched = False
        self.events.step_abandoned(self.step)

    def fall_back_to_host(self) -> None:
        """The device can no longer be asked. The host's clock counts, from the next phase on."""
        self.give_up_on_device()
        self.events.step_abandoned(self.step)

    def give_up_on_device(self) -> None:
        """Searches for no device from here on, and asks none."""
        self.live.device = None
        self._find_device = _no_device

    def begin_batch(self) -> None:
        """Begins a batch: what is launched from here on is waited for together."""
        live = self.live
        (live.pending if live.device is None else live.device.pending).begin_batch(clock())

    def end_batch(self, key: int | None) -> None:
        """The work with the id() `key` stands for the batch; None: the batch is over."""
        if self.live.device is None:
            self.ended_on_host(self.live.pending.end_batch(key), clock())
        else:
            self.live.device.end_batch(key)

    def ended_on_host(self, launches: Sequence[Launch], end: int, waited: int = 0) -> None:
        """These collectives are over at `end`, on the host's clock; the rank was blocked for the last of them."""
        for launch in launches:
            self.events.ended_on_host(launch, end, waited if launch is launches[-1] else 0)

    def recent_launches(self) -> dict[int, tuple[int, int]]:
        """The times at which the host launched the last collectives, and their bytes, by word."""
        live = self.live
        found = {word: (issued, size) for word, issued, _, _, size in self.events.recent_collectives()}
        found |= {word: (issued, size) for word, _, issued, size, _ in live.pending}
        if live.device is not None:  # their records hold arrivals in place of launches
            found |= {word: (issued, size) for word, issued, size in live.device.recent}
        return found

    def unwaited_share(self) -> float:
        """The share of the last collectives' bytes for which nobody was seen to wait; 0.0 where none was added since
        the last call, and on a device, whose stream tells when it waits."""
        added, self._unwaited = self._unwaited, False
        if not added or self.live.device is not None:
            return 0.0
        known = {word: (end, size) for word, _, end, _, size in self.events.recent_collectives()}
        return sum(size for end, size in known.values() if not end) / max(1, sum(size for _, size in known.values()))

    def _never_ended(self, launches: Sequence[Launch]) -> None:
        self._unwaited = True
        for launch in launches:
            self.events.never_ended(launch)

    def close(self) -> None:
        """The training is over: drains what is left and closes the sinks. Later calls are recorded nowhere."""
        try:
            live, events = self.live, self.events
            live.pending.expire(sys.maxsize)  # all of them
            if live.device is not None:
                live.device.close()
            live.words = unread_words()
            if events.background is not None:
                events.background.stop()
            events.close(_CLOSE_SECONDS)
            self.give_up_on_device()
        except Exception:
            self.totals.errors += 1

    def disable_after_fork(self) -> None:
        """Writes nothing from here on, and asks no device. For forked children: they share the parent's memory map, and
        must not touch its device."""
        self.live.words = unread_words()
        self.set_background(None)
        self.events.detach_sinks()
        self.events.clear()
        if self.live.device is not None:  # the hooks of torch.cuda's waits keep it
            self.live.device.abandon()
        self.give_up_on_device()


def in_phase(
    recorder: Recorder, entered: Callable[..., tuple[int, ...] | None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """`original`, each call recorded as the phase that entered(...) returns for its arguments, as enter() takes it;
    None: as none."""

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        phase = entered(*args, **kwargs)
        if phase is None:
            return original(*args, **kwargs)
        recorder.enter(*phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.leave()

    return recorded


def _no_device(_: Recorder) -> None:
    return None
