"""Who waits now, in what, for how long, and for whom. Pure.

A rank waits where it has been inside a collective, a send or a receive for longer than steps take. It waits for the
members of the group that have entered fewer collectives of that lane, or for its partner in the pair. The thresholds
are our own choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from laggard.collector.locate.hang.arrivals import Arrivals
from laggard.collector.locate.hang.liveness import lives
from laggard.collector.locate.hang.point_to_point import ANYBODY, OTHER_SIDE
from laggard.collector.locate.job_timings import Evidence, RankState
from laggard.wire import InFlight

WAITING_SECONDS = 1.0
"""In a collective for so long, and for WAITING_STEPS of the job's usual steps, is a wait worth telling."""
WAITING_STEPS = 2.0
WAITING_BESIDE_STOPPED_SECONDS = 0.5
"""The same where a process of the job is stopped: there is no doubt what for."""
WAITING_IN_TURN_SECONDS = 0.5
"""The same of who is waited for: along a pipeline each began to wait later than the one before it."""
WAITING_UNTIMED_SECONDS = 20.0
"""The same while no step is known: the first ones load data and compile."""

THE_WORLD = "#0"
"""As torch numbers process groups; others' numbers differ from rank to rank, and are not compared."""

_OF_THE_WORLD = "a collective of the world"


class Wait(NamedTuple):
    """One rank's wait, by column. `number`: of the collective, in its lane or, told by torch, in its group; of a send
    or receive, in its pair and direction."""

    column: int
    what: str  # "all_reduce of dp:0-3", "recv of pp:0-3 from rank 1", for people
    missed: str  # where who is waited for should have come to: the same, or "send of pp:0-3 to rank 0"
    group: str
    number: int
    seconds: float
    behind: frozenset[int]  # the columns that have not arrived there


def find_waits(evidence: Evidence, step_seconds: float | None, stopped: frozenset[int]) -> dict[int, Wait]:
    """Who waits, by column: what the hook sees first, and for who is in none of its collectives what torch tells.
    `step_seconds`: how long the job's steps usually take, None where that is not known. `stopped`: the columns of
    living processes that the kernel calls so."""
    patience = _patience(step_seconds)
    patience = min(patience, WAITING_BESIDE_STOPPED_SECONDS) if stopped else patience
    if not any(_stands_still(state, patience) for state in evidence.states):
        return {}
    arrivals = Arrivals(evidence)
    columns = (column for column in range(len(evidence.states)) if column not in stopped)
    found = (_wait(evidence, arrivals, column, patience) for column in columns)
    waits = {wait.column: wait for wait in found if wait}
    if not any(wait.behind for wait in waits.values()) and not arrivals.point_to_point:
        return {**_waits_by_torch(evidence, patience, stopped), **waits}
    return {**waits, **_waits_in_turn(evidence, arrivals, waits, stopped)}


def flight_text(flight: InFlight) -> str:
    """What a rank is in: `all_reduce of dp:0-3`, `recv of pp:0-3 from rank 1`."""
    return _text(flight.op, flight.group, flight.peer)


def _text(op: str, group: str, peer: int) -> str:
    if op not in OTHER_SIDE or peer == ANYBODY:
        return f"{op} of {group}"
    return f"{op} of {group} {'to' if op == 'send' else 'from'} rank {peer}"


def _patience(step_seconds: float | None) -> float:
    if step_seconds is None:
        return WAITING_UNTIMED_SECONDS
    return max(WAITING_SECONDS, WAITING_STEPS * step_seconds)


def _stands_still(state: RankState, patience: float) -> bool:
    if state.in_flight and state.in_flight.seconds >= patience:
        return True
    return state.beat is not None and any(group.seconds >= patience for group in state.beat.groups)


def _wait(evidence: Evidence, arrivals: Arrivals, column: int, patience: float) -> Wait | None:
    state = evidence.states[column]
    flight = state.in_flight
    if not lives(state) or flight is None or flight.seconds < patience:
        return None
    flight = arrivals.stuck_in(column, flight)
    what = missed = flight_text(flight)
    if flight.op in OTHER_SIDE:
        missed = _text(OTHER_SIDE[flight.op], flight.group, int(evidence.ranks[column]))
    return Wait(column, what, missed, flight.group, flight.seq, flight.seconds, arrivals.behind(column, flight))


def _waits_in_turn(
    evidence: Evidence, arrivals: Arrivals, waits: Mapping[int, Wait], stopped: frozenset[int]
) -> dict[int, Wait]:
    """Of those that others wait for, who waits for others in turn, not as long so far."""
    found: dict[int, Wait] = {}
    newest = list(waits.values())
    while newest:
        awaited = {column for wait in newest for column in wait.behind} - waits.keys() - found.keys() - stopped
        own = (_wait(evidence, arrivals, column, WAITING_IN_TURN_SECONDS) for column in sorted(awaited))
        newest = [wait for wait in own if wait and wait.behind]
        found.update((wait.column, wait) for wait in newest)
    return found


def _waits_by_torch(evidence: Evidence, patience: float, stopped: frozenset[int]) -> dict[int, Wait]:
    """Where collectives are called from C++, as DDP's are, the hook sees none in flight; the Flight Recorder counts
    them. A rank waits there where all that are furthest have stood still, and others are behind or its own collective
    is not done."""
    members = {
        column: group
        for column, state in enumerate(evidence.states)
        for group in (state.beat.groups if state.beat and lives(state) else ())
        if group.name == THE_WORLD
    }
    newest = max((group.enqueued for group in members.values()), default=-1)
    ahead = {column: group for column, group in members.items() if group.enqueued == newest}
    behind = frozenset(members) - frozenset(ahead)
    there = {column: group for column, group in ahead.items() if column not in stopped}
    if any(group.seconds < patience for group in there.values()):
        return {}
    return {
        column: Wait(column, _OF_THE_WORLD, _OF_THE_WORLD, THE_WORLD, newest, group.seconds, behind)
        for column, group in there.items()
        if behind or 0 <= group.completed < group.enqueued
    }
