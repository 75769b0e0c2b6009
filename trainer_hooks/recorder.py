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
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

from laggard.names import PHASES
from laggard.rankfile import Lane
from laggard.rankfile.layout import (
    LANE_SHIFT,
    LIVE_WORDS,
    RECORDS_PER_BLOCK,
    SEQUENCE_MASK,
    WORD_PHASE,
    WORD_PROGRESS,
)
from laggard.trainer_hooks.records import RECORD_NUMBERS, Sink, Span, StepRecord, Totals

INPUT, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
NO_PHASE: Final = -1
BEFORE_STEPS: Final = -1  # the step of collectives before the first forward
_OPEN_LIMIT: Final = 4096  # handles launched and not waited for, before the oldest are given up
_MOST_SPANS: Final = 4096  # of a step; one that never ends must not fill the memory
_RECENT: Final = 16  # times that collectives were handed on
_BLOCK_NUMBERS: Final = RECORDS_PER_BLOCK * RECORD_NUMBERS

clock = time.perf_counter_ns

Launched = tuple[int, "LaneLog", int, int, int]
"""A collective under way: word, log, issued, bytes, step."""

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

    __slots__ = ("_words", "index", "numbers", "put", "take")

    def __init__(self, index: int) -> None:
        self.index = index
        self.numbers: list[int] = []
        self.put = self.numbers.extend
        self._words = itertools.count((index << LANE_SHIFT) + 1)
        self.take = self._words.__next__

    def launched(self) -> int:
        """How many have been launched so far. (A count shows its next number in its text alone.)"""
        return (int(repr(self._words)[6:-1]) & SEQUENCE_MASK) - 1


class Recorder:
    """Fed by the hooks of one training process; not to be shared between threads that run at the same time.

    `words`, `waits` and `open` belong to the hot path (collectives.py): the live words of the rank file, the times
    blocked in collectives since the last segment ended, and the collectives whose work nobody has waited for yet, by
    the work's id(); `batches`: those for which one work stands together.
    """

    def __init__(self, sinks: Sequence[Sink], words: memoryview | None = None) -> None:
        self.words: memoryview = _no_words() if words is None else words
        self.waits: list[int] = []
        self.open: dict[int, Launched] = {}
        self.batches: dict[int, list[Launched]] = {}
        self.totals = Totals()
        self.saw_loader = False
        self.entered = 0  # when the phase was
        self._sinks = list(sinks)
        self._logs: dict[Lane, LaneLog] = {}
        self._members: dict[Lane, tuple[int, ...]] = {}
        self._dropped: list[Launched] = []
        self.recent: deque[list[int]] = deque(maxlen=_RECENT)  # what was handed on last
        self._batching: set[int] | None = None
        self._begun = False
        self._begin(0, 0)

    def lane(self, lane: Lane, members: Sequence[int]) -> LaneLog:
        """Where collectives of this lane are logged. Its words carry the lane's index, and below it 1, 2, ..."""
        known = self._logs.get(lane)
        if known is None:
            known = self._logs[lane] = LaneLog(len(self._logs))
            self._members[lane] = tuple(members)
            self.totals.lanes += [0, 0, 0]
            for sink in self._sinks:
                sink.add_lane(lane, members)
        return known

    def add_sinks(self, sinks: Sequence[Sink], words: memoryview | None = None) -> None:
        """From here on records go there too. They are told of the lanes that are known."""
        for sink in sinks:
            for lane, members in self._members.items():
                sink.add_lane(lane, members)
        self._sinks += sinks
        if words is not None:
            words[WORD_PHASE], words[WORD_PROGRESS] = self.words[WORD_PHASE], self.words[WORD_PROGRESS]
            self.words = words

    def relaunch(self, key: int, entry: Launched) -> None:
        """A work has the id() of an earlier one that was dropped without a wait()."""
        self._dropped.append(self.open.pop(key))
        self.open[key] = entry

    def take_unwaited(self, since: int, logs: Collection[int]) -> list[Launched]:
        """Those launched since and not waited for, of the logs with these id()s. From here on they are not ours."""
        chosen = [key for key, entry in self.open.items() if entry[2] >= since and id(entry[1]) in logs]
        dropped = [entry for entry in self._dropped if entry[2] >= since and id(entry[1]) in logs]
        self._dropped = [entry for entry in self._dropped if entry not in dropped]
        return sorted([*dropped, *(self.open.pop(key) for key in chosen)], key=lambda entry: entry[2])

    def begin_batch(self) -> None:
        self._dropped, dropped = [], self._dropped
        self._give_up(dropped)
        self._batching = set(self.open)

    def end_batch(self, key: int | None) -> None:
        """The work `key` stands for all that was launched since begin_batch(); None: there is nothing to wait for."""
        if self._batching is None:
            return
        since = [other for other in self.open if other not in self._batching]
        batch = sorted(self._dropped + [self.open.pop(other) for other in since], key=lambda entry: entry[2])
        self._dropped, self._batching = [], None
        if key is None:
            now = clock()
            for word, log, issued, size, _ in batch:
                log.put((word, issued, now, 0, size))
        elif batch:
            self.batches[key] = batch

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
        self._forward_seen = False

    @_harmless
    def enter(self, phase: int) -> None:
        """The training thread enters `phase`. Phases do not nest: an inner one belongs to the outer."""
        self._depth += 1
        if self._depth > 1:
            return
        self.entered = now = clock()
        if not self._begun:  # what came before the first phase belongs to no step
            self.hand_on()
            self._begin(now, self.step)
            self._depth = 1
            self._begun = True
        self._close_segment(now, self._owner_of_gap(phase))
        self._phase = phase
        if phase == FORWARD:
            self._micro += 1
            self._forward_seen = True
        elif phase == BACKWARD:
            self._backward_seen, self._forward_seen = True, False
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

    def outermost(self) -> bool:
        """Whether the phase that was entered last lies in no other."""
        return self._depth == 1

    def between_phases(self) -> bool:
        return self._depth == 0

    def _owner_of_gap(self, following: int) -> int:
        """What the time between two phases was spent on, judged by what follows it."""
        if following == FORWARD and not self.saw_loader:
            return INPUT  # the script reads its input without a DataLoader that we could see
        if following == BACKWARD and not self._forward_seen:
            return FORWARD  # a forward pass that no hook sees: a compiled model's
        if following == OPTIMIZER and not self._backward_seen:
            return BACKWARD  # loss.backward() in place of engine.backward(loss)
        return OTHER

    def _close_segment(self, now: int, phase: int) -> None:
        self._fold_waits()
        self._own[phase] += now - self._mark - self._segment_waited
        self._waited += self._segment_waited
        self._segment_waited = 0
        if phase != OTHER and now > self._mark and len(self._spans) < _MOST_SPANS:
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
    def add_step(self, record: StepRecord) -> None:
        """A step that is known otherwise than by its phases."""
        self.totals.add(record)
        for sink in self._sinks:
            sink.step(record, self.totals)
        self.step = record.step + 1

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
        if gathered:
            self.recent.append(gathered)
        step = self.step if self._begun else BEFORE_STEPS
        for place in range(0, len(gathered), _BLOCK_NUMBERS):
            for sink in self._sinks:
                sink.collectives(step, gathered[place : place + _BLOCK_NUMBERS])

    def _give_up_old_handles(self) -> None:
        """A handle that nobody waited for by the end of the step after its launch was never seen to end."""
        stale = [key for key, (*_, step) in self.open.items() if step < self.step]
        stale += list(self.open)[: max(0, len(self.open) - _OPEN_LIMIT)]
        self._give_up([self.open.pop(key) for key in dict.fromkeys(stale)] + self._dropped)
        self._dropped = []
        for key in [key for key, batch in self.batches.items() if batch[-1][-1] < self.step]:
            self._give_up(self.batches.pop(key))

    def _give_up(self, entries: Sequence[Launched]) -> None:
        for word, log, issued, size, _ in entries:
            log.put((word, issued, 0, 0, size))

    @_harmless
    def close(self) -> None:
        """The training is over: hands on what is left. Later calls are recorded nowhere."""
        self.hand_on()
        sinks = self._sinks
        self.silence()
        for sink in sinks:
            sink.close()

    def silence(self) -> None:
        """From here on nothing is written. For forked children, too: they share the parent's memory map."""
        self.words = _no_words()
        self._sinks = []
