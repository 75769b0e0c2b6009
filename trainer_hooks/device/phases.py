"""The training thread's phases and steps where the process computes on a device: marks at their boundaries.

The device may fail or be left alone for a while (a graph is being captured): then there are no marks, and where it
failed the host's clock is used from there on.
"""

from __future__ import annotations

import logging
import time
from threading import get_ident
from typing import Any, Final

from laggard.rankfile.fact_names import TIMED_EVERY
from laggard.rankfile.layout import WORD_ISSUED
from laggard.trainer_hooks.device.clock import UNKNOWN, AsyncDevice
from laggard.trainer_hooks.device.timeline import Timeline
from laggard.trainer_hooks.record.ending import FACTS
from laggard.trainer_hooks.record.events import INPUT, OPTIMIZER
from laggard.trainer_hooks.record.recorder import Recorder

log = logging.getLogger("laggard")

clock = time.perf_counter_ns

SAME_BOUNDARY_NS: Final = (2000, 5000)
"""The nanoseconds on the host's clock in which nothing is launched: where a phase begins so soon after the last one, or
a wait so soon after its collective's call, one mark stands for both. A launch takes about as long as leaving a mark, so
half of what the quickest mark took counts, within these bounds: hosts differ. (An H100 in a virtual machine at 2.1 GHz:
9 us a mark, 16 us an all_reduce.)"""

MARKED_SHARE: Final = 0.005
"""The share of the time that marks may take, with the questions for their times. What the hooks do besides, which costs
a step without marks as much, has the rest of the 2 % that they may cost a step."""

MAX_PERIOD: Final = 32
"""At least one step in so many has marks, in the long run."""

MAX_UNTIMED_NS: Final = 200_000_000
"""The nanoseconds in which there is a step with marks, in the long run: a slow rank is told by seconds of steps."""

_STEPS_MEASURED: Final = 16
_GOLDEN: Final = 0x9E3779B1  # the golden ratio, of 32 bits


def is_timed(step: int, period: int) -> bool:
    """Whether the step has marks where one in `period` has. Each rank chooses alike: what one with a longer period
    times, all others do as well. The steps lie evenly apart, and in no rhythm that a script has (multiplicative
    hashing: Knuth, The Art of Computer Programming 3, 6.4)."""
    return (step * _GOLDEN & 0xFFFFFFFF) * period < 1 << 32


class DutyCycle:
    """Which steps have marks: all, or one in `period` where the steps are short beside what the marks cost. `spent`:
    the nanoseconds that the marks of this step have taken from the host so far."""

    def __init__(self) -> None:
        self.period = 1
        self.spent = 0
        self._began = 0  # the step
        self._measured: list[tuple[int, int]] = []  # of the last steps with marks: what these took, and the whole step

    def step_ended(self, timed: bool) -> None:
        """A step ends, which had marks if `timed`."""
        now = clock()
        if timed:
            self._measured.append((self.spent, now - self._began))
            if len(self._measured) == _STEPS_MEASURED:
                self._adjust()
        self.spent, self._began = 0, now

    def _adjust(self) -> None:
        spent, length = (sorted(each)[_STEPS_MEASURED // 2] for each in zip(*self._measured, strict=True))
        self._measured.clear()
        # It does not go to and fro where the costs do.
        self.period = min(max(self.period, _period(spent, length)), _period(2 * spent, length))
        FACTS.set(TIMED_EVERY, self.period if self.period > 1 else None)


def _period(spent: int, length: int) -> int:
    """The shortest period, a power of 2, in which the marks take no more than their share; or the longest there is."""
    period = 1
    while spent > MARKED_SHARE * length * period and period < MAX_PERIOD and 2 * period * length <= MAX_UNTIMED_NS:
        period *= 2
    return period


class DevicePhases:
    """Logs a recorder's phases and steps from a device's timeline. One a process, for its training thread."""

    def __init__(self, device: AsyncDevice, recorder: Recorder) -> None:
        self.timeline = Timeline(device, recorder.events)
        self.release = self.timeline.release
        self.main: int | None = None  # the stream of the phases' boundaries
        self._device = device
        self._recorder = recorder
        self._live = recorder.live
        self._enabled = True
        self._home = get_ident()  # the training thread: the last that entered a phase other than input
        self.timed = True  # whether the step has marks within it
        self._duty = DutyCycle()
        self._untimed: list[int] = []  # the collectives of a step without marks: events of what is over with the step
        self._newest: Any = None  # the last mark, while the hooks have seen nothing launched in its stream since
        self._serial = 0  # its serial
        self._left_at = 0  # when a hook returned last to what may launch something
        self._quickest, self._same_boundary_ns = UNKNOWN, SAME_BOUNDARY_NS[0]

    def enter(self, now: int, phase: int, work: int) -> None:
        """The training thread enters `phase`, at `now` on the host's clock. `work`: as Recorder.enter."""
        if phase != INPUT:  # a script's own thread may read ahead
            self._home = get_ident()
        if not self.timed:
            if phase > OPTIMIZER:  # it may last, with nothing in flight
                self.poll()
            return
        mark = self.mark(now)
        if mark is not None:
            self.main = mark.stream
        if self._enabled:
            self.timeline.enter(mark, phase, work)
        self._left_at = clock()

    def leave(self) -> None:
        """The training thread leaves the phase."""
        if not self.timed:
            return
        mark = self.mark(clock())
        if self._enabled:
            self.timeline.leave(mark)
            if self.timeline.in_flight:
                self.poll()
        self._left_at = clock()

    def end_step(self, finished: int, next_step: int) -> None:
        """The step `finished` ends with the phase left last."""
        timed, self.timed = self.timed, True
        mark = None if timed else self.mark()
        if self._enabled:
            if timed:
                self.timeline.end_step(next_step)
            else:
                events, self._untimed = self._untimed, []
                self.timeline.end_untimed_step(mark, events, next_step, is_timed(next_step, self._duty.period))
            self.poll()
            self._duty.step_ended(timed)
            self.timed = is_timed(next_step, self._duty.period)
        self._left_at = clock()

    def mark(self, now: int = UNKNOWN) -> Any:
        """Returns a mark at the end of the present stream; None where none can be had, or none is due in this step.
        `now`, on the host's clock: the last mark will do where nothing can have been launched since."""
        device, newest = self._device, self._newest
        try:
            if not self.timed or not self._enabled or device.capturing():
                return None
            soon = newest is not None and now - self._left_at < self._same_boundary_ns
            if soon and newest.serial == self._serial and newest.stream == device.stream():
                self.timeline.use_again(newest)
                return newest
            began = clock()
            mark = device.record()
            took = clock() - began
            self._duty.spent += took
            if took < self._quickest:
                self._quickest, self._same_boundary_ns = took, sorted((*SAME_BOUNDARY_NS, took // 2))[1]
            if mark is None:
                self.timeline.give_up()  # all marks are in use: the device is too far behind
            else:
                self._newest, self._serial = mark, mark.serial
            return mark
        except Exception as error:
            self._disable(error)
            return None

    def on_training_thread(self) -> bool:
        """Whether the calling thread is the training's, or one of autograd's that works for it. What others launch and
        wait for (a checkpoint that is written meanwhile, a loader's copies) is no wait of the training."""
        return get_ident() == self._home or self._device.runs_backward()

    def may_mark(self) -> bool:
        """Whether the device may be asked for marks now: it works, and no graph is being captured."""
        try:
            return self._enabled and not self._device.capturing()
        except Exception as error:
            self._disable(error)
            return False

    def poll(self) -> None:
        """Logs what is over, and clears the collective in flight from the live words once none is."""
        if not self._enabled:
            return
        began = clock()
        try:
            self.timeline.poll()
        except Exception as error:
            self._disable(error)
        self._duty.spent += clock() - began
        if not self._in_flight():
            self._live.words[WORD_ISSUED] = 0

    def _in_flight(self) -> bool:
        """Whether the device may have yet to come past a collective."""
        return bool(self._untimed) or self.timeline.in_flight

    def abandon(self) -> None:
        """Asks the device nothing from here on: this process is a forked child, in which it does not answer."""
        self._enabled = False

    def _disable(self, error: Exception) -> None:
        """The device cannot be asked any more: the host's clock counts, from the next step on."""
        recorder = self._recorder
        recorder.totals.errors += 1
        if not self._enabled:
            return
        self._enabled = False
        log.warning("laggard: the GPU's times cannot be had, the host's clock is used: %s", error)
        recorder.fall_back_to_host()
