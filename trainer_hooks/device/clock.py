"""The clock of a device: what the times of its events mean."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

# The interface that the hooks need of a device that runs behind the host: marks in its streams, and the time between
# two of them.
#
# Nothing here may ever block: a mark is put into a stream and asked later whether the stream has come past it.
# device/cuda.py has the implementation for CUDA.

MARK_LIMIT: Final = 16384
"""The most marks in use at once. ZeRO-3 of a large model takes some thousands a step, and a host runs a step or two
ahead."""


class Mark(Protocol):
    """A place in a stream, from record() to release()."""

    stream: int  # which stream; marks of one stream are passed in the order of their serials
    serial: int  # counts the device's marks; 0 once it is released
    at: int  # host clock, nanoseconds, just before the mark was put there: the stream passed it no earlier


class AsyncDevice(Protocol):
    """All of it but runs_backward() is for the training thread alone (with autograd's, which runs while the training
    thread waits for it). `index` tells the devices of a process apart."""

    index: int

    def stream(self) -> int:
        """The stream of this device on which this thread launches now."""

    def capturing(self) -> bool:
        """Whether a graph is being captured: then nothing else here may be called."""

    def record(self) -> Any:
        """A mark at the end of the present stream; None where it cannot be had: MARK_LIMIT are in use."""

    def done(self, mark: Any) -> bool:
        """Whether the stream has come past `mark`."""

    def nanoseconds_between(self, earlier: Any, later: Any) -> int:
        """Device time from one mark to another; both are done. Negative where `later` was passed first."""

    def release(self, mark: Any) -> None:
        """`mark` is needed no more, done or not."""

    def carries(self, tensors: Any, group: Any) -> bool:
        """Whether a collective on `tensors` in `group` runs on this device. `tensors`: one, lists of them, or None for
        an operation that moves no data."""

    def other_index(self, tensors: Any) -> int | None:
        """The index of another device like this on which a collective on `tensors` runs that does not run on this one;
        None: it runs on the host."""

    def runs_backward(self) -> bool:
        """Whether this thread runs a part of a backward pass: autograd's threads do, while the training thread
        waits."""


# The offset of a device's clock from the host's: pure arithmetic on bounds.
#
# A device passes a mark no earlier than the host put it there, and no later than the host first saw it passed. Each
# mark so bounds the offset from both sides, and the bounds of many marks, intersected, pin it down. The lower bound is
# tight, to the latency of a launch, whenever the device ran dry (training that reads its loss makes it do so once a
# step); the upper bound depends on how soon after a mark the host asked. So the lower bound is the estimate, and the
# width its error.

DRIFT_PER_MILLION: Final = 100
"""The speed at which two clocks may part. Quartz oscillators of servers and boards are within 50 ppm of nominal
each."""

UNKNOWN: Final = 1 << 62  # nanoseconds: more than a century


class OffsetBounds:
    """Bounds of host time minus mapped device time, in nanoseconds; they widen with time, for the clocks drift."""

    def __init__(self, now: int) -> None:
        """Begins with a mapped clock that is not ahead of the host's clock at `now`; all else is unknown."""
        self._now = now
        self._low = 0
        self._high = UNKNOWN
        self._new_low = -UNKNOWN  # the best lower bound since the last not_after(),
        self._new_low_at = now  # and when it was found

    @property
    def width(self) -> int:
        """The estimate is too low by no more than this."""
        return self._high - self._low

    def not_before(self, device: int, host: int) -> None:
        """Notes that what happened at `device` on the mapped clock happened at `host` on the host's or later."""
        if host - device > self._new_low:
            self._new_low, self._new_low_at = host - device, host

    def not_after(self, device: int, host: int) -> None:
        """Notes that what happened at `device` on the mapped clock happened by now, which is `host` on the host's."""
        slack = _drift(host - self._now)
        self._low -= slack
        if self._new_low > self._low:
            self._low = max(self._low, self._new_low - _drift(host - self._new_low_at))
        self._high = min(self._high + slack, host - device)
        self._now, self._new_low = host, -UNKNOWN
        if self._low > self._high:  # a clock that jumped: the newest observation holds
            self._low = self._high

    def take_correction(self) -> int:
        """Returns what to add to mapped times from here on. The bounds are then those of the corrected times."""
        correction = self._low
        self._low = 0
        self._high -= correction
        return correction


def _drift(elapsed: int) -> int:
    """The time by which two clocks may have parted, and the rounding."""
    return max(0, elapsed) * DRIFT_PER_MILLION // 1_000_000 + 1


clock = time.perf_counter_ns


class Timestamps:
    """Gives marks their times; every mark that it gets has been passed. It keeps one mark, the last boundary's, from
    which it measures the times of the others."""

    def __init__(self, device: AsyncDevice) -> None:
        self._device = device
        self._bounds = OffsetBounds(clock())
        self.reference: Any = None
        self._reference_at = 0
        self._further: dict[int, int] = {}  # marks that stand for several places, by serial: their uses but for one
        self.main: int | None = None  # the stream of the boundaries
        self.now = 0  # when the last boundary was

    def of(self, mark: Any) -> int:
        """The time at which `mark` was passed."""
        if self.reference is None:
            self.use_again(mark)
            self.reference, self._reference_at = mark, mark.at
        if mark is self.reference:
            return self._reference_at
        return self._reference_at + self._device.nanoseconds_between(self.reference, mark)

    def of_boundary(self, mark: Any) -> int:
        """The time at which the mark of a boundary was passed. The times of later marks are measured from it,
        because distances over a long time are rounded. None: no mark could be had, and the last boundary's time
        stands for it."""
        if mark is None:
            return self.now or clock()
        former = self.reference
        put: int = mark.at
        at = put if former is None else self.of(mark)
        self.release(former)
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

    def use_again(self, mark: Any) -> None:
        """`mark` stands for one more place: it is needed until it has been released once more."""
        self._further[mark.serial] = self._further.get(mark.serial, 0) + 1

    def release(self, *marks: Any) -> None:
        """These marks are needed no more, each at one of its places; None is no mark."""
        for mark in marks:
            if mark is None:
                continue
            further = self._further.pop(mark.serial, 0) if self._further else 0
            if not further:
                self._device.release(mark)
            elif further > 1:
                self._further[mark.serial] = further - 1
