"""Validation of the numbers in a rank file. A checksum proves that they were written whole, not that they are sane. A
collector rejects a node's whole answer for one absurd number, so that no number of one user's file may cause that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from laggard.limits import MAX_COUNT, MAX_WORLD
from laggard.rankfile import BeatRecord, Lane, RankCounters, RankFileError, Step
from laggard.rankfile.layout import FLIGHT_RECORDER

MAX_SUM: Final = 1 << 62
MAX_STEP_NS: Final = 10**16  # 115 days
_ROUNDING_NS: Final = 10**4
"""A time is sent as seconds, whose rounding can make a duration longer by microseconds than it is here."""

_MAX_DURATION_NS: Final = MAX_STEP_NS - _ROUNDING_NS


def validate_identity(identity: Mapping[str, Any]) -> None:
    """Raises RankFileError."""
    numbers = (identity["local_rank"], identity["attempt"])
    clocks = (identity["wall_ns"], identity["monotonic_ns"])
    if not identity["job_id"] or identity["world_size"] > MAX_WORLD:
        raise RankFileError("impossible rank")
    if not (_within(numbers, MAX_WORLD) and _within(clocks, MAX_SUM)):
        raise RankFileError("impossible rank")


def validate_counters(counters: RankCounters) -> None:
    """Raises RankFileError."""
    totals = (counters.steps, counters.lost, counters.errors)
    times = (counters.step_ns, counters.own_ns, *counters.phases_ns)
    sums = tuple(sum(column) for column in zip(*counters.lanes, strict=True))
    lanes = (number for lane in counters.lanes for number in lane)
    if not (
        _within(totals, MAX_COUNT // 2) and _within(times, MAX_SUM) and _within((*lanes, *sums, counters.work), MAX_SUM)
    ):
        raise RankFileError("impossible counters")


def validate_lanes(lanes: Iterable[Lane]) -> None:
    """Raises RankFileError."""
    if not _within((lane.peer + 1 for lane in lanes), MAX_WORLD):  # -1: no peer
        raise RankFileError("impossible peer")


def validate_beat(beat: BeatRecord | None) -> None:
    """Raises RankFileError."""
    if beat is None:
        return
    clocks = (beat.at_ns, beat.asked_ns, *(group.moved_ns for group in beat.groups))
    numbers = (number + 1 for group in beat.groups for number in group[1:4])  # -1: not reported
    entered = (number for lane in beat.lanes for number in lane)
    known = 0 <= beat.flight_recorder < len(FLIGHT_RECORDER)
    times = _within(clocks, MAX_SUM) and _within((beat.interval_ns,), MAX_STEP_NS)
    if not (known and times and _within((*numbers, *entered), MAX_COUNT)):
        raise RankFileError("impossible beat")


def is_valid_step(step: Step) -> bool:
    """Returns whether the step, each of its phases and its waiting have durations that are possible."""
    number, start, end, phases, waited, work = step
    return (
        0 <= number <= MAX_COUNT
        and 0 <= start <= end <= MAX_SUM
        and end - start <= _MAX_DURATION_NS
        and 0 <= waited <= _MAX_DURATION_NS
        and min(phases) >= 0
        and max(phases) <= _MAX_DURATION_NS
        and 0 <= work <= MAX_COUNT
    )


def _within(numbers: Iterable[int], most: int) -> bool:
    every = tuple(numbers)
    return not every or (min(every) >= 0 and max(every) <= most)
