"""What a rank's notes come to: phases, steps and collectives, counted and given to the sinks.

The training thread only notes (notes.py). Another thread (scribe.py) has the ledger take the notes in, several times a
second; where there is no such thread the training thread itself does, at the end of each step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, RECORDS_PER_BLOCK
from laggard.trainer_hooks.record.events import (
    ABANDONED,
    ENTERED,
    LEFT,
    NOTE_NUMBERS,
    STEP_ENDED,
    TIMED_ELSEWHERE,
    WAITED,
)
from laggard.trainer_hooks.record.records import Sink, StepRecord, Totals
from laggard.trainer_hooks.record.step_timer import StepBook

BEFORE_STEPS: Final = -1  # the step of collectives before the first forward
_RECENT: Final = 64  # blocks of collectives that are remembered
_AT_ONCE: Final = 1024 * NOTE_NUMBERS
_BLOCK: Final = RECORDS_PER_BLOCK * NOTE_NUMBERS


class _Outlet:
    """A sink, and how many lanes it has been told of."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.lanes = 0


class Ledger:
    """The account of one rank. One thread at a time takes notes in; any may read `totals`.

    `launched`: when the host launched the collectives that a device timed, by their words; told before they are noted.
    """

    def __init__(self, notes: list[int], sinks: Iterable[Sink]) -> None:
        self.totals = Totals()
        self.launched: dict[int, int] = {}
        self._notes = notes
        self._outlets = [_Outlet(sink) for sink in sinks]
        self._lanes: list[tuple[Lane, tuple[int, ...]]] = []  # with their members
        self._book = StepBook()
        self._block: list[int] = []  # collectives of the step that the sinks have not been given yet
        self._taken: list[int] = []  # what is being taken in
        self._recent: deque[list[int]] = deque(maxlen=_RECENT)
        self._flushed: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._acts: dict[int, Callable[..., None]] = {
            ENTERED: self._entered,
            LEFT: self._left,
            STEP_ENDED: self._step_ended,
            ABANDONED: self._abandoned,
            WAITED: self._waited,
        }

    def add_sink(self, sink: Sink) -> None:
        """From here on records go there too. It is told of the lanes that are known."""
        self._outlets = [*self._outlets, _Outlet(sink)]

    def add_lane(self, lane: Lane, members: tuple[int, ...]) -> None:
        """Told to the sinks before the first collective of the lane is."""
        self._lanes.append((lane, members))

    def take_in(self, patience: float = -1) -> bool:
        """All that has been noted so far. From any thread; False where another has been at it for `patience` seconds
        (-1: for ever). What goes wrong is counted, and costs one note."""
        if not self._lock.acquire(timeout=patience):
            return False
        try:
            for portion in self._portions():
                self._tell_lanes()  # after it was cut off: lanes are added before anything is noted of them
                self._take(portion)
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
            for outlet in self._outlets:
                self._told(outlet.sink.flush, totals)

    def close(self, patience: float) -> None:
        """Takes in what is left, and closes the sinks. Where another thread is stuck in one of them, they stay as they
        are."""
        if not self.take_in(patience) or not self._lock.acquire(timeout=patience):
            return
        try:
            self._give_rest()
            outlets, self._outlets = self._outlets, []
            for outlet in outlets:
                self._told(outlet.sink.close)
        finally:
            self._lock.release()

    def let_go(self) -> None:
        """Nothing is written from here on. For a forked child, whose parent's other threads it does not have."""
        self._lock = threading.Lock()
        self._outlets = []

    def collectives_of_late(self) -> Iterator[tuple[int, ...]]:
        """Records, some of them twice; for the training thread. While another takes notes in, they move from the first
        of these places to the last, and are looked for in that order."""
        for numbers in (self._notes[:], self._taken[:], self._block[:], *list(self._recent)):
            for record in zip(*[iter(numbers)] * NOTE_NUMBERS, strict=True):
                if record[0] >= 0:
                    yield record

    def take_step(self, record: StepRecord) -> None:
        """A step that is known otherwise than by its phases. For a sink, from its collectives()."""
        self._tell(record)
        self._book.step = record.step + 1

    def _tell_lanes(self) -> None:
        lanes = self._lanes[:]
        self.totals.lanes += [0, 0, 0] * (len(lanes) - len(self.totals.lanes) // 3)
        for outlet in self._outlets:
            for lane, members in lanes[outlet.lanes :]:
                outlet.lanes += 1
                self._told(outlet.sink.add_lane, lane, members)

    def _portions(self) -> Iterator[list[int]]:
        notes = self._notes
        for _ in range(len(notes) // _AT_ONCE + 1):  # what is noted meanwhile comes next time
            self._taken = portion = notes[:_AT_ONCE]
            del notes[: len(portion)]  # in place: the hot path holds this list
            yield portion
        self._taken = []

    def _take(self, notes: list[int]) -> None:
        """Collectives are taken in by the row, from one other note to the next: that makes them cheap."""
        begin = 0
        words = notes[::NOTE_NUMBERS]
        for place in _negative(words):
            at = place * NOTE_NUMBERS
            word = notes[at]
            if word < TIMED_ELSEWHERE:
                notes[at] = TIMED_ELSEWHERE - word
                self._book.waited(-notes[at + 3])
                continue
            self._collectives(notes[begin:at])
            begin = at + NOTE_NUMBERS
            try:
                self._acts[word](*notes[at + 1 : begin])
            except Exception:
                self.totals.errors += 1
        self._collectives(notes[begin:] if begin else notes)

    def _collectives(self, numbers: list[int]) -> None:
        if not numbers:
            return
        self._book.waited(sum(numbers[3::NOTE_NUMBERS]))
        self._count(numbers)
        self._block += numbers
        while len(self._block) >= _BLOCK:
            self._give(self._block[:_BLOCK])
            self._block = self._block[_BLOCK:]

    def _count(self, numbers: list[int]) -> None:
        words, waits, sizes = (numbers[start::NOTE_NUMBERS] for start in (0, 3, 4))
        lanes, lane = self.totals.lanes, words[0] >> LANE_SHIFT
        if min(words) >> LANE_SHIFT == max(words) >> LANE_SHIFT:
            words, waits, sizes = words[:1], [sum(waits)], [sum(sizes)]
            lanes[3 * lane] += len(numbers) // NOTE_NUMBERS - 1
        for word, waited, size in zip(words, waits, sizes, strict=True):
            place = 3 * (word >> LANE_SHIFT)
            lanes[place] += 1
            lanes[place + 1] += waited
            lanes[place + 2] += size

    def _give_rest(self) -> None:
        """What there is of a block."""
        if self._block:
            self._give(self._block)
            self._block = []

    def _give(self, block: list[int]) -> None:
        self._recent.append(block)
        step = self._book.step if self._book.begun else BEFORE_STEPS
        words = block[::NOTE_NUMBERS] if self.launched else ()
        launched = {word: self.launched.pop(word) for word in words if word in self.launched}
        for outlet in self._outlets:
            self._told(outlet.sink.collectives, step, block, launched)

    def _waited(self, nanoseconds: int, *_: int) -> None:
        self._book.waited(nanoseconds)

    def _entered(self, now: int, phase: int, saw_loader: int, *_: int) -> None:
        book = self._book
        if not book.begun:  # what came before the first phase belongs to no step
            self._give_rest()
            book.begin(now, book.step)
            book.begun = True
        book.enter(now, phase, bool(saw_loader))

    def _left(self, now: int, *_: int) -> None:
        if self._book.begun:
            self._book.leave(now)

    def _step_ended(self, next_step: int, shift: int, *_: int) -> None:
        if not self._book.begun:  # half a step was seen
            return self._abandoned(next_step)
        self._give_rest()
        record = self._book.close()
        self._tell(record)
        self._book.begin(record.end + shift, next_step)

    def _abandoned(self, next_step: int, *_: int) -> None:
        self._give_rest()
        self._book = StepBook()
        self._book.begin(0, next_step)

    def _tell(self, record: StepRecord) -> None:
        self.totals.add(record)
        for outlet in self._outlets:
            self._told(outlet.sink.step, record, self.totals)

    def _told(self, tell: Callable[..., None], *what: Any) -> None:
        """Tells a sink; where it fails the others are told all the same."""
        try:
            tell(*what)
        except Exception:
            self.totals.errors += 1


def _negative(words: list[int]) -> list[int]:
    """The places of negative numbers."""
    return [] if not words or min(words) >= 0 else [place for place, word in enumerate(words) if word < 0]
