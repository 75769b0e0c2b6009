"""Finds who waits now, in what, for how long, and for whom. Pure.

A rank waits when it has been inside a collective, a send or a receive for longer than steps take. It waits for the
members of the group that have entered fewer collectives of that lane, or for its partner in the pair. The thresholds
are our own choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from laggard.locate.hang.arrivals import Arrivals
from laggard.locate.hang.liveness import is_alive, was_read_since
from laggard.locate.hang.point_to_point import ANY_RANK, COUNTERPART
from laggard.locate.job_timings import JobTimings, RankState
from laggard.wire.ranks import GroupProgress, InFlight

WAITING_SECONDS = 1.0
"""The time for which a rank must have been in a collective, besides WAITING_STEPS of the job's usual steps, to count as
waiting."""
WAITING_STEPS = 2.0
WAITING_BESIDE_STOPPED_SECONDS = 0.5
"""The time for which a rank must have been in a collective where a process of the job is stopped: there is no doubt
what the wait is for."""
WAITING_IN_TURN_SECONDS = 0.5
"""The time for which a rank must have been in a collective, for a rank that others wait for: along a pipeline each
began to wait later than the one before it."""
WAITING_UNTIMED_SECONDS = 20.0
"""The time for which a rank must have been in a collective while no step is known: the first steps load data and
compile."""

THE_WORLD = "#0"
"""The name of the world's process group: torch numbers them. Other groups' numbers differ from rank to rank and are not
compared."""

_OF_THE_WORLD = "a collective of the world"
MADE_BY_CPP = f"{_OF_THE_WORLD} that C++ made, as DDP's"
"""The text for a collective of which only the Flight Recorder tells."""


class Wait(NamedTuple):
    """One rank's wait. `number` is the collective's, in its lane or, where torch reported it, in its group; a send's or
    receive's is its number in its pair and direction. Ranks are given by their column."""

    column: int
    operation: str  # for people: "all_reduce of dp:0-3", "recv of pp:0-3 from rank 1"
    awaited: str  # what the others have not arrived at: the same, or "send of pp:0-3 to rank 0"
    group: str
    number: int
    seconds: float
    not_arrived: frozenset[int]  # the columns that have not


def find_waits(timings: JobTimings, step_seconds: float | None, stopped: frozenset[int]) -> dict[int, Wait]:
    """All waits, by column: first what the hook reports, and for ranks that are in none of its collectives what torch
    reports. `step_seconds`: how long the job's steps usually take, None where that is not known. `stopped`: the columns
    of living processes that the kernel calls so."""
    least = least_seconds(step_seconds)
    least = min(least, WAITING_BESIDE_STOPPED_SECONDS) if stopped else least
    if not any(_stands_still(state, least) for state in timings.states):
        return {}
    arrivals = Arrivals(timings)
    columns = (column for column in range(len(timings.states)) if column not in stopped)
    found = (_wait(timings, arrivals, column, least) for column in columns)
    waits = {wait.column: wait for wait in found if wait}
    if not any(wait.not_arrived for wait in waits.values()) and not arrivals.point_to_point:
        return {**_waits_by_flight_recorder(timings, least, stopped), **waits}
    return {**waits, **_waits_in_turn(timings, arrivals, waits, stopped)}


def flight_text(flight: InFlight) -> str:
    """The operation that a rank is in, for people: `all_reduce of dp:0-3`, `recv of pp:0-3 from rank 1`."""
    return _operation_text(flight.op, flight.group, flight.peer)


def _operation_text(op: str, group: str, peer: int) -> str:
    if op not in COUNTERPART or peer == ANY_RANK:
        return f"{op} of {group}"
    return f"{op} of {group} {'to' if op == 'send' else 'from'} rank {peer}"


def least_seconds(step_seconds: float | None) -> float:
    """The shortest time in a collective, in seconds, that counts as a wait."""
    if step_seconds is None:
        return WAITING_UNTIMED_SECONDS
    return max(WAITING_SECONDS, WAITING_STEPS * step_seconds)


def _stands_still(state: RankState, least: float) -> bool:
    if state.in_flight and state.in_flight.seconds >= least:
        return True
    groups = state.beat.groups if state.beat is not None else ()
    return bool(groups) and any(group.seconds >= least for group in groups)


def _wait(timings: JobTimings, arrivals: Arrivals, column: int, least: float) -> Wait | None:
    state = timings.states[column]
    flight = state.in_flight
    if not is_alive(state) or flight is None or flight.seconds < least:
        return None
    flight = arrivals.stuck_in(column, flight)
    operation = awaited = flight_text(flight)
    if flight.op in COUNTERPART:
        awaited = _operation_text(COUNTERPART[flight.op], flight.group, int(timings.ranks[column]))
    not_arrived = arrivals.not_arrived(column, flight)
    return Wait(column, operation, awaited, flight.group, flight.seq, flight.seconds, not_arrived)


def _waits_in_turn(
    timings: JobTimings, arrivals: Arrivals, waits: Mapping[int, Wait], stopped: frozenset[int]
) -> dict[int, Wait]:
    """The waits, too short so far to be in `waits`, of ranks that others wait for and that wait for others in turn."""
    found: dict[int, Wait] = {}
    newest = list(waits.values())
    while newest:
        awaited = {column for wait in newest for column in wait.not_arrived} - waits.keys() - found.keys() - stopped
        own = (_wait(timings, arrivals, column, WAITING_IN_TURN_SECONDS) for column in sorted(awaited))
        newest = [wait for wait in own if wait and wait.not_arrived]
        found.update((wait.column, wait) for wait in newest)
    return found


def _waits_by_flight_recorder(timings: JobTimings, least: float, stopped: frozenset[int]) -> dict[int, Wait]:
    """The waits in collectives that are called from C++, as DDP's are: the hook sees none of them in flight, but
    torch's Flight Recorder counts them. The ranks that are furthest wait where all of them had stood still when torch
    was asked and others have not arrived, or where their own collective is not done. How long ago torch was asked
    counts for nothing: the ranks may have moved since."""
    members = {
        column: group
        for column, state in enumerate(timings.states)
        if is_alive(state) and (group := in_the_world(state)) is not None
    }
    newest = max((group.enqueued for group in members.values()), default=-1)
    furthest = {column: group for column, group in members.items() if group.enqueued == newest}
    running = {column: group for column, group in furthest.items() if column not in stopped}
    if any(group.seconds < least for group in running.values()):
        return {}
    begin = max((_stood_still_since(timings.states[column]) for column in running), default=0.0)
    behind = (column for column in members if column not in furthest)
    states = timings.states
    not_arrived = frozenset(
        column for column in behind if was_read_since(states[column], _asked(states[column]), begin)
    )
    return {
        column: Wait(column, _OF_THE_WORLD, _OF_THE_WORLD, THE_WORLD, newest, group.seconds, not_arrived)
        for column, group in running.items()
        if not_arrived or 0 <= group.completed < group.enqueued
    }


def in_the_world(state: RankState) -> GroupProgress | None:
    """The world's progress as torch reported it; None where it is not known when that was."""
    if state.beat is None or state.beat.groups_age_seconds is None:
        return None
    return next((group for group in state.beat.groups if group.name == THE_WORLD), None)


def _asked(state: RankState) -> float:
    """The seconds since torch was asked."""
    return state.beat.groups_age_seconds or 0.0 if state.beat else 0.0


def _stood_still_since(state: RankState) -> float:
    """The seconds since the world's numbers were first seen as they were when torch was asked last."""
    group = in_the_world(state)
    return _asked(state) + (group.seconds if group else 0.0)
