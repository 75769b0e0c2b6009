"""Decides which ranks are hung: others wait for them, and they wait for nobody. Pure.

A rank that is waited for and waits for nobody is at the root of the hang. A note names it at once. It becomes a culprit
at once where the kernel calls its process stopped, and after minutes where it lives: a rank that saves a checkpoint is
late too. Where ranks wait for one another none is at the root, and a note calls that a deadlock. A root that left with
status 0 left early: by an early stop, uneven data or sys.exit. The thresholds are our own choices, well below torch's
own timeout of ten minutes for NCCL and thirty for gloo.

Of a job that was killed, a rank that finished no step says again and again where it stands (docs/contracts.md), and a
process that is stopped says nothing. No clock is compared with another's: ranks of one job finish a step within a
step's time of each other, so who fell silent first is told by for how long each could still say that it finished none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.hang.different_calls import standing_differently
from laggard.locate.hang.wait_graph import (
    COUNTERPART,
    THE_WORLD,
    WAITING_STEPS,
    Arrivals,
    Departure,
    Members,
    Standing,
    WaitGraph,
    circle_note,
    culprit_at,
    find_waits,
    in_the_world,
    is_alive,
    is_silent,
    least_seconds,
    next_step,
    ranks_of,
    silent_seconds,
    where_text,
)
from laggard.locate.job_timings import WARM_UP_STEPS, JobTimings, LastBeat, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

HUNG_STOPPED_SECONDS = 2.0
"""The time for which a rank must have been stopped to be called hung even where no other is known to wait for it. A
debugger that takes a stack stops a process for less."""
HUNG_SILENT_SECONDS = 60.0
"""The time for which another must have waited for a silent rank, besides HUNG_STEPS of the usual steps, before it is
called hung."""
HUNG_LATE_SECONDS = 180.0
"""The same of a rank that still beats."""
HUNG_ENDED_SECONDS = 20.0
"""The same in a job that was ended meanwhile: nobody waits any longer, and a wait that is usual does not count."""
HUNG_STEPS = 20.0
MAY_TAKE_LONG = (*SCRIPT_PHASES, "between_steps")
"""The phases in which one rank may have work of its own for minutes."""

LEFT_CONFIDENCE = 0.9
"""The confidence that a rank which left is the culprit. Only its group says that it was meant to come: a program may
have asked for its end. Our own choice."""
_STOPPED_CONFIDENCE = 0.9
_BEHIND_CONFIDENCE = 0.7
_MIN_OTHERS = 2
_MAX_NOTES = 32


def hung_before_the_end(timings: JobTimings, step_seconds: float | None) -> PartialVerdict:
    """The ranks that others waited for when the job was killed; where it still runs, when it recorded its last.
    `step_seconds`: as of hung_ranks()."""
    told = [beat for beat in timings.last_beats if beat is not None]
    if timings.live or not told:
        return NOTHING_FOUND
    longest = max(beat.quiet_seconds for beat in told) - least_seconds(step_seconds)
    states = tuple(
        state if beat is None else _last_state(state, beat, max(0.0, longest - beat.quiet_seconds))
        for state, beat in zip(timings.states, timings.last_beats, strict=True)
    )
    ended = not any(state.state == "running" for state in timings.states)
    # Ranks start at different times; and one that is not seen may have been the first to stop.
    whole = len(timings.ranks) >= timings.world_size and all(state.step is not None for state in states)
    return hung_ranks(dataclasses.replace(timings, states=states), step_seconds, ended, whole)


def _last_state(state: RankState, last: LastBeat, age: float) -> RankState:
    """The rank as it was just before the end; `age`: for how long at least it had been silent."""
    asked = last.beat.groups_age_seconds
    beat = structs.replace(last.beat, age_seconds=age, groups_age_seconds=None if asked is None else asked + age)
    return RankState("running", state.step, last.phase, last.in_flight, state.stopped, beat)


def stopped_to_the_end(timings: JobTimings) -> PartialVerdict:
    """The ranks of a recording that were stopped, by a signal or a debugger, until they ended: the others of their
    machine saw it, and whoever failed after that failed because they waited for them. Where all were, somebody
    suspended the job."""
    stopped = [column for column, state in enumerate(timings.states) if state.stopped and state.state == "died"]
    if timings.live or not 0 < len(stopped) < len(timings.states):
        return NOTHING_FOUND
    seen = "the other ranks of its machine saw its process stopped, by a signal or a debugger"
    found = []
    for column in stopped[:MAX_NAMED_RANKS]:
        state = timings.states[column]
        evidence = (seen, *where_text(state, next_step(state)))
        more = {"confidence": _STOPPED_CONFIDENCE, "evidence": evidence, "stopped": True}
        found.append(culprit_at(timings, [column], state, range(len(timings.states)), **more))
    return PartialVerdict(tuple(found))


def hung_ranks(
    timings: JobTimings, step_seconds: float | None, ended: bool = False, whole: bool = True
) -> PartialVerdict:
    """The ranks that others wait for now. `step_seconds`: how long the job's steps usually take, None where that is not
    known. `ended`: the states are the last before the job was killed, and a silent rank did not come back. `whole`: who
    fell silent inside a collective was the first."""
    states = timings.states
    stopped = frozenset(column for column, state in enumerate(states) if state.stopped and is_alive(state))
    if stopped and len(stopped) == len(states):
        who = "its process is" if len(states) == 1 else f"all {len(states)} processes are"
        return PartialVerdict(notes=(Note("suspended", f"the job is suspended: {who} stopped"),))
    graph = WaitGraph(find_waits(timings, step_seconds, stopped).values())
    if not graph.standings and not stopped:
        return NOTHING_FOUND
    hang = _Hang(timings, graph, step_seconds, ended)
    if stopped:
        return hang.at_roots(stopped)
    left = _left(timings, graph)
    if left:
        return left_early(timings, left, tuple(hang.waiting_notes()))
    circle = sorted(graph.circle)
    if circle:  # whoever else is late, these wait for ever
        different = standing_differently(timings, [graph.standings[column] for column in circle])
        note = different or circle_note(int(timings.ranks[column]) for column in circle)
        return PartialVerdict(notes=(note, *hang.waiting_notes()))
    # Where all came, the silent ranks entered the collective and stand still in it, with every thread.
    silent = frozenset(column for column, state in enumerate(states) if is_alive(state) and is_silent(state))
    roots = graph.roots or (silent if whole and len(silent) < len(states) else frozenset())
    if roots:
        return hang.at_roots(roots)
    if behind := behind_devices(timings, graph):
        return hang.at_devices(behind)
    return PartialVerdict(notes=tuple(hang.waiting_notes("; nobody is known to be missing")))


def _left(timings: JobTimings, graph: WaitGraph) -> tuple[Departure, ...]:
    """The ranks that left with status 0 and that others wait for now. Of collectives that C++ made no hook tells who
    has not arrived."""
    by_torch = any(each.group == THE_WORLD for each in graph.standings.values())
    found = Arrivals(timings).departures(graph.standings.keys())
    return tuple(each for each in found if by_torch or each.column in graph.awaited)


def left_early(timings: JobTimings, left: Sequence[Departure], notes: tuple[Note, ...]) -> PartialVerdict:
    """Those that left, as the ones that the others cannot go on without. Where they are more than those whom their
    collective still has, it is these that went on to one collective more than the others, and a note says so."""
    if 2 * len(left) <= max(each.members for each in left):
        return PartialVerdict(tuple(_left_culprit(timings, each) for each in left[:_MAX_NOTES]), notes)
    waiting = ranks_of(timings, frozenset().union(*(each.waiting for each in left)))
    others = ranks_text(int(timings.ranks[each.column]) for each in left)
    text = (
        f"{ranks_text(waiting)} called {left[0].missed}, which {others} did not: they have ended, with exit status 0; "
        "what to do: find where the program calls a collective on some of its ranks alone"
    )
    return PartialVerdict(notes=(Note("mismatch", text, ranks=waiting), *notes))


def _left_culprit(timings: JobTimings, left: Departure) -> Culprit:
    state = timings.states[left.column]
    waiting = ranks_text(int(timings.ranks[each]) for each in left.waiting)
    text = f"it left at step {next_step(state)}, while {waiting} went on to {left.missed}, to which it never came"
    others = [column for column, other in enumerate(timings.states) if other.state != "finished"]
    more = {"kind": "dead", "phase": None, "confidence": LEFT_CONFIDENCE, "evidence": (text,), "end": state.end}
    return culprit_at(timings, [left.column], state, others, **more)


class Behind(NamedTuple):
    """A rank whose GPU is behind those of all others of its group: `text` says how.

    Hosts run ahead of their GPUs: a rank that waits for its GPU to complete a collective has entered later ones, too,
    so that nobody lacks it. But who still waits for one that every other member has completed, and waits for the next,
    has a GPU that has stopped: it gave the others its part, and does not come to the end itself. So has one that
    completed what all have, and never began the next, where every other GPU did."""

    wait: Standing
    text: str


def behind_devices(timings: JobTimings, graph: WaitGraph) -> tuple[Behind, ...]:
    """The ranks that alone in their group wait for an earlier collective of a lane than all others, which wait for a
    later one of it. Of groups of which every member that their name spans is seen to wait so. Else who is alone by what
    GPUs have begun."""
    members = Members(timings)
    lanes = grouped(graph.standings.values(), lambda each: (each.operation, each.group))
    found = []
    for (operation, group), waits in lanes.items():
        alone = _alone({each.rank: each.number for each in waits})
        is_whole = members.of(group) <= {each.rank for each in waits} and group != THE_WORLD
        if alone is not None and is_whole and not operation.startswith(tuple(COUNTERPART)):
            wait, others = graph.standings[alone], _others(timings, waits, alone)
            waits_for = f"waits for {operation}, number {wait.number}, for {seconds_text(wait.seconds)}"
            found.append(Behind(wait, f"{waits_for}; {others} completed it"))
    return tuple(found) or _not_begun(timings, graph, members)


def _not_begun(timings: JobTimings, graph: WaitGraph, members: Members) -> tuple[Behind, ...]:
    """The rank whose GPU alone has not begun the world's collective in which all others' stand, though all hosts have
    launched it; by torch's Flight Recorder. FSDP has two of them begun at once, of two streams. None where a rank may
    stand in a collective of another group, or in a message: whom it waits for may be elsewhere."""
    world = {column: group for column in graph.standings if (group := in_the_world(timings.states[column])) is not None}
    lanes = [lane for state in timings.states if state.beat for lane in state.beat.lanes if lane.entered > lane.done]
    is_elsewhere = any(
        op in COUNTERPART or len(members.of(group)) < len(timings.states)
        for op, group in {(lane.op, lane.group) for lane in lanes}
    )
    alone = _alone({column: group.started for column, group in world.items()})
    if alone is None or is_elsewhere or len(world) < max(len(timings.states), timings.world_size):
        return ()
    own, newest = world[alone], max(group.started for group in world.values())
    launched = min(group.enqueued for group in world.values()) >= newest
    if own.started < 0 or not launched or any(group.completed != own.started for group in world.values()):
        return ()
    text = (
        f"has completed number {own.started} of the world's collectives, and its GPU has not begun the next, for "
        f"{seconds_text(own.seconds)}; those of {_others(timings, graph.standings.values(), alone)} have"
    )
    return (Behind(graph.standings[alone]._replace(seconds=own.seconds), text),)


def _alone(numbers: Mapping[int, int]) -> int | None:
    """The rank that alone has come less far than all others, where these are several: of two either may be the one that
    is wrong about what is complete."""
    ordered = sorted(numbers, key=numbers.__getitem__)
    is_alone = len(ordered) > _MIN_OTHERS and numbers[ordered[0]] < numbers[ordered[1]]
    return ordered[0] if is_alone else None


def _others(timings: JobTimings, waits: Iterable[Standing], column: int) -> str:
    return ranks_text(int(timings.ranks[each.rank]) for each in waits if each.rank != column)


class _Hang(NamedTuple):
    """A job in which ranks wait, and what hung_ranks() was told of it."""

    timings: JobTimings
    graph: WaitGraph
    step_seconds: float | None
    ended: bool

    def at_roots(self, roots: Iterable[int]) -> PartialVerdict:
        culprits = (self._culprit(root) for root in sorted(roots))
        notes = (*(self._root_note(root) for root in sorted(roots)), *self.waiting_notes())
        return PartialVerdict(tuple(each for each in culprits if each is not None), notes)

    def at_devices(self, behind: Sequence[Behind]) -> PartialVerdict:
        culprits = []
        notes = []
        for wait, text in behind:
            state, rank = self.timings.states[wait.rank], int(self.timings.ranks[wait.rank])
            node = self.timings.nodes[wait.rank]
            notes.append(Note("not_completed", f"rank {rank} on {node} {text}", ranks=(rank,), node=node))
            if wait.seconds > self._hung_after(state, wait):
                at = {"phase": "collective", "group": wait.group, "confidence": _BEHIND_CONFIDENCE}
                more = {"evidence": (text,), "device_stopped": True, **at}
                culprits.append(culprit_at(self.timings, [wait.rank], state, self.graph.standings, **more))
        return PartialVerdict(tuple(culprits), (*notes, *self.waiting_notes()))

    def _culprit(self, root: int) -> Culprit | None:
        """The rank as a culprit; None while it may only be late."""
        state, wait = self.timings.states[root], self.graph.wait_for(root)
        at_once = state.stopped and (wait is not None or _stopped_for_long(state))
        silent_to_the_end = self.ended and is_silent(state) and wait is not None
        waited = wait.seconds if wait else 0.0
        if not (at_once or silent_to_the_end) and waited <= self._hung_after(state, wait):
            return None
        more = {
            "confidence": _STOPPED_CONFIDENCE if state.stopped else 0.8 if is_silent(state) else 0.6,
            "evidence": tuple(self._facts(root, wait)),
            "stopped": state.stopped,
            "silent": silent_to_the_end,
        }
        if wait is not None and state.in_flight is None:
            more["group"] = wait.group
        return culprit_at(self.timings, [root], state, sorted(self.graph.standings)[: MAX_NAMED_RANKS + 1], **more)

    def _hung_after(self, state: RankState, wait: Standing | None) -> float:
        """The seconds for which others must have waited for the rank before it is called hung. Of a job that was ended
        meanwhile they need not be minutes, unless the rank stood where scripts let one rank work alone."""
        seconds = HUNG_SILENT_SECONDS if is_silent(state) else HUNG_LATE_SECONDS
        if self.ended and state.phase not in MAY_TAKE_LONG:  # of a script that tells no phases, one rank may be saving
            seconds = HUNG_ENDED_SECONDS if state.phase or state.in_flight else HUNG_SILENT_SECONDS
        usual = WAITING_STEPS * self._usual_wait(wait.rank) if wait else 0.0
        return max(seconds, HUNG_STEPS * (self.step_seconds or 0.0), usual)

    def _usual_wait(self, column: int) -> float:
        """The longest time that the rank waited in a step and that came and passed twice: once may be an accident."""
        steps = self.timings.steps >= WARM_UP_STEPS
        waited = np.sort(np.nan_to_num(self.timings.waited_seconds[steps, column]))
        return float(waited[-2]) if len(waited) > 1 else 0.0

    def _facts(self, root: int, wait: Standing | None) -> Iterator[str]:
        """What is known of a rank that others wait for."""
        state = self.timings.states[root]
        silent = seconds_text(silent_seconds(state))
        if state.stopped:
            brief = wait is None and not _stopped_for_long(state)
            yield f"its process is stopped, by a signal or a debugger{', and may go on' if brief else ''}"
        elif is_silent(state) and self.ended:
            yield (
                f"its last sign of life came at least {silent} before the others': its process was stopped or killed, "
                "or none of its threads got to run"
            )
        elif is_silent(state):
            yield f"its last sign of life is {silent} old: none of its threads gets to run"
        if wait and root in wait.awaited:
            yield f"it has not arrived at {wait.missed}, number {wait.number}"
        yield from where_text(state, next_step(state))
        if wait:
            yield f"others have waited for {seconds_text(wait.seconds)}"

    def _root_note(self, root: int) -> Note:
        """Names the rank that others wait for."""
        rank, node = int(self.timings.ranks[root]), self.timings.nodes[root]
        wait = self.graph.wait_for(root)
        text = f"rank {rank}{f' on {node}' if node else ''}: {'; '.join(self._facts(root, wait))}"
        return Note("not_arrived" if wait else "stopped", text, (rank,), node)

    def waiting_notes(self, remark: str = "") -> Iterator[Note]:
        """One note for each collective, send or receive that ranks wait in; beyond _MAX_NOTES one note for all the
        rest. `remark` is added to each text."""
        by_operation = grouped(self.graph.standings.values(), lambda wait: (wait.operation, wait.number))
        told = [(f"{operation}, number {number}, for", same) for (operation, number), same in by_operation.items()]
        rest = [wait for _, same in told[_MAX_NOTES:] for wait in same]
        for where, same in (*told[:_MAX_NOTES], *([("others, for up to", rest)] if rest else ())):
            ranks = tuple(int(self.timings.ranks[wait.rank]) for wait in same)
            seconds = seconds_text(max(wait.seconds for wait in same))
            text = f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {where} {seconds}{remark}"
            yield Note("waiting", text, ranks[:MAX_NAMED_RANKS])


def _stopped_for_long(state: RankState) -> bool:
    return state.stopped and silent_seconds(state) > HUNG_STOPPED_SECONDS
