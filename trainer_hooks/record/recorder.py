"""One rank's steps, phases and collectives as its training thread sees them: it notes them, the ledger does the rest.

All times are nanoseconds of CLOCK_MONOTONIC (time.perf_counter_ns on Linux). Where the process computes on a device,
what happened is told twice: by the hooks, when the host launches it, and by the device's timeline, when its time is
known. The second is noted; what must be seen at once (the live words) is the first.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from laggard.environment import ENV_HOST_CLOCK
from laggard.rankfile import Lane
from laggard.rankfile.layout import LIVE_WORDS, WORD_PHASE, WORD_PROGRESS
from laggard.trainer_hooks.record.aggregator import Ledger
from laggard.trainer_hooks.record.events import (
    ABANDONED,
    ENTERED,
    LEFT,
    NOTE_NUMBERS,
    STEP_ENDED,
    TIMED_ELSEWHERE,
    WAITED,
    LaneLog,
    Launched,
    Note,
)
from laggard.trainer_hooks.record.pending import Works
from laggard.trainer_hooks.record.records import Sink, StepRecord
from laggard.trainer_hooks.record.step_timer import BACKWARD, FORWARD, INPUT, NO_PHASE, OPTIMIZER, OTHER

if TYPE_CHECKING:
    from laggard.trainer_hooks.device.collectives import DeviceCalls
    from laggard.trainer_hooks.output.writer_thread import Scribe

__all__ = ["BACKWARD", "FORWARD", "INPUT", "NO_PHASE", "OPTIMIZER", "OTHER", "LaneLog", "Launched", "Recorder"]

clock = time.perf_counter_ns

_SOME: Final = 256 * NOTE_NUMBERS  # the training thread takes them in itself, where no other does;
_MANY: Final = 16384 * NOTE_NUMBERS  # the ledger is behind: the training thread takes them in itself,
_MOST: Final = 16 * _MANY  # or, where it cannot, gives them up
FIRST_STEPS: Final = 16  # of which each is looked at, for what seldom changes; then one in
SELDOM: Final = 8
_CLOSE_SECONDS: Final = 1.0  # that the end waits for a sink which another thread is stuck in


def _no_words() -> memoryview:
    return memoryview(array("q", [0] * LIVE_WORDS))


class Recorder:
    """Fed by the hooks of one training process; not to be shared between threads that run at the same time.

    `words`, `note` and `works` belong to the hot path (collectives.py): the live words of the rank file, where notes
    are put, and the collectives that nobody has waited for yet. `device` is what times collectives on a device, where
    the process computes on one: `find_device` is asked for it at the start of a step until it has one to give.
    `look` is called before a step ends, to add what was not seen to happen, and says whether it found anything: at the
    end of the first steps, then of one in eight, and always after one in which it did. So every rank looks after the
    same ones, and numbers its collectives alike.
    `beside`: who has the ledger take the notes in on a thread of its own, while that runs.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        words: memoryview | None = None,
        find_device: Callable[[Recorder], DeviceCalls | None] | None = None,
    ) -> None:
        self._notes: list[int] = []
        self.note: Note = self._note_alone
        self.ledger = Ledger(self._notes, sinks)
        self.totals = self.ledger.totals
        self._launched = self.ledger.launched
        self.words: memoryview = _no_words() if words is None else words
        self.works: Works[Launched] = Works(self._never_ended)
        self.beside: Scribe | None = None
        self.saw_loader = False
        self.entered = 0  # when the phase was
        self.depth = 0  # of the phase in others; 0: between two
        self.worked = False  # a phase other than the optimizer's was entered since somebody took that back
        self.updated = False  # the step ends when the outermost phase is left
        self.look: Callable[[], bool] = _nothing_there
        self.step = 0  # that the training thread is in; the ledger's own may lie behind it
        self.device: DeviceCalls | None = None
        self._find_device = find_device or (_no_device if os.environ.get(ENV_HOST_CLOCK, "") == "1" else _find_cuda)
        self._logs: dict[Lane, LaneLog] = {}
        self._found = False  # something, when it was looked last
        self._begun = False  # the device was asked for since the last step ended

    def add_sinks(self, sinks: Sequence[Sink], words: memoryview | None = None) -> None:
        """From here on records go there too, and what is in flight to `words`. They are told of the lanes known."""
        for sink in sinks:
            self.ledger.add_sink(sink)
        if words is not None:
            words[WORD_PHASE], words[WORD_PROGRESS] = self.words[WORD_PHASE], self.words[WORD_PROGRESS]
            self.words = words

    def accompany(self, scribe: Scribe | None) -> None:
        """From here on another thread has the ledger take the notes in; None: no more."""
        self.beside = scribe
        self.note = self._notes.extend if scribe is not None else self._note_alone
        for log in list(self._logs.values()):
            log.put = self.note

    def _note_alone(self, numbers: Iterable[int]) -> None:
        self._notes.extend(numbers)
        if len(self._notes) >= _SOME:
            self.relieve()

    def lane(self, lane: Lane, members: Sequence[int]) -> LaneLog:
        """Where collectives of this lane are noted."""
        known = self._logs.get(lane)
        if known is None:
            known = self._logs[lane] = LaneLog(len(self._logs), self.note)
            self.ledger.add_lane(lane, tuple(members))
            if self.beside is None:
                self.take_in()
        return known

    def lanes(self) -> tuple[Lane, ...]:
        """In the order of their indices. For any thread."""
        return tuple(self._logs)

    def progress(self) -> tuple[tuple[int, int], ...]:
        """How many collectives of each lane were entered, and are done. For another thread than the training's."""
        entered = [log.launched() for log in list(self._logs.values())]
        self.take_in()
        return tuple((first, min(first, done)) for first, done in zip(entered, self.totals.lanes[::3], strict=False))

    def enter(self, phase: int) -> None:
        """The training thread enters `phase`. Phases do not nest: an inner one belongs to the outer."""
        if phase != OPTIMIZER:
            self.worked = True
        self.depth += 1
        if self.depth > 1:
            return
        try:
            self.entered = now = clock()
            if not self._begun:
                self._begin()
            words = self.words
            words[WORD_PHASE] = phase
            words[WORD_PROGRESS] = now
            if self.device is None:
                self.note((ENTERED, now, phase, self.saw_loader, 0))
            else:
                self.device.enter(now, phase, self.saw_loader)
        except Exception:
            self.totals.errors += 1

    def leave(self) -> None:
        """The training thread leaves the phase that it entered last."""
        self.depth -= 1
        if self.depth > 0:
            return
        try:
            now = clock()
            words = self.words
            words[WORD_PHASE] = NO_PHASE
            words[WORD_PROGRESS] = now
            if self.device is None:
                self.note((LEFT, now, 0, 0, 0))
            else:
                self.device.leave()
            if self.updated:
                self.end_step(self.step + 1)
        except Exception:
            self.totals.errors += 1

    def _begin(self) -> None:
        """A step's first phase: by now the script may have started its device."""
        self._begun = True
        if self.device is None:
            self.device = self._find_device(self)

    def end_step(self, next_step: int) -> None:
        """The optimizer step is done, with the phase left last; what follows belongs to `next_step`."""
        self.depth, self.updated = 0, False
        try:
            if self._found or self.step < FIRST_STEPS or self.step % SELDOM == 0:
                self._found = self.look()
            works = self.works
            if works.work is not None or works.open or works.batches or works.dropped:
                works.give_up_old(self.step)
            finished, self.step = self.step, next_step
            self._begun = next_step >= FIRST_STEPS and next_step % SELDOM != 0
            if self.device is None:
                self.note((STEP_ENDED, next_step, 0, 0, 0))
            else:
                self.device.end_step(finished, next_step)
        except Exception:
            self.totals.errors += 1
        if self.beside is None or len(self._notes) >= _MANY:
            self.relieve()

    def relieve(self) -> None:
        """Sees to it that notes do not pile up."""
        if self.beside is not None and len(self._notes) < _MANY:
            return
        if not self.take_in(0) and len(self._notes) >= _MOST:  # somebody is stuck in a sink
            self.totals.lost += len(self._notes) // NOTE_NUMBERS
            self._notes.clear()
            self.abandon_step(self.step)

    def take_in(self, patience: float = -1) -> bool:
        """As Ledger.take_in."""
        return self.ledger.take_in(patience)

    # What the hooks, or a device's timeline, note with their own times.

    def phase_began(self, now: int, phase: int, saw_loader: bool) -> None:
        """`phase` began at `now`."""
        self.note((ENTERED, now, phase, saw_loader, 0))

    def phase_ended(self, now: int) -> None:
        """The phase that began last ended at `now`."""
        self.note((LEFT, now, 0, 0, 0))

    def step_ended(self, next_step: int, shift: int = 0) -> None:
        """The step ended with its last phase. `shift` is by how much times are put right from here on."""
        self.note((STEP_ENDED, next_step, shift, 0, 0))

    def abandon_step(self, next_step: int) -> None:
        """Of what is under way too much is unknown; `next_step` begins with its first phase."""
        self.note((ABANDONED, next_step, 0, 0, 0))

    def waited(self, nanoseconds: int) -> None:
        """So long did the present segment wait."""
        self.note((WAITED, nanoseconds, 0, 0, 0))

    def timed_on_device(self, launch: Launched, arrival: int, end: int, waited: int) -> None:
        """A collective that the present segment waited for. Its record holds no more of that than its own length."""
        word, _, issued, size, _ = launch
        arrival = max(arrival, issued)  # the clock's error must not turn cause and effect
        end = max(end, arrival)
        if waited > end - arrival:
            self.note((WAITED, waited - (end - arrival), 0, 0, 0))
            waited = end - arrival
        self._launched[word] = issued
        self.note((word, arrival, end, waited, size))

    def timed_elsewhere(self, launch: Launched, arrival: int, end: int, waited: int, by_device: bool) -> None:
        """A collective whose wait, on the device, is told by waited()."""
        word, _, issued, size, _ = launch
        if by_device:
            self._launched[word] = issued
        self.note((TIMED_ELSEWHERE - word, arrival, end, waited, size))

    def add_step(self, record: StepRecord) -> None:
        """A step that is known otherwise than by its phases. For a sink, from its collectives()."""
        self.ledger.take_step(record)
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
            word, _, issued, size, _ = launch
            self.note((word, issued, end, waited if launch is launches[-1] else 0, size))

    def known(self) -> dict[int, tuple[int, int]]:
        """When the host launched the collectives of late, and their bytes, by word."""
        found = {word: (issued, size) for word, issued, _, _, size in self.ledger.collectives_of_late()}
        found |= {word: (issued, size) for word, _, issued, size, _ in self.works}
        if self.device is not None:  # what is noted of these is another time
            found |= {word: (issued, size) for word, issued, size in self.device.recent}
        return found

    def _never_ended(self, entries: Sequence[Launched]) -> None:
        for word, _, issued, size, _ in entries:
            self.note((word, issued, 0, 0, size))

    def close(self) -> None:
        """The training is over: hands on what is left. Later calls are recorded nowhere."""
        try:
            self.works.give_up_old(self.step + 1)  # all: they were never seen to end
            if self.device is not None:
                self.device.close()
            self.words = _no_words()
            if self.beside is not None:
                self.beside.stop()
            self.ledger.close(_CLOSE_SECONDS)
            self.give_up_on_device()
        except Exception:
            self.totals.errors += 1

    def silence(self) -> None:
        """From here on nothing is written, and no device asked. For forked children: they share the parent's memory
        map, and must not touch its device."""
        self.words = _no_words()
        self.accompany(None)
        self.ledger.let_go()
        self._notes.clear()
        self.give_up_on_device()


def _nothing_there() -> bool:
    return False


def _no_device(_: Recorder) -> None:
    return None


def _find_cuda(recorder: Recorder) -> DeviceCalls | None:
    """Where this process computes with CUDA: only once torch has started that itself."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    from laggard.trainer_hooks.device import cuda as device_cuda

    return device_cuda.take(recorder)
