"""The assignment of waits to the collectives that C++ made. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from laggard.trainer_hooks.record.events import Launch

Wait = tuple[int, int]
"""The times at which a wait began and ended, in nanoseconds of one clock."""


def longest_waits(waits: Sequence[Wait], count: int) -> list[Wait]:
    """The `count` longest of `waits`, in order: who waits twice for one collective waits only once for long."""
    kept = sorted(range(len(waits)), key=lambda place: waits[place][0] - waits[place][1])[:count]
    return [waits[place] for place in sorted(kept)]


def with_waits(launches: Sequence[Launch], waits: Sequence[Wait]) -> list[tuple[Launch, Wait | None]]:
    """Collectives that C++ made, with the waits for them: in one order, so far as there are waits. A collective is
    known to be launched when its wait begins."""
    chosen = longest_waits(waits, len(launches))
    paired: list[tuple[Launch, Wait | None]] = []
    for place, (word, log, issued, size, step) in enumerate(launches):
        wait = chosen[place] if place < len(chosen) else None
        paired.append(((word, log, wait[0] if wait else issued, size, step), wait))
    return paired
