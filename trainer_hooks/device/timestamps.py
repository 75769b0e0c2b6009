"""When marks were passed, on the host's clock: from one boundary of a phase to the next, by the device's own clock."""

from __future__ import annotations

import time
from typing import Any

from laggard.trainer_hooks.device.api import Device
from laggard.trainer_hooks.device.clock_offset import OffsetBounds

clock = time.perf_counter_ns


class Dates:
    """Every mark that it is given has been passed. It keeps one, which dates the others: the last boundary's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bounds = OffsetBounds(clock())
        self.reference: Any = None
        self._reference_at = 0
        self.main: int | None = None  # the stream of the boundaries
        self.now = 0  # when the last boundary was

    @property
    def width(self) -> int:
        """Nanoseconds: dates are before the host's clock by no more than this."""
        return self._bounds.width

    def date(self, mark: Any) -> int:
        if self.reference is None:
            self.reference, self._reference_at = mark, mark.at
        return self._reference_at + self._device.nanoseconds_between(self.reference, mark)

    def boundary(self, mark: Any) -> int:
        """The date of a boundary; it dates what follows, for distances measured from far off are rounded. None: no
        mark could be had, it is taken for the last one's."""
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

    def seen(self, host: int) -> None:
        """The last boundary was seen passed at `host` on the host's clock."""
        self._bounds.not_after(self.now, host)

    def take_shift(self) -> int:
        """By how much dates are put right from here on."""
        shift = self._bounds.take_shift()
        self._reference_at += shift
        self.now += shift
        return shift

    def drop(self, *marks: Any) -> None:
        """These are needed no more."""
        for mark in marks:
            if mark is not None and mark is not self.reference:
                self._device.release(mark)
