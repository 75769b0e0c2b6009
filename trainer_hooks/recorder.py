"""One rank's steps, phases and collectives, gathered on the training thread and handed on at the end of each step.

All times are nanoseconds of CLOCK_MONOTONIC (time.perf_counter_ns on Linux). Where the process computes on a device,
what happened is told twice: by the hooks, when the host launches it, and by the device's timeline, when its time is
known. The account (account.py) is kept of the second; what must be seen at once (the live words) of the first.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laggard.names import ENV_HOST_CLOCK
from laggard.rankfile.layout import LIVE_WORDS, WORD_PHASE, WORD_PROGRESS
from laggard.trainer_hooks.account import BACKWARD, FORWARD, INPUT, NO_PHASE, OPTIMIZER, OTHER
from laggard.trainer_hooks.launched import Works
from laggard.trainer_hooks.ledger import LaneLog, Launched, Ledger, harmless
from laggard.trainer_hooks.records import RECORD_NUMBERS, Sink, StepRecord

if TYPE_CHECKING:
    from laggard.trainer_hooks.device_calls import DeviceCalls

__all__ = ["BACKWARD", "FORWARD", "INPUT", "NO_PHASE", "OPTIMIZER", "OTHER", "LaneLog", "Launched", "Recorder"]

clock = time.perf_counter_ns


def _no_words() -> memoryview:
    return memoryview(array("q", [0] * LIVE_WORDS))


class Recorder(Ledger):
    """Fed by the hooks of one training process; not to be shared between threads that run at the same time.

    `words`, `waits` and `works` belong to the hot path (collectives.py): the live words of the rank file, the times
    blocked in collectives since the last segment ended, and the collectives that nobody has waited for yet. `device`
    is what times collectives on a device, where the process computes on one: `find_device` is asked for it at the
    start of each step until it has one to give.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        words: memoryview | None = None,
        find_device: Callable[[Recorder], DeviceCalls | None] | None = None,
    ) -> None:
        super().__init__(sinks)
        self.words: memoryview = _no_words() if words is None else words
        self.works: Works[Launched] = Works(self._never_ended)
        self.saw_loader = False
        self.entered = 0  # when the phase was
        self.step = 0  # that the training thread is in; the account's own may lie behind it
        self.device: DeviceCalls | None = None
        self._find_device = find_device or (_no_device if os.environ.get(ENV_HOST_CLOCK, "") == "1" else _find_cuda)
        self._depth = 0

    def add_sinks(self, sinks: Sequence[Sink], words: memoryview | None = None) -> None:
        """From here on records go there too, and what is in flight to `words`. They are told of the lanes known."""
        self.introduce(sinks)
        if words is not None:
            words[WORD_PHASE], words[WORD_PROGRESS] = self.words[WORD_PHASE], self.words[WORD_PROGRESS]
            self.words = words

    @harmless
    def enter(self, phase: int) -> None:
        """The training thread enters `phase`. Phases do not nest: an inner one belongs to the outer."""
        self._depth += 1
        if self._depth > 1:
            return
        self.entered = now = clock()
        if not self._book.begun and self.device is None:
            self.device = self._find_device(self)
        self.words[WORD_PHASE] = phase
        self.words[WORD_PROGRESS] = now
        if self.device is not None:
            self.device.enter(now, phase, self.saw_loader)
        elif self._book.begun:
            self._book.enter(now, phase, self.saw_loader)
        else:
            self.phase_began(now, phase, self.saw_loader)

    @harmless
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

    def outermost(self) -> bool:
        """Whether the phase that was entered last lies in no other."""
        return self._depth == 1

    def between_phases(self) -> bool:
        return self._depth == 0

    @harmless
    def end_step(self, next_step: int) -> None:
        """The optimizer step is done, with the phase left last; what follows belongs to `next_step`."""
        self._depth = 0
        if self.works:
            self.works.give_up_old(self.step)
        finished, self.step = self.step, next_step
        if self.device is None:
            self.step_ended(next_step)
            self.device = self._find_device(self)
        else:
            self.device.end_step(finished, next_step)

    @harmless
    def add_step(self, record: StepRecord) -> None:
        """A step that is known otherwise than by its phases."""
        self.take_step(record)
        self.step = record.step + 1

    def fall_back_to_host(self) -> None:
        """The device can no longer be asked. The host's clock counts, from the next phase on."""
        self.give_up_on_device()
        self.abandon_step(self.step)

    def give_up_on_device(self) -> None:
        """No device is asked for or asked any more."""
        self.device = None
        self._find_device = _no_device

    def begin_batch(self) -> None:
        """What is launched from here on is waited for together."""
        works = self.works if self.device is None else self.device.works
        works.begin_batch(clock())

    def end_batch(self, key: int | None) -> None:
        """The work `key` stands for the batch; None: it is over."""
        if self.device is None:
            self.passed(self.works.end_batch(key), clock())
        else:
            self.device.end_batch(key)

    def passed(self, launches: Sequence[Launched], end: int, waited: int = 0) -> None:
        """These are over at `end`, on the host's clock; the rank was blocked for the last of them."""
        for launch in launches:
            word, log, issued, size, _ = launch
            log.put((word, issued, end, waited if launch is launches[-1] else 0, size))
        if waited and launches:
            self.waits.append(waited)

    def known(self) -> dict[int, tuple[int, int]]:
        """When the host launched the collectives of late, and their bytes, by word."""
        done = itertools.chain(*self.recent, *(log.numbers for log in self._logs.values()))
        found = {word: (issued, size) for word, issued, _, _, size in zip(*[done] * RECORD_NUMBERS, strict=False)}
        found |= {word: (issued, size) for word, _, issued, size, _ in self.works}
        if self.device is not None:  # what is logged of these is another time
            found |= {word: (issued, size) for word, issued, size in self.device.recent}
        return found

    def _never_ended(self, entries: Sequence[Launched]) -> None:
        for word, log, issued, size, _ in entries:
            log.put((word, issued, 0, 0, size))

    @harmless
    def close(self) -> None:
        """The training is over: hands on what is left. Later calls are recorded nowhere."""
        self.works.give_up_old(self.step + 1)  # all: they were never seen to end
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
