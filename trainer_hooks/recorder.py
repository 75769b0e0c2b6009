"""One rank's steps, phases and collectives, gathered on the training thread and handed on at the end of each step.

A step is a row of segments without holes: each is a phase (input, forward, backward, optimizer) or the gap before
one. A segment's own time is its length less the time blocked in collectives within it, so that step = own + waited.
All times are nanoseconds of CLOCK_MONOTONIC (time.perf_counter_ns on Linux).
"""

from __future__ import annotations

import functools
import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from laggard.names import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import (
    LANE_SHIFT,
    LIVE_WORDS,
    RECORDS_PER_BLOCK,
    WORD_CURRENT,
    WORD_ISSUED,
    WORD_PHASE,
    WORD_PROGRESS,
)
from laggard.trainer_hooks.records import RECORD_NUMBERS, Sink, Span, StepRecord, Totals

INPUT, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
NO_PHASE: Final = -1
BEFORE_STEPS: Final = -1  # the step of collectives before the first forward
_OPEN_LIMIT: Final = 4096  # handles launched and not waited for, before the oldest are given up
_BLOCK_NUMBERS: Final = RECORDS_PER_BLOCK * RECORD_NUMBERS

clock = time.perf_counter_ns

F = TypeVar("F", bound=Callable[..., Any])


def _harmless(method: F) -> F:
    """An error in laggard is counted and goes no further: the training thread is on the stack."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception:
            self.totals.errors += 1

    return guarded  # type: ignore[return-value]


def _no_words() -> memoryview:
    return memoryview(array("q", [0] * LIVE_WORDS))


class LaneLog:
    """The collectives of one lane since the last hand_on(), as flat numbers (see records.py): adding five numbers
    to a list and summing every fifth of them later is what costs a training thread least."""

    __slots__ = ("_first", "_words", "numbers", "put", "take")

    def __init__(self, index: int) -> None:
        self.numbers: list[int] = []
        self.put = self.numbers.extend
        self._first = (index << LANE_SHIFT) + 1
        self._words = itertools.count(self._first)
        self.take = self._words.__next__

    def entered(self) -> int:
        """How many words were taken. For another thread than the training's: it disturbs nothing."""
        return int(repr(self._words)[len("count(") : -1]) - self._first  # where alone a count shows its next number


class Recorder:
    """Fed by the hooks of one training process; not to be shared between threads that run at the same time.

    `words`, `waits` and `open` belong to the hot path (collectives.py): the live words of the rank file, the times
    blocked in collectives since the last segment ended, and the asynchronous collectives whose handle nobody has
    waited for yet.
    """

    def __init__(self, sinks: Sequence[Sink], words: memoryview | None = None) -> None:
        self.words: memoryview = _no_words() if words is None else words
        self.waits: list[int] = []
        self.open: dict[int, tuple[LaneLog, int, int, int]] = {}  # word -> log, launched at, bytes, step
        self.totals = Totals()
        self.saw_loader = False
        self._sinks = list(sinks)
        self._logs: dict[Lane, LaneLog] = {}
        self._begun = False
        self._begin(0, 0)

    def lane(self, lane: Lane, members: Sequence[int]) -> LaneLog:
        """Where collectives of this lane are logged. Its words carry the lane's index, and below it 1, 2, ..."""
        known = self._logs.get(lane)
        if known is None:
            known = self._logs[lane] = LaneLog(len(self._logs))
            self.totals.lanes += [0, 0, 0]
            for sink in self._sinks:
                sink.add_lane(lane, members)
        return known

    def lanes(self) -> tuple[Lane, ...]:
        """In the order of their indices. For any thread."""
        return tuple(self._logs)

    def progress(self) -> tuple[tuple[int, int], ...]:
        """How many collectives of each lane were entered, and are done. For another thread than the training's: while
        that hands on, what is done may be told too low for a moment."""
        lanes, logs = self.totals.lanes, list(self._logs.values())
        return tuple(
            (log.entered(), lanes[3 * index] + len(log.numbers) // RECORD_NUMBERS) for index, log in enumerate(logs)
        )

    def _begin(self, now: int, step: int) -> None:
        self.step = step
        self._start = self._mark = now
        self._own = [0] * len(PHASES)
        self._waited = 0
        self._segment_waited = 0
        self._spans: list[Span] = []
        self._phase = NO_PHASE
        self._depth = 0
        self._micro = -1
        self._backward_seen = False

    @_harmless
    def enter(self, phase: int) -> None:
        """The training thread enters `phase`. Phases do not nest: an inner one belongs to the outer."""
        self._depth += 1
        if self._depth > 1:
            return
        now = clock()
        if not self._begun:  # what came before the first phase belongs to no step
            self.hand_on()
            self._begin(now, self.step)
            self._depth = 1
            self._begun = True
        self._close_segment(now, self._owner_of_gap(phase))
        self._phase = phase
        if phase == FORWARD:
            self._micro += 1
        elif phase == BACKWARD:
            self._backward_seen = True
        self.words[WORD_PHASE] = phase
        self.words[WORD_PROGRESS] = now

    @_harmless
    def leave(self) -> None:
        """The training thread leaves the phase that it entered last."""
        self._depth -= 1
        if self._depth > 0:
            return
        now = clock()
        self._close_segment(now, self._phase)
        self._phase = NO_PHASE
        self.words[WORD_PHASE] = NO_PHASE
        self.words[WORD_PROGRESS] = now

    def _owner_of_gap(self, following: int) -> int:
        """What the time between two phases was spent on, judged by what follows it."""
        if following == FORWARD and not self.saw_loader:
            return INPUT  # the script reads its input without a DataLoader that we could see
        if following == OPTIMIZER and not self._backward_seen:
            return BACKWARD  # loss.backward() in place of engine.backward(loss)
        return OTHER

    def _close_segment(self, now: int, phase: int) -> None:
        self._fold_waits()
        self._own[phase] += now - self._mark - self._segment_waited
        self._waited += self._segment_waited
        self._segment_waited = 0
        if phase != OTHER and now > self._mark:
            self._spans.append(Span(phase, self._mark, now, max(self._micro, 0)))
        self._mark = now

    def _fold_waits(self) -> None:
        self._segment_waited += sum(self.waits)
        self.waits.clear()

    @_harmless
    def end_step(self, next_step: int) -> None:
        """The optimizer step is done, with the phase left last; what follows belongs to `next_step`."""
        self._give_up_old_handles()
        self.hand_on()
        record = StepRecord(self.step, self._start, self._mark, tuple(self._own), self._waited, tuple(self._spans))
        self.totals.add(record)
        for sink in self._sinks:
            sink.step(record, self.totals)
        self._begin(self._mark, next_step)

    @_harmless
    def hand_on(self) -> None:
        """Counts the collectives since the last time, and gives them to the sinks."""
        self._fold_waits()
        lanes = self.totals.lanes
        gathered: list[int] = []
        for index, log in enumerate(self._logs.values()):
            count = len(log.numbers) // RECORD_NUMBERS
            if count:
                numbers = log.numbers[: count * RECORD_NUMBERS]
                del log.numbers[: count * RECORD_NUMBERS]  # in place: the hot path holds this list
                lanes[3 * index] += count
                lanes[3 * index + 1] += sum(numbers[3::RECORD_NUMBERS])
                lanes[3 * index + 2] += sum(numbers[4::RECORD_NUMBERS])
                gathered += numbers
        step = self.step if self._begun else BEFORE_STEPS
        for place in range(0, len(gathered), _BLOCK_NUMBERS):
            for sink in self._sinks:
                sink.collectives(step, gathered[place : place + _BLOCK_NUMBERS])

    def _give_up_old_handles(self) -> None:
        """A handle that nobody waited for by the end of the step after its launch was never seen to end."""
        stale = [word for word, (*_, step) in self.open.items() if step < self.step]
        stale += list(self.open)[: max(0, len(self.open) - _OPEN_LIMIT)]
        self._give_up(list(dict.fromkeys(stale)))

    def _give_up(self, words: Sequence[int]) -> None:
        for word in words:
            log, launched, size, _ = self.open.pop(word)
            log.put((word, launched, 0, 0, size))

    def _give_up_all(self) -> None:
        """At the end: handles that nobody waited for, and the collective that an exception was raised out of."""
        word, issued = self.words[WORD_CURRENT], self.words[WORD_ISSUED]
        inside = issued and word not in self.open
        self._give_up(list(self.open))
        logs = list(self._logs.values())
        if inside and word >> LANE_SHIFT < len(logs):
            logs[word >> LANE_SHIFT].put((word, issued, 0, 0, 0))

    @_harmless
    def close(self) -> None:
        """The training is over: hands on what is left. Later calls are recorded nowhere."""
        self._give_up_all()
        self.hand_on()
        sinks = self._sinks
        self.silence()
        for sink in sinks:
            sink.close()

    def silence(self) -> None:
        """From here on nothing is written. For forked children, too: they share the parent's memory map."""
        self.words = _no_words()
        self._sinks = []
