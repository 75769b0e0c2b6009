"""What a rank's phases, steps and collectives come to, and its way to the sinks.

It is told by the host's hooks or, later, by a device's timeline (timeline.py): all times are on the host's clock, in
nanoseconds.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, RECORDS_PER_BLOCK, SEQUENCE_MASK
from laggard.trainer_hooks.account import StepBook
from laggard.trainer_hooks.records import RECORD_NUMBERS, Sink, StepRecord, Totals

BEFORE_STEPS: Final = -1  # the step of collectives before the first forward
_RECENT: Final = 16  # times that collectives were handed on
_BLOCK_NUMBERS: Final = RECORDS_PER_BLOCK * RECORD_NUMBERS

F = TypeVar("F", bound=Callable[..., Any])


def harmless(method: F) -> F:
    """An error in laggard is counted and goes no further: the training thread is on the stack."""

    @functools.wraps(method)
    def guarded(self: Ledger, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception:
            self.totals.errors += 1

    return guarded  # type: ignore[return-value]


class LaneLog:
    """The collectives of one lane since the last hand_on(), as flat numbers (see records.py): adding five numbers
    to a list and summing every fifth of them later is what costs a training thread least."""

    __slots__ = ("_words", "index", "numbers", "put", "take")

    def __init__(self, index: int) -> None:
        self.index = index
        self.numbers: list[int] = []
        self.put: Callable[[Iterable[int]], None] = self.numbers.extend
        self._words = itertools.count((index << LANE_SHIFT) + 1)
        self.take = self._words.__next__

    def launched(self) -> int:
        """How many have been launched so far. (A count shows its next number in its text alone.)"""
        return (int(repr(self._words)[6:-1]) & SEQUENCE_MASK) - 1


Launched = tuple[int, LaneLog, int, int, int]
"""A collective under way: word, log, issued (by the host), bytes, step. A plain tuple: it is made on the hot path."""


class Ledger:
    """The account of one rank.

    `waits` is where the times blocked in collectives are left, to be taken from the segment that they fall into;
    `launched` has, by word, when the host launched those that were timed on a device.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.waits: list[int] = []
        self.launched: dict[int, int] = {}
        self.recent: deque[list[int]] = deque(maxlen=_RECENT)  # what was handed on last
        self.totals = Totals()
        self._sinks = list(sinks)
        self._logs: dict[Lane, LaneLog] = {}
        self._members: dict[Lane, tuple[int, ...]] = {}
        self._book = StepBook(self.waits)

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

    def lanes(self) -> tuple[Lane, ...]:
        """In the order of their indices. For any thread."""
        return tuple(self._logs)

    def progress(self) -> tuple[tuple[int, int], ...]:
        """How many collectives of each lane were entered, and are done. For another thread than the training's: while
        that hands on, what is done may be told too low for a moment."""
        lanes, logs = self.totals.lanes, list(self._logs.values())
        return tuple(
            (log.launched(), lanes[3 * index] + len(log.numbers) // RECORD_NUMBERS) for index, log in enumerate(logs)
        )

    def introduce(self, sinks: Sequence[Sink]) -> None:
        """From here on records go there too. They are told of the lanes that are known."""
        for sink in sinks:
            for lane, members in self._members.items():
                sink.add_lane(lane, members)
        self._sinks += sinks

    def phase_began(self, now: int, phase: int, saw_loader: bool) -> None:
        """`phase` began at `now`."""
        book = self._book
        if not book.begun:  # what came before the first phase belongs to no step
            self.hand_on()
            book.begin(now, book.step)
            book.begun = True
        book.enter(now, phase, saw_loader)

    def phase_ended(self, now: int) -> None:
        """The phase that began last ended at `now`."""
        if self._book.begun:
            self._book.leave(now)

    def step_ended(self, next_step: int, shift: int = 0) -> None:
        """The step ended with its last phase. `shift` is by how much times are put right from here on."""
        if not self._book.begun:  # half a step was seen
            return self.abandon_step(next_step)
        self.hand_on()
        record = self._book.close()
        self._tell(record)
        self._book.begin(record.end + shift, next_step)

    def abandon_step(self, next_step: int) -> None:
        """Of what is under way too much is unknown; `next_step` begins with its first phase."""
        self.hand_on()
        self._book = StepBook(self.waits)
        self._book.begin(0, next_step)

    def take_step(self, record: StepRecord) -> None:
        """A step that is known otherwise than by its phases."""
        self._tell(record)
        self._book.step = record.step + 1

    def _tell(self, record: StepRecord) -> None:
        self.totals.add(record)
        for sink in self._sinks:
            sink.step(record, self.totals)

    @harmless
    def hand_on(self) -> None:
        """Counts the collectives since the last time, and gives them to the sinks."""
        gathered: list[int] = []
        for log in self._logs.values():
            if log.numbers:
                gathered += self._count(log)
        self._give(gathered)

    @harmless
    def hand_on_full(self, log: LaneLog) -> None:
        """The same for one lane, whose log has become as long as a block of the rank file."""
        self._give(self._count(log))

    def _count(self, log: LaneLog) -> list[int]:
        numbers = log.numbers[:]
        del log.numbers[: len(numbers)]  # in place: the hot path holds this list
        lanes, place = self.totals.lanes, 3 * log.index
        lanes[place] += len(numbers) // RECORD_NUMBERS
        lanes[place + 1] += sum(numbers[3::RECORD_NUMBERS])
        lanes[place + 2] += sum(numbers[4::RECORD_NUMBERS])
        return numbers

    def _give(self, gathered: list[int]) -> None:
        self._book.fold_waits()
        if not gathered:
            return
        self.recent.append(gathered)
        step = self._book.step if self._book.begun else BEFORE_STEPS
        for place in range(0, len(gathered), _BLOCK_NUMBERS):
            block = gathered if len(gathered) <= _BLOCK_NUMBERS else gathered[place : place + _BLOCK_NUMBERS]
            for sink in self._sinks:
                sink.collectives(step, block, self.launched)
        if self.launched:
            self.launched.clear()
