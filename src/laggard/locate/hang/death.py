"""A rank's death: between which times, and as what. Pure."""

from __future__ import annotations

from typing import NamedTuple

from laggard.locate.job_timings import LastBeat

CLOCK_SKEW_SECONDS = 0.5
"""The largest difference that is assumed between the clocks of two nodes: chrony and NTP keep them far closer."""


class Death(NamedTuple):
    """A rank's death between `earliest` and `latest`, Unix time. `victim`: it died as ranks do whose peer is gone;
    `told`: its own exception or signal says so, and not its place alone. `stood`: where it stood for long before,
    of a rank that alone did not end when the others' collectives failed."""

    column: int
    node: str | None
    earliest: float
    latest: float
    victim: bool
    told: bool = False
    stood: LastBeat | None = None

    def may_precede(self, other: Death) -> bool:
        allowance = 0.0 if self.node == other.node else CLOCK_SKEW_SECONDS
        return self.earliest <= other.latest + allowance
