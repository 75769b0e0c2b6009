"""The time limit of the whole gate: probes, collector and SLURM have one end, and each later part gets what is left."""

from __future__ import annotations

import math
import time
from typing import Final

import msgspec

MIN_SECONDS: Final = 0.1
"""The least time in which anything is still begun."""

_DECISION_SECONDS: Final = 7.0
"""The collector is asked for a second, scontrol twice for three."""

_DECISION_SHARE: Final = 0.3


class TimeLimit(msgspec.Struct, frozen=True):
    """Both ends are in monotonic seconds, infinite where there is no limit."""

    end: float
    end_of_measurements: float
    """Sooner than `end`, where collector or SLURM are asked after the measurements."""

    def to_measure(self, most: float) -> float:
        """The seconds for a measurement that may take `most`."""
        return max(MIN_SECONDS, min(most, self.end_of_measurements - time.monotonic()))

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    def to_decide(self, most: float, kept: float = 0.0) -> float:
        """The seconds for a question that may take `most`, where `kept` seconds are left for others; 0 where it may not
        be begun any more."""
        return seconds_left(self.end - kept, most)


def limit_from_start(seconds: float | None, decides: bool, began_seconds_ago: float = 0.0) -> TimeLimit:
    """`seconds` from the start of this process on, which was `began_seconds_ago`; None: no limit. `decides`: whether
    the gate decides something after it has measured."""
    end = math.inf if seconds is None else time.monotonic() - began_seconds_ago + seconds
    kept = min(_DECISION_SECONDS, seconds * _DECISION_SHARE) if seconds and decides else 0.0
    return TimeLimit(end, end - kept)


def seconds_left(end: float, most: float) -> float:
    """At most `most` seconds until `end` (monotonic seconds); 0 where less than MIN_SECONDS are left."""
    left = min(most, end - time.monotonic())
    return left if left >= MIN_SECONDS else 0.0
