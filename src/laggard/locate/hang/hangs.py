"""Decides which living ranks are hung: others wait for them, and they wait for nobody. Pure.

A rank that is waited for and waits for nobody is at the root of the hang. A note names it at once. It becomes a culprit
at once where the kernel calls its process stopped, and after minutes where it lives: a rank that saves a checkpoint is
late too. Where ranks wait for one another none is at the root, and a note calls that a deadlock. The thresholds are our
own choices, well below torch's own timeout of ten minutes for NCCL and thirty for gloo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.hang.attendance import Members
from laggard.locate.hang.departures import Departure, Departures, extra_note, few, left_culprit
from laggard.locate.hang.different_calls import beside_note, mismatch_of, standing_beside
from laggard.locate.hang.waits import (
    COUNTERPART,
    THE_WORLD,
    Wait,
    deadlock_note,
    find_waits,
    flight_text,
    in_the_world,
    is_alive,
    is_silent,
    least_seconds,
    root_note,
    silent_seconds,
    stopped_for_long,
    suspended_note,
    waiting_notes,
)
from laggard.locate.job_timings import JobTimings, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note


def ranks_in_cycles(waits_for: Mapping[int, Set[int]]) -> frozenset[int]:
    """The ranks on a cycle of the wait-for graph or on a path between two cycles; empty where there is no cycle.

    `waits_for` maps each rank that waits to all ranks that it waits for. Kahn's elimination, from both ends: first
    the ranks from which no cycle can be reached go, then those that cannot be reached from a cycle.
    """
    forward = {rank: set(others) & waits_for.keys() for rank, others in waits_for.items()}
    before_cycles = _without_dead_ends(forward)
    backward: dict[int, set[int]] = {rank: set() for rank in before_cycles}
    for rank in before_cycles:
        for other in forward[rank] & before_cycles:
            backward[other].add(rank)
    return frozenset(_without_dead_ends(backward))


def _without_dead_ends(graph: Mapping[int, Set[int]]) -> set[int]:
    """The nodes from which a path never ends. Linear in the edges: thousands of ranks may wait in a row."""
    edges_left = {node: len(others) for node, others in graph.items()}
    ways = grouped(((node, other) for node, others in graph.items() for other in others), lambda way: way[1])
    predecessors = {other: [node for node, _ in found] for other, found in ways.items()}
    dead_ends = [node for node, count in edges_left.items() if not count]
    while dead_ends:
        end = dead_ends.pop()
        del edges_left[end]
        for node in predecessors.get(end, ()):
            edges_left[node] -= 1
            if not edges_left[node]:
                dead_ends.append(node)
    return set(edges_left)


# Finds the rank whose GPU no longer completes what all others of its group have. Pure.
#
# Hosts run ahead of their GPUs: a rank that waits for its GPU to complete a collective has entered later ones, too, so
# that nobody lacks it. But who still waits for one that every other member has completed, and waits for the next, has a
# GPU that has stopped: it gave the others its part, and does not come to the end itself. So has one that completed what
# all have, and never began the next, where every other GPU did.

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
        found
        for (_, group), of_lane in lanes.items()
        if (found := _behind_behind_devices(of_lane, members.of(group))) is not None
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


def _behind_behind_devices(waits: list[Wait], members: frozenset[int]) -> Behind | None:
    first, *others = sorted(waits, key=lambda wait: wait.number)
    completed = frozenset(wait.column for wait in others if wait.number > first.number)
    if len(completed) < max(_MIN_OTHERS, len(others)) or not members <= completed | {first.column}:
        return None
    return Behind(first, completed)


HUNG_SILENT_SECONDS = 60.0
"""The time for which another must have waited for a silent rank, besides HUNG_STEPS of the usual steps, before it is
called hung."""
HUNG_LATE_SECONDS = 180.0
"""The time for which another must have waited for a rank that still beats, besides HUNG_STEPS of the usual steps,
before it is called hung."""
HUNG_ENDED_SECONDS = 20.0
"""The same in a job that was ended meanwhile: nobody ends one for a wait that is usual."""
HUNG_STEPS = 20.0

_BEHIND_CONFIDENCE = 0.7
MAY_TAKE_LONG = (*SCRIPT_PHASES, "between_steps")
"""The phases in which one rank may have work of its own for minutes."""


class _Victims(NamedTuple):
    """The ranks that wait: the first columns, the longest wait of all, and the longest wait for each rank that is
    waited for."""

    first: tuple[int, ...]
    longest: Wait | None
    longest_for: Mapping[int, Wait]

    @classmethod
    def of(cls, waits: Mapping[int, Wait]) -> _Victims:
        by_length = sorted(waits.values(), key=lambda wait: wait.seconds)
        distinct = {wait.not_arrived: wait for wait in by_length}  # thousands wait for the same ranks
        ordered = sorted(distinct.values(), key=lambda wait: wait.seconds)
        longest_for = {column: wait for wait in ordered for column in wait.not_arrived}
        return cls(tuple(sorted(waits)[: MAX_NAMED_RANKS + 1]), by_length[-1] if by_length else None, longest_for)

    def wait_for(self, root: int) -> Wait | None:
        """The longest wait for this rank; where there is none, because it waits in the collective itself, the longest
        of all."""
        return self.longest_for.get(root, self.longest)


def hung_ranks(timings: JobTimings, step_seconds: float | None, ended: bool = False) -> PartialVerdict:
    """The ranks that others wait for now. `step_seconds`: how long the job's steps usually take, None where that is not
    known. `ended`: the states are the last before the job was killed, and a silent rank did not come back."""
    states = timings.states
    stopped = frozenset(column for column, state in enumerate(states) if state.stopped and is_alive(state))
    if stopped and len(stopped) == len(states):
        return PartialVerdict(notes=(suspended_note(len(states)),))
    waits = find_waits(timings, step_seconds, stopped)
    if not waits and not stopped:
        return NOTHING_FOUND
    departures = Departures(timings)
    left = () if stopped else _left_in(waits, departures)
    if left:
        notes = tuple(waiting_notes(timings, waits))
        if not few(left):
            return PartialVerdict(notes=(extra_note(timings, left), *notes))
        return PartialVerdict(tuple(left_culprit(timings, each) for each in left), notes)
    beside = {} if stopped else standing_beside(timings, waits, least_seconds(step_seconds))
    if beside and not _all_awaited(waits) - waits.keys() - _all_of(beside.values()):
        return PartialVerdict(notes=(beside_note(timings, waits, beside), *waiting_notes(timings, waits)))
    roots = sorted(stopped or _roots(waits, timings, _all_of(beside.values())))
    behind = () if roots or stopped or _deadlocked(waits) else _behind(timings, waits)
    if behind:
        devices = (_behind_culprit(timings, each, waits, step_seconds, ended) for each in behind)
        notes = (*(_behind_note(timings, each) for each in behind), *waiting_notes(timings, waits))
        return PartialVerdict(tuple(each for each in devices if each is not None), notes)
    if not roots or not stopped and _deadlocked(waits):  # whoever else is late, these wait for ever
        return PartialVerdict(notes=tuple(_notes_without_root(timings, waits)))
    victims = _Victims.of(waits)
    culprits = (_culprit(timings, root, victims, step_seconds, ended) for root in roots)
    root_notes = (root_note(timings, root, victims.wait_for(root)) for root in roots)
    notes = (*root_notes, *waiting_notes(timings, waits))
    return PartialVerdict(tuple(culprit for culprit in culprits if culprit is not None), notes)


def _behind(timings: JobTimings, waits: Mapping[int, Wait]) -> tuple[Behind, ...]:

    return behind_devices(timings, waits) or not_begun(timings, waits)


def _left_in(waits: Mapping[int, Wait], departures: Departures) -> tuple[Departure, ...]:
    """The ranks that left with status 0 and that others wait for now. Of collectives that C++ made no hook tells who
    has not arrived."""
    by_torch = any(wait.group == THE_WORLD for wait in waits.values())
    awaited = departures.left if by_torch else departures.left & _all_awaited(waits)
    return tuple(each for each in departures.early(frozenset(waits)) if each.column in awaited) if awaited else ()


def _all_awaited(waits: Mapping[int, Wait]) -> frozenset[int]:
    return _all_of({wait.not_arrived for wait in waits.values()})


def _all_of(columns: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*columns)


def _roots(waits: Mapping[int, Wait], timings: JobTimings, standing: frozenset[int]) -> frozenset[int]:
    """The ranks that are waited for and wait for nobody; `standing` do so in a collective that C++ made. Where there
    are none, the silent ranks: they entered the collective and stand still in it, with every thread."""
    awaited = _all_awaited(waits)
    roots = awaited - frozenset(waits) - standing
    if roots:
        return roots
    silent = frozenset(column for column, state in enumerate(timings.states) if is_alive(state) and is_silent(state))
    return silent if waits and len(silent) < len(timings.states) else frozenset()


def _notes_without_root(timings: JobTimings, waits: Mapping[int, Wait]) -> Iterable[Note]:
    deadlocked = _deadlocked(waits)
    if deadlocked:
        yield mismatch_of(timings, waits, deadlocked) or deadlock_note(timings, deadlocked)
    yield from waiting_notes(timings, waits, "" if deadlocked else "; nobody is known to be missing")


def _deadlocked(waits: Mapping[int, Wait]) -> frozenset[int]:
    return ranks_in_cycles({column: wait.not_arrived for column, wait in waits.items()})


def _culprit(
    timings: JobTimings, root: int, victims: _Victims, step_seconds: float | None, ended: bool
) -> Culprit | None:
    """The rank as a culprit; None while it may only be late."""
    state, wait = timings.states[root], victims.wait_for(root)
    waited = wait.seconds if wait else 0.0
    at_once = state.stopped and (wait is not None or stopped_for_long(state))
    silent_to_the_end = ended and is_silent(state) and wait is not None
    if not (at_once or silent_to_the_end) and waited <= _hung_after(state, step_seconds, ended):
        return None
    rank, node = int(timings.ranks[root]), timings.nodes[root]
    return Culprit(
        kind="hung",
        ranks=(rank,),
        node=node,
        gpu=timings.gpus[root],
        phase="collective" if state.in_flight else state.phase,
        group=state.in_flight.group if state.in_flight else wait.group if wait else None,
        since_step=0 if state.step is None else state.step + 1,
        confidence=0.9 if state.stopped else 0.8 if is_silent(state) else 0.6,
        evidence=tuple(_evidence(state, root, wait, ended)),
        victims=tuple(int(timings.ranks[column]) for column in victims.first if column != root)[:MAX_NAMED_RANKS],
        stopped=state.stopped,
        silent=silent_to_the_end,
    )


def _behind_culprit(
    timings: JobTimings, behind: Behind, waits: Mapping[int, Wait], step_seconds: float | None, ended: bool
) -> Culprit | None:
    """The rank whose GPU is behind as a culprit; None while it may only be late."""
    column, state = behind.wait.column, timings.states[behind.wait.column]
    if behind.wait.seconds <= _hung_after(state, step_seconds, ended):
        return None
    return Culprit(
        kind="hung",
        ranks=(int(timings.ranks[column]),),
        node=timings.nodes[column],
        gpu=timings.gpus[column],
        phase="collective",
        group=behind.wait.group,
        since_step=0 if state.step is None else state.step + 1,
        confidence=_BEHIND_CONFIDENCE,
        evidence=(_behind_text(timings, behind),),
        victims=tuple(int(timings.ranks[each]) for each in sorted(waits) if each != column)[:MAX_NAMED_RANKS],
        device_stopped=True,
    )


def _behind_note(timings: JobTimings, behind: Behind) -> Note:
    rank, node = int(timings.ranks[behind.wait.column]), timings.nodes[behind.wait.column]
    return Note("not_completed", f"rank {rank} on {node} {_behind_text(timings, behind)}", ranks=(rank,), node=node)


def _behind_text(timings: JobTimings, behind: Behind) -> str:
    others = ranks_text(int(timings.ranks[each]) for each in behind.others)
    wait = behind.wait
    if behind.begun:
        before = f"has completed number {wait.number - 1} of the world's collectives"
        return f"{before}, and its GPU has not begun the next, for {seconds_text(wait.seconds)}; those of {others} have"
    return f"waits for {wait.operation}, number {wait.number}, for {seconds_text(wait.seconds)}; {others} completed it"


def _hung_after(state: RankState, step_seconds: float | None, ended: bool = False) -> float:
    """The seconds for which others must have waited for the rank before it is called hung. Of a job that was ended
    meanwhile they need not be minutes, unless the rank stood where scripts let one rank work alone."""
    seconds = HUNG_SILENT_SECONDS if is_silent(state) else HUNG_LATE_SECONDS
    if ended and state.phase not in MAY_TAKE_LONG:  # of a script that tells no phases, one rank may be saving
        seconds = HUNG_ENDED_SECONDS if state.phase or state.in_flight else HUNG_SILENT_SECONDS
    return max(seconds, HUNG_STEPS * (step_seconds or 0.0))


def _evidence(state: RankState, root: int, wait: Wait | None, ended: bool) -> Iterable[str]:
    if state.stopped:
        yield "its process is stopped, by a signal or a debugger"
    elif ended and is_silent(state):
        yield (
            f"its last sign of life came at least {seconds_text(silent_seconds(state))} before the others': its process"
            " was stopped or killed, or none of its threads got to run"
        )
    elif is_silent(state) and state.beat:
        yield f"its last sign of life is {seconds_text(state.beat.age_seconds)} old: none of its threads gets to run"
    if wait and root in wait.not_arrived:
        yield f"it has not arrived at {wait.awaited}, number {wait.number}"
    if state.in_flight:
        flight = state.in_flight
        yield f"it is in {flight_text(flight)}, number {flight.seq}, for {seconds_text(flight.seconds)}"
    elif state.phase:
        yield f"it is in {state.phase}"
