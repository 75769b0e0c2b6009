"""Finds the rank whose GPU no longer completes what all others of its group have. Pure.

Hosts run ahead of their GPUs: a rank that waits for its GPU to complete a collective has entered later ones, too, so
that nobody lacks it. But who still waits for one that every other member has completed, and waits for the next, has a
GPU that has stopped: it gave the others its part, and does not come to the end itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from laggard.locate.hang.arrivals import members_by_name
from laggard.locate.hang.point_to_point import COUNTERPART
from laggard.locate.hang.waits import Wait
from laggard.locate.job_timings import JobTimings

_MIN_OTHERS = 2
"""The fewest others: of two ranks either may be the one that is wrong about what is complete."""


class Behind(NamedTuple):
    """A rank (its column) that waits for a collective of its group which `completed` have behind them."""

    wait: Wait
    completed: frozenset[int]


def behind_devices(timings: JobTimings, waits: Mapping[int, Wait]) -> tuple[Behind, ...]:
    """The ranks that alone in their group wait for an earlier collective of a lane than all others, which wait for a
    later one of it. Of groups of which every member that their name spans is seen to wait so."""
    columns = {int(rank): column for column, rank in enumerate(timings.ranks)}
    lanes: dict[tuple[str, str], list[Wait]] = {}
    for column, wait in waits.items():
        flight = timings.states[column].in_flight
        if flight is not None and flight.op not in COUNTERPART and flight.group == wait.group:
            lanes.setdefault((flight.op, flight.group), []).append(wait)
    return tuple(
        found
        for (_, group), of_lane in lanes.items()
        if (found := _behind(of_lane, members_by_name(group, columns))) is not None
    )


def _behind(waits: list[Wait], members: set[int]) -> Behind | None:
    first, *others = sorted(waits, key=lambda wait: wait.number)
    completed = frozenset(wait.column for wait in others if wait.number > first.number)
    if len(completed) < max(_MIN_OTHERS, len(others)) or not members <= completed | {first.column}:
        return None
    return Behind(first, completed)
