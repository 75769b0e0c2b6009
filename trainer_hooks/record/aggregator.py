"""The aggregation of a rank's events: phases, steps and collectives, counted and given to the sinks.

The training thread only appends events (events.py). Another thread (output/writer_thread.py) has the aggregator drain
them several times a second; where there is no such thread the training thread itself does, at the end of each step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, RECORDS_PER_BLOCK
from laggard.trainer_hooks.record.events import (
    EVENT_NUMBERS,
    PHASE_ENTERED,
    PHASE_LEFT,
    STEP_ABANDONED,
    STEP_ENDED,
    WAIT_COUNTED_APART,
    WAITED,
    Sink,
    StepRecord,
    Totals,
)
from laggard.trainer_hooks.record.step_timer import OPTIMIZER, StepTimer

BEFORE_STEPS: Final = -1  # the step of collectives before the first forward
_RECENT_BLOCKS: Final = 64  # blocks of collectives that are remembered
_BATCH_NUMBERS: Final = 1024 * EVENT_NUMBERS
_BLOCK: Final = RECORDS_PER_BLOCK * EVENT_NUMBERS


class _AttachedSink:
    """A sink, and how many lanes it has been given."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.lanes = 0


class Aggregator:
    """Counts one rank's events. One thread at a time drains them; any may read `totals`.

    `launched`: when the host launched the collectives that a device timed, by their words; a word is entered here
    before the event of its collective is appended.
    """

    def __init__(self, events: list[int], sinks: Iterable[Sink]) -> None:
        self.totals = Totals()
        self.launched: dict[int, int] = {}
        self._events = events
        self._sinks = [_AttachedSink(sink) for sink in sinks]
        self._lanes: list[tuple[Lane, tuple[int, ...]]] = []  # with their members
        self._timer = StepTimer()
        self._block: list[int] = []  # collectives of the step that the sinks have not been given yet
        self._draining: list[int] = []  # the portion of the events that is being counted
        self._recent: deque[list[int]] = deque(maxlen=_RECENT_BLOCKS)
        self._flushed: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._handlers: dict[int, Callable[[int, int, int], None]] = {
            PHASE_ENTERED: self._phase_entered,
            PHASE_LEFT: self._phase_left,
            STEP_ENDED: self._step_ended,
            STEP_ABANDONED: self._step_abandoned,
            WAITED: self._waited,
        }

    def add_sink(self, sink: Sink) -> None:
        """Sends records to `sink`, too, from here on. It gets the lanes that are known."""
        self._sinks = [*self._sinks, _AttachedSink(sink)]

    def expect_engine_gaps(self) -> None:
        """Does as StepTimer.engine_gaps, from here on."""
        self._timer.engine_gaps = True

    def add_lane(self, lane: Lane, members: tuple[int, ...]) -> None:
        """Adds a lane; the sinks get it before the first collective of the lane."""
        self._lanes.append((lane, members))

    def drain(self, timeout: float = -1) -> bool:
        """Counts all events appended so far. From any thread; returns False where another thread has been draining for
        `timeout` seconds (-1: waits for ever). What goes wrong is counted, and costs one event."""
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            for portion in self._portions():
                self._give_lanes()  # after it was cut off: a lane is added before the first event of the lane
                self._count_events(portion)
            self._flush()
        except Exception:
            self.totals.errors += 1
        finally:
            self._lock.release()
        return True

    def _flush(self) -> None:
        totals = self.totals
        now = totals.steps, sum(totals.lanes[::3]), totals.lost, totals.errors
        if now != self._flushed:
            self._flushed = now
            for attached in self._sinks:
                self._give(attached.sink.flush, totals)

    def close(self, timeout: float) -> None:
        """Drains what is left, and closes the sinks. Where another thread is stuck in one of them, they stay as they
        are; that is known after `timeout` seconds."""
        if not self.drain(timeout) or not self._lock.acquire(timeout=timeout):
            return
        try:
            self._give_block()
            sinks, self._sinks = self._sinks, []
            for attached in sinks:
                self._give(attached.sink.close)
        finally:
            self._lock.release()

    def detach_sinks(self) -> None:
        """Nothing is written from here on. For a forked child, which does not have its parent's other threads."""
        self._lock = threading.Lock()
        self._sinks = []

    def recent_collectives(self) -> Iterator[tuple[int, ...]]:
        """The records of the last collectives, some of them twice; for the training thread. While another thread
        drains, records move from the first of these places to the last, and are searched in that order."""
        for numbers in (self._events[:], self._draining[:], self._block[:], *list(self._recent)):
            for record in zip(*[iter(numbers)] * EVENT_NUMBERS, strict=True):
                if record[0] >= 0:
                    yield record

    def add_step(self, record: StepRecord) -> None:
        """Adds a step that is known otherwise than by its phases. For a sink, from its collectives()."""
        self._give_step(record)
        self._timer.step = record.step + 1

    def _give_lanes(self) -> None:
        lanes = self._lanes[:]
        self.totals.lanes += [0, 0, 0] * (len(lanes) - len(self.totals.lanes) // 3)
        for attached in self._sinks:
            for lane, members in lanes[attached.lanes :]:
                attached.lanes += 1
                self._give(attached.sink.add_lane, lane, members)

    def _portions(self) -> Iterator[list[int]]:
        events = self._events
        for _ in range(len(events) // _BATCH_NUMBERS + 1):  # what is appended meanwhile comes next time
            self._draining = portion = events[:_BATCH_NUMBERS]
            del events[: len(portion)]  # in place: the hot path holds this list
            yield portion
        self._draining = []

    def _count_events(self, events: list[int]) -> None:
        """Counts collectives by the row, from one event of another kind to the next: that makes them cheap."""
        begin = 0
        words = events[::EVENT_NUMBERS]
        for place in _negative(words):
            at = place * EVENT_NUMBERS
            word = events[at]
            if word < WAIT_COUNTED_APART:
                events[at] = WAIT_COUNTED_APART - word
                self._timer.waited(-events[at + 3])
                continue
            if begin < at:
                self._collectives(events[begin:at])
            begin = at + EVENT_NUMBERS
            try:
                self._handlers[word](events[at + 1], events[at + 2], events[at + 3])
            except Exception:
                self.totals.errors += 1
        self._collectives(events[begin:] if begin else events)

    def _collectives(self, numbers: list[int]) -> None:
        if not numbers:
            return
        self._timer.waited(sum(numbers[3::EVENT_NUMBERS]))
        self._count(numbers)
        self._block += numbers
        while len(self._block) >= _BLOCK:
            self._give_collectives(self._block[:_BLOCK])
            self._block = self._block[_BLOCK:]

    def _count(self, numbers: list[int]) -> None:
        words, waits, sizes = (numbers[start::EVENT_NUMBERS] for start in (0, 3, 4))
        lanes, lane = self.totals.lanes, words[0] >> LANE_SHIFT
        if min(words) >> LANE_SHIFT == max(words) >> LANE_SHIFT:
            words, waits, sizes = words[:1], [sum(waits)], [sum(sizes)]
            lanes[3 * lane] += len(numbers) // EVENT_NUMBERS - 1
        for word, waited, size in zip(words, waits, sizes, strict=True):
            place = 3 * (word >> LANE_SHIFT)
            lanes[place] += 1
            lanes[place + 1] += waited
            lanes[place + 2] += size

    def _give_block(self) -> None:
        """Gives the sinks the block as far as there is one."""
        if self._block:
            self._give_collectives(self._block)
            self._block = []

    def _give_collectives(self, block: list[int]) -> None:
        self._recent.append(block)
        step = self._timer.step if self._timer.begun else BEFORE_STEPS
        words = block[::EVENT_NUMBERS] if self.launched else ()
        launched = {word: self.launched.pop(word) for word in words if word in self.launched}
        for attached in self._sinks:
            self._give(attached.sink.collectives, step, block, launched)

    def _waited(self, nanoseconds: int, _: int, __: int) -> None:
        self._timer.waited(nanoseconds)

    def _phase_entered(self, now: int, phase: int, work: int) -> None:
        timer = self._timer
        if not timer.begun:  # what came before the first phase of training belongs to no step
            if phase > OPTIMIZER:
                return
            self._give_block()
            timer.begin(now, timer.step)
            timer.begun = True
        timer.enter(now, phase, work)

    def _phase_left(self, now: int, _: int, __: int) -> None:
        if self._timer.begun:
            self._timer.leave(now)

    def _step_ended(self, next_step: int, correction: int, _: int) -> None:
        if not self._timer.begun:  # only the end of the step is known
            return self._step_abandoned(next_step, 0, 0)
        self._give_block()
        record = self._timer.close()
        self._give_step(record)
        self._timer.begin(record.end + correction, next_step)

    def _step_abandoned(self, next_step: int, _: int, __: int) -> None:
        self._give_block()
        self._timer = StepTimer(self._timer.engine_gaps)
        self._timer.begin(0, next_step)

    def _give_step(self, record: StepRecord) -> None:
        self.totals.add(record)
        for attached in self._sinks:
            self._give(attached.sink.step, record, self.totals)

    def _give(self, receive: Callable[..., None], *what: Any) -> None:
        """Calls a sink; where it fails, the others are called all the same."""
        try:
            receive(*what)
        except Exception:
            self.totals.errors += 1


def _negative(words: list[int]) -> list[int]:
    """The places of negative numbers."""
    return [] if not words or min(words) >= 0 else [place for place, word in enumerate(words) if word < 0]
