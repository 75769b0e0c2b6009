"""Finds ranks that wait in different collectives of one process group, which can never finish. Pure.

A process group's collectives match by their order. Ranks that stand in different ones of the same group, or in its nth
collective by their hooks and by torch's Flight Recorder, took different ways through the program.
"""

from __future__ import annotations

from collections.abc import Mapping

from laggard.locate.hang.liveness import is_alive
from laggard.locate.hang.members import Members
from laggard.locate.hang.point_to_point import COUNTERPART
from laggard.locate.hang.waits import MADE_BY_CPP, Wait, in_the_world
from laggard.locate.job_timings import JobTimings, RankState
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text

MISMATCH_TO_DO = (
    "find where the program of these ranks takes another way (a condition on the rank, on its data or on an exception)"
)


def standing_beside(timings: JobTimings, waits: Mapping[int, Wait], least: float) -> dict[int, frozenset[int]]:
    """The ranks for which each rank (its column) waits in a collective of the world, although they stand in the world's
    collective of the same number or a later one, which C++ made: they came, and called something else."""
    members = Members(timings)
    if any(lane.op in COUNTERPART for state in timings.states if state.beat for lane in state.beat.lanes):
        return {}  # the Flight Recorder may count them with the rest
    found = {}
    for column, wait in waits.items():
        own = in_the_world(timings.states[column])
        if own is None or len(members.of(wait.group)) < len(timings.states) or "#" in wait.group:
            continue
        beside = (other for other in wait.not_arrived if _stands_in(timings.states[other], own.enqueued, least))
        if others := frozenset(beside):
            found[column] = others
    return found


def _stands_in(state: RankState, number: int, least: float) -> bool:
    group = in_the_world(state)
    return (
        is_alive(state)
        and group is not None
        and state.in_flight is None
        and 0 <= group.completed < group.enqueued
        and group.enqueued >= number
        and group.seconds >= least
    )


def beside_note(timings: JobTimings, waits: Mapping[int, Wait], beside: Mapping[int, frozenset[int]]) -> Note:
    """The note on ranks that wait in what others, who stand in something else, did not call."""
    calls: dict[str, set[int]] = {}
    groups = {waits[column].group for column in beside}
    for column, wait in waits.items():
        if wait.group in groups:
            calls.setdefault(f"{wait.operation}, number {wait.number}", set()).add(column)
    calls[MADE_BY_CPP] = {other for others in beside.values() for other in others}
    return _note(timings, calls)


def mismatch_of(timings: JobTimings, waits: Mapping[int, Wait], columns: frozenset[int]) -> Note | None:
    """The note for ranks that wait for one another in different collectives of one process group; None where they
    stand in several groups, or send and receive."""
    calls: dict[str, set[int]] = {}
    for column in columns:
        calls.setdefault(f"{waits[column].operation}, number {waits[column].number}", set()).add(column)
    groups = {waits[column].group.partition(":")[2] for column in columns}  # its role is another's word for it
    messages = any(waits[column].operation.startswith(tuple(COUNTERPART)) for column in columns)
    return None if len(groups) != 1 or len(calls) < 2 or messages else _note(timings, calls)


def _note(timings: JobTimings, calls: Mapping[str, set[int]]) -> Note:
    """The note on who called what; the smaller part comes first, as the one that is more likely wrong."""
    *few, (most, last) = sorted(calls.items(), key=lambda item: (len(item[1]), item[0]))
    called = ", ".join(f"{_ranks(timings, columns)} called {call}" for call, columns in few[:4])
    text = (
        f"{called}, where {_ranks(timings, last)} called {most}: these do not match, and none of them can finish; "
        f"what to do: {MISMATCH_TO_DO}"
    )
    ranks = sorted(int(timings.ranks[column]) for _, columns in few for column in columns)
    return Note("mismatch", text, ranks=tuple(ranks[:MAX_NAMED_RANKS]))


def _ranks(timings: JobTimings, columns: set[int]) -> str:
    return ranks_text(int(timings.ranks[column]) for column in columns)
