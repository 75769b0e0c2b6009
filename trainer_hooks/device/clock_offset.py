"""Where a device's clock stands against the host's: pure arithmetic on bounds.

A device passes a mark no earlier than the host put it there, and no later than the host first saw it passed. Each mark
so bounds the offset from both sides, and the bounds of many marks, intersected, pin it down. From below that is tight,
to the latency of a launch, since the device last ran dry (training that reads its loss does so once a step); from above
it depends on how soon after a mark somebody looked. So the lower bound is the estimate, and the width its error.
"""

from __future__ import annotations

from typing import Final

DRIFT_PER_MILLION: Final = 100
"""How fast two clocks may part. Quartz oscillators of servers and boards are within 50 ppm of nominal each."""

UNKNOWN: Final = 1 << 62  # nanoseconds: more than a century


class OffsetBounds:
    """Bounds of host time minus mapped device time, in nanoseconds; they widen with time, for the clocks drift."""

    def __init__(self, now: int) -> None:
        """At `now` on the host's clock the mapped clock is not ahead of it, and all else is unknown."""
        self._now = now
        self._low = 0
        self._high = UNKNOWN
        self._fresh = -UNKNOWN  # the best lower bound since the last look,
        self._fresh_at = now  # and of when it is

    @property
    def width(self) -> int:
        """The estimate is too low by no more than this."""
        return self._high - self._low

    def not_before(self, device: int, host: int) -> None:
        """What happened at `device` on the mapped clock happened at `host` on the host's or later."""
        if host - device > self._fresh:
            self._fresh, self._fresh_at = host - device, host

    def not_after(self, device: int, host: int) -> None:
        """What happened at `device` on the mapped clock happened by now, which is `host` on the host's."""
        slack = _drift(host - self._now)
        self._low -= slack
        if self._fresh > self._low:
            self._low = max(self._low, self._fresh - _drift(host - self._fresh_at))
        self._high = min(self._high + slack, host - device)
        self._now, self._fresh = host, -UNKNOWN
        if self._low > self._high:  # a clock that jumped: what was just seen is what holds
            self._low = self._high

    def take_shift(self) -> int:
        """What to add to mapped times from here on. The bounds are then of what has been added."""
        shift = self._low
        self._low = 0
        self._high -= shift
        return shift


def _drift(elapsed: int) -> int:
    """By how much two clocks may have parted, and the rounding."""
    return max(0, elapsed) * DRIFT_PER_MILLION // 1_000_000 + 1
