"""One rank's steps, phases and collectives, gathered on the training thread and handed on at the end of each step.

All times are nanoseconds of CLOCK_MONOTONIC (time.perf_counter_ns on Linux). Where the process computes on a device,
what happened is told twice: by the hooks, when the host launches it, and by the device's timeline, when its time is
known. The account (account.py) is kept of the second; what must be seen at once (the live words) of the first.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from laggard.names import ENV_HOST_CLOCK
from laggard.rankfile import Lane
from laggard.rankfile.layout import LANE_SHIFT, LIVE_WORDS, RECORDS_PER_BLOCK, WORD_PHASE, WORD_PROGRESS
from laggard.trainer_hooks.account import BACKWARD, FORWARD, INPUT, NO_PHASE, OPTIMIZER, OTHER, StepBook
from laggard.trainer_hooks.records import RECORD_NUMBERS, Sink, Totals

if TYPE_CHECKING:
    from laggard.trainer_hooks.device_calls import DeviceCalls

__all__ = ["BACKWARD", "FORWARD", "INPUT", "NO_PHASE", "OPTIMIZER", "OTHER", "Recorder"]

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

    __slots__ = ("numbers", "put", "take")

    def __init__(self, index: int) -> None:
        self.numbers: list[int] = []
        self.put: Callable[[Iterable[int]], None] = self.numbers.extend
        self.take = itertools.count((index << LANE_SHIFT) + 1).__next__


class Recorder:
    """Fed by the hooks of one training process; not to be shared between threads that run at the same time.

    `words`, `waits` and `open` belong to the hot path (collectives.py): the live words of the rank file, the times
    blocked in collectives since the last segment ended, and the asynchronous collectives whose handle nobody has
    waited for yet. `device` is what times collectives on a device, where the process computes on one: `find_device`
    is asked for it at the start of each step until it has one to give.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        words: memoryview | None = None,
        find_device: Callable[[Recorder], DeviceCalls | None] | None = None,
    ) -> None:
        self.words: memoryview = _no_words() if words is None else words
        self.waits: list[int] = []
        self.open: dict[int, tuple[LaneLog, int, int, int]] = {}  # word -> log, launched at, bytes, step
        self.launched: dict[int, int] = {}  # word -> the host's launch, of collectives that were timed on the device
        self.totals = Totals()
        self.saw_loader = False
        self.step = 0  # that the training thread is in; the account's own may lie behind it
        self.device: DeviceCalls | None = None
        self._find_device = find_device or (_no_device if os.environ.get(ENV_HOST_CLOCK, "") == "1" else _find_cuda)
        self._sinks = list(sinks)
        self._logs: dict[Lane, LaneLog] = {}
        self._book = StepBook(self.waits)
        self._depth = 0

    def lane(self, lane: Lane, members: Sequence[int]) -> LaneLog:
        """Where collectives of this lane are logged. Its words carry the lane's index, and below it 1, 2, ..."""
        known = self._logs.get(lane)
        if known is None:
            known = self._logs[lane] = LaneLog(len(self._logs))
            self.totals.lanes += [0, 0, 0]
            for sink in self._sinks:
                sink.add_lane(lane, members)
        return known

    @_harmless
    def enter(self, phase: int) -> None:
        """The training thread enters `phase`. Phases do not nest: an inner one belongs to the outer."""
        self._depth += 1
        if self._depth > 1:
            return
        now = clock()
        if not self._book.begun and self.device is None:
            self.device = self._find_device(self)
        self.words[WORD_PHASE] = phase
        self.words[WORD_PROGRESS] = now
        if self.device is not None:
            self.device.enter(phase, self.saw_loader)
        elif self._book.begun:
            self._book.enter(now, phase, self.saw_loader)
        else:
            self.phase_began(now, phase, self.saw_loader)

    @_harmless
    def leave(self) -> None:
        """The training thread leaves the phase that it entered last."""
        self._depth -= 1
        if self._depth > 0:
            return
        now = clock()
        self.words[WORD_PHASE] = NO_PHASE
        self.words[WORD_PROGRESS] = now
        if self.device is None:
            self.phase_ended(now)
        else:
            self.device.leave()

    @_harmless
    def end_step(self, next_step: int) -> None:
        """The optimizer step is done, with the phase left last; what follows belongs to `next_step`."""
        self._depth = 0
        if self.open:
            self._give_up_old_handles()
        finished, self.step = self.step, next_step
        if self.device is None:
            self.step_ended(next_step)
            self.device = self._find_device(self)
        else:
            self.device.end_step(finished, next_step)

    def phase_began(self, now: int, phase: int, saw_loader: bool) -> None:
        """The account: `phase` began at `now`."""
        book = self._book
        if not book.begun:  # what came before the first phase belongs to no step
            self.hand_on()
            book.begin(now, book.step)
            book.begun = True
        book.enter(now, phase, saw_loader)

    def phase_ended(self, now: int) -> None:
        """The account: the phase that began last ended at `now`."""
        if self._book.begun:
            self._book.leave(now)

    def step_ended(self, next_step: int, shift: int = 0) -> None:
        """The account: the step ended with its last phase. `shift` is by how much times are put right from here on."""
        if not self._book.begun:  # half a step was seen
            return self.abandon_step(next_step)
        self.hand_on()
        record = self._book.close()
        self.totals.add(record)
        for sink in self._sinks:
            sink.step(record, self.totals)
        self._book.begin(record.end + shift, next_step)

    def abandon_step(self, next_step: int) -> None:
        """The account: of what is under way too much is unknown; `next_step` begins with its first phase."""
        self.hand_on()
        self._book = StepBook(self.waits)
        self._book.begin(0, next_step)

    def fall_back_to_host(self) -> None:
        """The device can no longer be asked. The host's clock counts, from the next phase on."""
        self.give_up_on_device()
        self.abandon_step(self.step)

    def give_up_on_device(self) -> None:
        """No device is asked for or asked any more."""
        self.device = None
        self._find_device = _no_device

    @_harmless
    def hand_on(self) -> None:
        """Counts the collectives since the last time, and gives them to the sinks."""
        self._book.fold_waits()
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
        step = self._book.step if self._book.begun else BEFORE_STEPS
        for place in range(0, len(gathered), _BLOCK_NUMBERS):
            for sink in self._sinks:
                sink.collectives(step, gathered[place : place + _BLOCK_NUMBERS], self.launched)
        self.launched.clear()

    def _give_up_old_handles(self) -> None:
        """A handle that nobody waited for by the end of the step after its launch was never seen to end."""
        stale = [word for word, (*_, step) in self.open.items() if step < self.step]
        stale += list(self.open)[: max(0, len(self.open) - _OPEN_LIMIT)]
        for word in dict.fromkeys(stale):
            log, launched, size, _ = self.open.pop(word)
            log.put((word, launched, 0, 0, size))

    @_harmless
    def close(self) -> None:
        """The training is over: hands on what is left. Later calls are recorded nowhere."""
        if self.device is not None:
            self.device.close()
        self.hand_on()
        sinks = self._sinks
        self.silence()
        for sink in sinks:
            sink.close()

    def silence(self) -> None:
        """From here on nothing is written, and no device asked. For forked children, too: they share the parent's
        memory map, and must not touch its device."""
        self.words = _no_words()
        self._sinks = []
        self.give_up_on_device()


def _no_device(_: Recorder) -> None:
    return None


def _find_cuda(recorder: Recorder) -> DeviceCalls | None:
    """Where this process computes with CUDA: only once torch has started that itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    from laggard.trainer_hooks import device_cuda

    return device_cuda.take(recorder)
