"""Finds the rank whose GPU no longer completes what all others of its group have. Pure.

Hosts run ahead of their GPUs: a rank that waits for its GPU to complete a collective has entered later ones, too, so
that nobody lacks it. But who still waits for one that every other member has completed, and waits for the next, has a
GPU that has stopped: it gave the others its part, and does not come to the end itself. So has one that completed what
all have, and never began the next, where every other GPU did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from laggard.locate.hang.members import Members
from laggard.locate.hang.point_to_point import COUNTERPART
from laggard.locate.hang.waits import Wait, in_the_world
from laggard.locate.job_timings import JobTimings

_MIN_OTHERS = 2
"""The fewest others: of two ranks either may be the one that is wrong about what is complete."""


class Behind(NamedTuple):
    """A rank (its column) that waits for a collective of its group which `others` have behind them; with `begun`, which
    its GPU has not begun, and those of `others` have."""

    wait: Wait
    others: frozenset[int]
    begun: bool = False


def behind_devices(timings: JobTimings, waits: Mapping[int, Wait]) -> tuple[Behind, ...]:
    """The ranks that alone in their group wait for an earlier collective of a lane than all others, which wait for a
    later one of it. Of groups of which every member that their name spans is seen to wait so."""
    members = Members(timings)
    lanes: dict[tuple[str, str], list[Wait]] = {}
    for column, wait in waits.items():
        flight = timings.states[column].in_flight
        if flight is not None and flight.op not in COUNTERPART and flight.group == wait.group:
            lanes.setdefault((flight.op, flight.group), []).append(wait)
    return tuple(
        found for (_, group), of_lane in lanes.items() if (found := _behind(of_lane, members.of(group))) is not None
    )


def not_begun(timings: JobTimings, waits: Mapping[int, Wait]) -> tuple[Behind, ...]:
    """The rank whose GPU alone has not begun the world's collective in which all others' stand, though all hosts have
    launched it; by torch's Flight Recorder. FSDP has two of them begun at once, of two streams. None where a rank may
    stand in a collective of another group: whom it waits for may be elsewhere."""
    world = {column: group for column in waits if (group := in_the_world(timings.states[column])) is not None}
    if len(world) < len(timings.states) or len(world) < timings.world_size or _in_part_of_the_world(timings):
        return ()
    newest = max(group.started for group in world.values())
    late = [column for column, group in world.items() if group.started < newest]
    others = frozenset(world) - frozenset(late)
    if len(late) != 1 or len(others) < _MIN_OTHERS or min(group.enqueued for group in world.values()) < newest:
        return ()
    (column,) = late
    own = world[column]
    if own.started < 0 or any(group.completed != own.started for group in world.values()):
        return ()
    return (Behind(waits[column]._replace(number=own.started + 1, seconds=own.seconds), others, begun=True),)


def _in_part_of_the_world(timings: JobTimings) -> bool:
    """Whether a rank may stand in a collective of a group that is not the world, or in a message."""
    members = Members(timings)
    lanes = (lane for state in timings.states if state.beat for lane in state.beat.lanes if lane.entered > lane.done)
    places = {(lane.op, lane.group) for lane in lanes}
    return any(op in COUNTERPART or len(members.of(group)) < len(timings.states) for op, group in places)


def _behind(waits: list[Wait], members: frozenset[int]) -> Behind | None:
    first, *others = sorted(waits, key=lambda wait: wait.number)
    completed = frozenset(wait.column for wait in others if wait.number > first.number)
    if len(completed) < max(_MIN_OTHERS, len(others)) or not members <= completed | {first.column}:
        return None
    return Behind(first, completed)
