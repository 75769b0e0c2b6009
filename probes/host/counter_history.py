"""The counters that probes read before, so that a counter is judged by its increase and never by its value.

A probe yields SaveCounters({counter: value}) and asks `host.counter_history.increase(counter, value, seconds)`. The
runner loads and saves the snapshots: see runner/state_file.py. Only snapshots of the current boot count. They are
thinned with age (one a minute, then ever fewer), so that the increase over an hour is known however often probes run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import msgspec

MIN_INTERVAL_SECONDS: Final = 60.0
"""The time below which two snapshots count as one: the rate of one error in half a second says nothing."""

MAX_AGE_SECONDS: Final = 86400.0
"""The age from which on snapshots are dropped, except the newest: after a week without a job there is still one."""

NO_SNAPSHOT: Final = "no earlier snapshot: how counters increase is known from the next run on"


LEARNT: Final = "learnt "
"""The beginning of the names of amounts that a boot brings, and that the next boots are compared with."""


class SaveCounters(msgspec.Struct, frozen=True):
    """The value that a probe yields to have its counters saved for its next runs, by names of its own."""

    counters: Mapping[str, int]


class CounterSnapshot(msgspec.Struct, frozen=True):
    """The counters of one run, `uptime` seconds after boot."""

    uptime: float
    counters: dict[str, int]


class Increase(msgspec.Struct, frozen=True):
    """The increase of a counter, and the seconds in which it came."""

    count: int
    seconds: float

    def per(self, period: float) -> float:
        """The increase in `period` seconds. A shorter measurement is not extrapolated: two errors in the one minute
        that was measured are two an hour, not 120."""
        return self.count * period / max(self.seconds, period)


class CounterHistory(msgspec.Struct, frozen=True):
    """One probe's snapshots since boot, oldest first. `uptime` is the time of this run; `why_empty` says why there is
    no snapshot; `earlier`: the best of the amounts that earlier boots had all along, by the names of LEARNT."""

    uptime: float = 0.0
    snapshots: tuple[CounterSnapshot, ...] = ()
    why_empty: str = NO_SNAPSHOT
    earlier: dict[str, int] = {}

    def increase(self, counter: str, value: int, seconds: float = 0.0) -> Increase | None:
        """The increase of `counter`, which is at `value` now, over the last `seconds`, or a little longer, or since the
        oldest snapshot; with 0 seconds since the newest snapshot. None where that is unknown: there is no snapshot yet,
        or the counter is new in it or has decreased since (a reset, a driver that was reloaded)."""
        increase, newer = None, value
        for snapshot in reversed(self.snapshots):
            older, age = snapshot.counters.get(counter), self.uptime - snapshot.uptime
            if older is None or older > newer:
                break
            newer = older
            if age >= MIN_INTERVAL_SECONDS:
                increase = Increase(value - older, age)
                if age >= seconds:
                    break
        return increase

    def recent(self, counter: str, value: int, seconds: float) -> tuple[int, str]:
        """The increase over the last `seconds`, or all of `value`, where no snapshot is that old, of a counter that a
        driver keeps; and the words for which of the two it is."""
        increase = self.increase(counter, value, seconds)
        if increase is None or increase.seconds < seconds:
            return value, "since the driver was loaded"
        return increase.count, f"in the last {increase.seconds / 3600:.0f} h"

    def spread(self, counter: str, value: int, seconds: float) -> float:
        """How far the first and the last increase of `counter` within `seconds` are apart at least, by the snapshots
        between which they came."""
        known = [(shot.uptime, shot.counters[counter]) for shot in self.snapshots if counter in shot.counters]
        times = [shot for shot in [*known, (self.uptime, value)] if shot[0] >= self.uptime - seconds]
        rises = [(one[0], other[0]) for one, other in itertools.pairwise(times) if other[1] > one[1]]
        return max(0.0, rises[-1][0] - rises[0][1]) if rises else 0.0

    @property
    def description(self) -> str:
        """The snapshots that the counters were compared with, for the report's facts."""
        if not self.snapshots:
            return self.why_empty
        return f"compared with snapshots {self._age(-1)} to {self._age(0)} s old"

    def _age(self, index: int) -> int:
        return round(self.uptime - self.snapshots[index].uptime)


def add_snapshot(snapshots: tuple[CounterSnapshot, ...], new: CounterSnapshot) -> tuple[CounterSnapshot, ...]:
    """`snapshots` with `new`, thinned with age: about twenty for a day."""
    before = [snapshot for snapshot in snapshots if snapshot.uptime < new.uptime]
    if before and new.uptime - before[-1].uptime < MIN_INTERVAL_SECONDS:
        return tuple(before)  # to replace the last one each time would keep its age below the minimum forever
    young = [snapshot for snapshot in before if new.uptime - snapshot.uptime <= MAX_AGE_SECONDS]
    return _thinned((*(young or before[-1:]), new))


def all_along(snapshots: tuple[CounterSnapshot, ...]) -> dict[str, int]:
    """The least of each amount that all `snapshots` have, by the names of LEARNT: what came and went is none of it."""
    common = set.intersection(*(set(snapshot.counters) for snapshot in snapshots)) if snapshots else set()
    names = sorted(name for name in common if name.startswith(LEARNT))
    return {name: min(snapshot.counters[name] for snapshot in snapshots) for name in names}


def _thinned(snapshots: tuple[CounterSnapshot, ...]) -> tuple[CounterSnapshot, ...]:
    """Drops each snapshot whose neighbours are no further apart than the newer neighbour is old. So the next older
    snapshot is never more than twice as old."""
    kept = list(snapshots[:1])
    now = snapshots[-1].uptime
    for snapshot, newer in zip(snapshots[1:], (*snapshots[2:], None), strict=False):
        if newer is None or newer.uptime - kept[-1].uptime > now - newer.uptime:
            kept.append(snapshot)
    return tuple(kept)
