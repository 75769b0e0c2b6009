"""The training thread's phases and steps where the process computes on a device: marks at their boundaries.

The device may fail or be left alone for a while (a graph is being captured): then there are no marks, and where it
failed the host's clock is used from there on.
"""

from __future__ import annotations

import logging
import time
from threading import get_ident
from typing import Any, Final

from laggard.rankfile.layout import WORD_ISSUED
from laggard.trainer_hooks.device.clock import AsyncDevice
from laggard.trainer_hooks.device.timeline import Timeline
from laggard.trainer_hooks.record.events import INPUT
from laggard.trainer_hooks.record.recorder import Recorder

log = logging.getLogger("laggard")

clock = time.perf_counter_ns

SAME_BOUNDARY_NS: Final = (2000, 5000)
"""The nanoseconds on the host's clock in which nothing is launched: where a phase begins so soon after the last one, or
a wait so soon after its collective's call, one mark stands for both. A launch takes about as long as leaving a mark, so
half of what the quickest of the first marks took counts, within these bounds: hosts differ. (An H100 in a virtual
machine at 2.1 GHz: 9 us a mark, 16 us an all_reduce.)"""
_TIMED_MARKS: Final = 16


class DevicePhases:
    """Logs a recorder's phases and steps from a device's timeline. One a process, for its training thread."""

    def __init__(self, device: AsyncDevice, recorder: Recorder) -> None:
        self.timeline = Timeline(device, recorder.events)
        self.main: int | None = None  # the stream of the phases' boundaries
        self._device = device
        self._recorder = recorder
        self._live = recorder.live
        self._enabled = True
        self._home = get_ident()  # the training thread: the last that entered a phase other than input
        self._left_at = 0  # when a phase was left last, with all that there is to do then
        self.same_boundary_ns = SAME_BOUNDARY_NS[0]
        self._untimed = _TIMED_MARKS
        self._quickest = 2 * SAME_BOUNDARY_NS[1]

    def enter(self, now: int, phase: int, work: int) -> None:
        """The training thread enters `phase`, at `now` on the host's clock. `work`: as Recorder.enter."""
        mark = self.timeline.left if now - self._left_at < self.same_boundary_ns else None
        if mark is None or not self._is_here(mark):
            mark = self.mark()
        if mark is not None:
            self.main = mark.stream
        if phase != INPUT:  # a script's own thread may read ahead
            self._home = get_ident()
        if self._enabled:
            self.timeline.enter(mark, phase, work)

    def leave(self) -> None:
        """The training thread leaves the phase."""
        mark = self.mark()
        if self._enabled:
            self.timeline.leave(mark)
            if self.timeline.in_flight:
                self.poll()
        self._left_at = clock()

    def end_step(self, finished: int, next_step: int) -> None:
        """The step `finished` ends with the phase left last."""
        if self._enabled:
            self.timeline.end_step(next_step)
            self.poll()
        self._left_at = clock()

    def mark(self) -> Any:
        """Returns a mark at the end of the present stream; None where none can be had."""
        device = self._device
        try:
            if not self._enabled or device.capturing():
                return None
            mark = self._timed_mark() if self._untimed else device.record()
            if mark is None:
                self.timeline.give_up()  # all marks are in use: the device is too far behind
            return mark
        except Exception as error:
            self._disable(error)
            return None

    def _is_here(self, mark: Any) -> bool:
        """Whether the mark is in the present stream."""
        try:
            return bool(mark.stream == self._device.stream())
        except Exception as error:
            self._disable(error)
            return False

    def _timed_mark(self) -> Any:
        """One of the first marks, which tell how quick this host is."""
        began = clock()
        mark = self._device.record()
        self._quickest = min(self._quickest, clock() - began)
        self._untimed -= 1
        if not self._untimed:
            self.same_boundary_ns = max(SAME_BOUNDARY_NS[0], self._quickest // 2)
        return mark

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

    def release(self, *marks: Any) -> None:
        """These marks are needed no more; None is no mark."""
        for mark in marks:
            if mark is not None:
                self._device.release(mark)

    def poll(self) -> None:
        """Logs what is over, and clears the collective in flight from the live words once none is."""
        if not self._enabled:
            return
        try:
            self.timeline.poll()
        except Exception as error:
            self._disable(error)
        if not self.timeline.in_flight:
            self._live.words[WORD_ISSUED] = 0

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
