"""The training thread's phases and steps where the process computes on a device: marks at their boundaries.

The device may fail or be left alone for a while (a graph is being captured): then there are no marks, and where it
failed the host's clock is used from there on.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from laggard.rankfile.layout import WORD_ISSUED
from laggard.trainer_hooks.device.api import Device
from laggard.trainer_hooks.device.timeline import Timeline
from laggard.trainer_hooks.record.recorder import Recorder

log = logging.getLogger("laggard")

clock = time.perf_counter_ns

_NOTHING_BETWEEN: Final = 2000
"""Nanoseconds of the host's in which nothing is launched and no stream is changed: such calls take longer. Where a
phase begins so soon after the last one, one mark stands for both."""


class DevicePhases:
    """Feeds a recorder's account from a device's timeline. One a process, for its training thread."""

    def __init__(self, device: Device, recorder: Recorder) -> None:
        self.timeline = Timeline(device, recorder.events)
        self.main: int | None = None  # the stream of the phases' boundaries
        self._device = device
        self._recorder = recorder
        self._live = recorder.live
        self._alive = True
        self._left = 0  # when a phase was left last, with all that there is to do then

    def enter(self, now: int, phase: int, saw_loader: bool) -> None:
        """`now`: the host's clock."""
        mark = self.timeline.left if now - self._left < _NOTHING_BETWEEN else None
        if mark is None:
            mark = self.mark()
        if mark is not None:
            self.main = mark.stream
        if self._alive:
            self.timeline.enter(mark, phase, saw_loader)

    def leave(self) -> None:
        mark = self.mark()
        if self._alive:
            self.timeline.leave(mark)
            if self.timeline.in_flight:
                self.poll()
        self._left = clock()

    def end_step(self, finished: int, next_step: int) -> None:
        """`finished` ends with the phase left last."""
        if self._alive:
            self.timeline.end_step(next_step)
            self.poll()
        self._left = clock()

    def mark(self) -> Any:
        """A mark at the end of the present stream; None where there is none to be had."""
        device = self._device
        try:
            if not self._alive or device.capturing():
                return None
            mark = device.record()
            if mark is None and device.stream() is not None:
                self.timeline.give_up()  # all marks are in use: the device is too far behind
            return mark
        except Exception as error:
            self._retire(error)
            return None

    def may_mark(self) -> bool:
        try:
            return self._alive and not self._device.capturing()
        except Exception as error:
            self._retire(error)
            return False

    def release(self, *marks: Any) -> None:
        """These are needed no more; None is none."""
        for mark in marks:
            if mark is not None:
                self._device.release(mark)

    def poll(self) -> None:
        """Dates what is over, and takes the collective in flight off the live words once none is."""
        if not self._alive:
            return
        try:
            self.timeline.poll()
        except Exception as error:
            self._retire(error)
        if not self.timeline.in_flight:
            self._live.words[WORD_ISSUED] = 0

    def _retire(self, error: Exception) -> None:
        """The device cannot be asked: the host's clock, from the next step on."""
        recorder = self._recorder
        recorder.totals.errors += 1
        if not self._alive:
            return
        self._alive = False
        log.warning("laggard: the GPU's times cannot be had, the host's clock is used: %s", error)
        recorder.fall_back_to_host()
