"""The times at which marks were passed, on the host's clock: from one boundary of a phase to the next, by the device's
own clock."""

from __future__ import annotations

import time
from typing import Any

from laggard.trainer_hooks.device.api import AsyncDevice
from laggard.trainer_hooks.device.clock_offset import OffsetBounds

clock = time.perf_counter_ns


class Timestamps:
    """Gives marks their times; every mark that it gets has been passed. It keeps one mark, the last boundary's, from
    which it measures the times of the others."""

    def __init__(self, device: AsyncDevice) -> None:
        self._device = device
        self._bounds = OffsetBounds(clock())
        self.reference: Any = None
        self._reference_at = 0
        self.main: int | None = None  # the stream of the boundaries
        self.now = 0  # when the last boundary was

    @property
    def width(self) -> int:
        """Nanoseconds: the timestamps are before the host's clock by no more than this."""
        return self._bounds.width

    def of(self, mark: Any) -> int:
        """The time at which `mark` was passed."""
        if self.reference is None:
            self.reference, self._reference_at = mark, mark.at
        return self._reference_at + self._device.nanoseconds_between(self.reference, mark)

    def of_boundary(self, mark: Any) -> int:
        """The time at which the mark of a boundary was passed. The times of later marks are measured from it,
        because distances over a long time are rounded. None: no mark could be had, and the last boundary's time
        stands for it."""
        if mark is None:
            return self.now or clock()
        former, device = self.reference, self._device
        if mark is former:  # a phase began where the last one ended
            return self.now
        put: int = mark.at
        if former is None:
            at = put
        else:
            at = self._reference_at + device.nanoseconds_between(former, mark)
            device.release(former)
        if put > at:
            self._bounds.not_before(at, put)
        self.main = mark.stream
        self.reference, self._reference_at = mark, at
        if at > self.now:
            self.now = at
        return self.now

    def boundary_observed(self, host: int) -> None:
        """The host found the last boundary passed at `host` on its clock."""
        self._bounds.not_after(self.now, host)

    def take_correction(self) -> int:
        """Returns what is added to all timestamps from here on, and begins to add it."""
        correction = self._bounds.take_correction()
        self._reference_at += correction
        self.now += correction
        return correction

    def release(self, *marks: Any) -> None:
        """These marks are needed no more; None is no mark."""
        for mark in marks:
            if mark is not None and mark is not self.reference:
                self._device.release(mark)
