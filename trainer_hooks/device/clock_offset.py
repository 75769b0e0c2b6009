"""The offset of a device's clock from the host's: pure arithmetic on bounds.

A device passes a mark no earlier than the host put it there, and no later than the host first saw it passed. Each mark
so bounds the offset from both sides, and the bounds of many marks, intersected, pin it down. The lower bound is tight,
to the latency of a launch, whenever the device ran dry (training that reads its loss makes it do so once a step); the
upper bound depends on how soon after a mark the host asked. So the lower bound is the estimate, and the width its
error.
"""

from __future__ import annotations

from typing import Final

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
