"""The aggregation of a rank's events: phases, steps and collectives, counted and given to the sinks.

The training thread only appends events (events.py). Another thread (output/open_outputs.py) has the aggregator drain
them several times a second; where there is no such thread the training thread itself does, at the end of each step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from laggard.kit.constants import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, RECORDS_PER_BLOCK
from laggard.trainer_hooks.record.events import (
    BACKWARD,
    BETWEEN_STEPS,
    EVENT_NUMBERS,
    FORWARD,
    INPUT,
    NO_PHASE,
    OPTIMIZER,
    OTHER,
    PHASE_ENTERED,
    PHASE_LEFT,
    STEP_ABANDONED,
    STEP_ENDED,
    UNTIMED,
    WAIT_COUNTED_APART,
    WAITED,
    Sink,
    Span,
    StepRecord,
    Totals,
)

BEFORE_STEPS: Final = -1  # the step of collectives before the first forward
_RECENT_BLOCKS: Final = 64  # blocks of collectives that are remembered
_BATCH_NUMBERS: Final = 1024 * EVENT_NUMBERS
_BLOCK: Final = RECORDS_PER_BLOCK * EVENT_NUMBERS
_SPAN_LIMIT: Final = 4096  # of a step; one that never ends must not fill the memory


class StepTimer:
    """The times of one step: a row of segments without gaps, each a phase or the time between two phases. A segment's
    own time is its length less the time blocked in collectives within it, so that step = own + waited. Times are given:
    whether they come from the host's clock or were measured on a device makes no difference here.

    `begun` is False until the first phase: what came before belongs to no step.
    `engine_gaps`: an engine, and not the script, fills the time between two phases of a step."""

    def __init__(self, engine_gaps: bool = False) -> None:
        self.begun = False
        self.engine_gaps = engine_gaps
        self._forwards = 0  # that were seen in all steps: without any, what comes before an update may be passes
        self.begin(0, 0)

    def begin(self, now: int, step: int) -> None:
        """A new step starts at `now`."""
        self.step = step
        self.segment_began = now
        self._start = now
        self._own = [0] * len(PHASES)
        self._waited = 0
        self._segment_waited = 0
        self._spans: list[Span] = []
        self._phase = self._left = NO_PHASE
        self._micro = -1
        self._work = 0
        self._backward_seen = self._forward_seen = False

    def enter(self, now: int, phase: int, work: int) -> None:
        """`phase` begins, which ends the time between it and the phase before. `work`: as Recorder.enter."""
        self._close_segment(now, self._phase_of_gap(phase))
        self._phase = phase
        if phase == FORWARD:
            self._micro += 1
            self._forwards += 1
            self._work += work
            self._forward_seen = True
        elif phase == BACKWARD:
            self._backward_seen, self._forward_seen = True, False

    def leave(self, now: int) -> None:
        """The phase entered last ends."""
        self._close_segment(now, self._phase)
        self._left, self._phase = self._phase, NO_PHASE

    def waited(self, nanoseconds: int) -> None:
        """The rank was blocked in a collective for so long, in the segment that is under way."""
        self._segment_waited += nanoseconds

    def close(self) -> StepRecord:
        """The step as it stands; its end is that of the phase left last."""
        end = self.segment_began
        return StepRecord(self.step, self._start, end, tuple(self._own), self._waited, tuple(self._spans), self._work)

    def _phase_of_gap(self, following: int) -> int:
        """The phase that the time between two phases counts for, judged by the phase that follows."""
        if following in (FORWARD, INPUT):
            return OTHER if self.engine_gaps else BETWEEN_STEPS
        if following > OPTIMIZER:  # evaluation and the like
            return following if following == self._left else BETWEEN_STEPS if self._micro < 0 else OTHER
        if following == BACKWARD and not self._forward_seen:
            return FORWARD  # a forward pass that no hook sees: a compiled model's
        without_pass = self._forwards > 0 and self._micro < 0  # in this step
        if following == OPTIMIZER and (self._left == OPTIMIZER or without_pass):
            return BETWEEN_STEPS  # of two updates, as before the outer one of local SGD
        if following == OPTIMIZER and not self._backward_seen:
            return BACKWARD  # loss.backward() in place of engine.backward(loss)
        return OTHER

    def _close_segment(self, now: int, phase: int) -> None:
        length = now - self.segment_began
        waited = self._segment_waited
        if waited:
            self._segment_waited = 0
            waited = min(waited, length)  # a device's times are rounded
            self._waited += waited
        self._own[phase] += length - waited
        if phase != OTHER and length > 0 and len(self._spans) < _SPAN_LIMIT:
            self._spans.append(Span(phase, self.segment_began, now, self._micro if self._micro > 0 else 0))
        self.segment_began = now


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

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.totals = Totals()
        self.launched: dict[int, int] = {}
        self._events: list[int] = []
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
            UNTIMED: self._untimed,
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

    def _untimed(self, word: int, size: int, _: int) -> None:
        self._count([word, 0, 0, 0, size])

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

    def _step_abandoned(self, next_step: int, began: int, _: int) -> None:
        self._give_block()
        if not (began and self._timer.begun):
            self._timer = StepTimer(self._timer.engine_gaps)
        self._timer.begin(began, next_step)

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
