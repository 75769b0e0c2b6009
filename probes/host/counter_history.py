"""What probes saw at their last looks, so that counters are judged by how they grow and never by what they hold.

A probe yields Remember({counter: value}) and asks `host.past.growth(counter, value, seconds)`. Reading and keeping is
the runner's: see last_look_file.py. Looks count within one boot only. They are thinned with age (one a minute, then
ever fewer), so that growth over an hour can be told however often the probe looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

LEAST_SECONDS: Final = 60.0
"""Looks nearer to each other are one: the rate of one error in half a second says nothing."""

MOST_SECONDS: Final = 86400.0
"""Older looks are dropped, but for the newest: after a week without a job there is still one."""

FIRST_LOOK: Final = "first look: how counters grow is known from the next one on"


class Remember(NamedTuple):
    """What a probe yields for its next look: the counters that it judges, by a name of its own."""

    counters: Mapping[str, int]


class Look(msgspec.Struct, frozen=True):
    """The counters of one look, `uptime` seconds after boot."""

    uptime: float
    counters: dict[str, int]


class Growth(msgspec.Struct, frozen=True):
    count: int
    seconds: float

    def per(self, period: float) -> float:
        """How much it grew in `period` seconds. Nothing is made larger than it was seen: two errors in the one minute
        that was watched are two an hour, not 120."""
        return self.count * period / max(self.seconds, period)


class Past(msgspec.Struct, frozen=True):
    """One probe's looks since boot, oldest first, as seen from `uptime`, now. `why_none` says why there are none."""

    uptime: float = 0.0
    looks: tuple[Look, ...] = ()
    why_none: str = FIRST_LOOK

    def growth(self, counter: str, value: int, seconds: float = 0.0) -> Growth | None:
        """How much `counter`, now at `value`, grew over the last `seconds` (or a little more, or since the oldest
        look); 0: since the newest look. None where it cannot be told: no look yet, or the counter is new or went
        backwards since (a reset, a driver's reload)."""
        growth, newer = None, value
        for look in reversed(self.looks):
            seen, age = look.counters.get(counter), self.uptime - look.uptime
            if seen is None or seen > newer:
                break
            newer = seen
            if age >= LEAST_SECONDS:
                growth = Growth(value - seen, age)
                if age >= seconds:
                    break
        return growth

    @property
    def says(self) -> str:
        """For the report's facts: what growth was measured against."""
        if not self.looks:
            return self.why_none
        return f"compared with looks {self._age(-1)} to {self._age(0)} s ago"

    def _age(self, index: int) -> int:
        return round(self.uptime - self.looks[index].uptime)


def add(looks: tuple[Look, ...], new: Look) -> tuple[Look, ...]:
    """`looks` with `new`, thinned with age: some twenty of a day."""
    before = [look for look in looks if look.uptime < new.uptime]
    if before and new.uptime - before[-1].uptime < LEAST_SECONDS:
        return tuple(before)  # replacing it would keep every window below the least
    young = [look for look in before if new.uptime - look.uptime <= MOST_SECONDS]
    return _thinned((*(young or before[-1:]), new))


def _thinned(looks: tuple[Look, ...]) -> tuple[Look, ...]:
    """Without each look whose neighbours are no further from each other than the newer of them is old. So the next
    older look is never more than twice as old as one is."""
    kept = list(looks[:1])
    for look, newer in zip(looks[1:], (*looks[2:], None), strict=False):
        if newer is None or newer.uptime - kept[-1].uptime > looks[-1].uptime - newer.uptime:
            kept.append(look)
    return tuple(kept)
