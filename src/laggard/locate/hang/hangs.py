"""Decides which ranks are hung: others wait for them, and they wait for nobody. Pure.

A rank that is waited for and waits for nobody is at the root of the hang. A note names it at once. It becomes a culprit
at once where the kernel calls its process stopped, and after minutes where it lives: a rank that saves a checkpoint is
late too. Where ranks wait for one another none is at the root, and a note calls that a deadlock. A root that left with
status 0 left early: by an early stop, uneven data or sys.exit. The thresholds are our own choices, well below torch's
own timeout of ten minutes for NCCL and thirty for gloo.

Of a job that was killed, a rank that finished no step says again and again where it stands
(docs/development/contracts.md), and a
process that is stopped says nothing. No clock is compared with another's: ranks of one job finish a step within a
step's time of each other, so who fell silent first is told by for how long each could still say that it finished none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from laggard.kit.constants import SCRIPT_PHASES
from laggard.kit.majority import grouped
from laggard.kit.words import ranks_text, seconds_text
from laggard.locate.hang.different_calls import standing_differently
from laggard.locate.hang.wait_graph import (
    CONFIDENCE,
    STANDSTILL_SECONDS,
    THE_WORLD,
    WAITING_STEPS,
    Arrivals,
    Departure,
    Standing,
    WaitGraph,
    behind_devices,
    circle_note,
    culprit_at,
    find_waits,
    is_silent,
    least_seconds,
    next_step,
    place_text,
    ranks_of,
)
from laggard.locate.job_timings import WARM_UP_STEPS, JobTimings, LastBeat, RankState
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

HUNG_SILENT_SECONDS = 60.0
"""The wait of another after which a silent rank is called hung. Our own choice: memory is reclaimed in less."""
HUNG_LATE_SECONDS = 180.0
"""The same of a rank that still beats. Our own choice: one rank saves a checkpoint for minutes."""
HUNG_STEPS = 20.0
"""The usual steps that it lasts at least. Our own choice: with steps of ten seconds, three minutes are few."""
MAY_TAKE_LONG = (*SCRIPT_PHASES, "between_steps")
"""The phases in which one rank may have work of its own for minutes."""

_MAX_NOTES = 32


def hung_before_the_end(timings: JobTimings, step_seconds: float | None) -> PartialVerdict:
    """The ranks that others waited for when the job was killed; where it still runs, when it recorded its last.
    `step_seconds`: as of hung_ranks()."""
    told = [beat for beat in timings.last_beats if beat is not None]
    if timings.live or not told:
        return NOTHING_FOUND
    job = as_last_said(timings, max(beat.quiet_seconds for beat in told) - least_seconds(step_seconds))
    ended = not any(state.state == "running" for state in timings.states)
    # Ranks start at different times; and one that is not seen may have been the first to stop.
    whole = len(timings.ranks) >= timings.world_size and all(state.step is not None for state in job.states)
    return hung_ranks(job, step_seconds, ended, whole)


def as_last_said(timings: JobTimings, longest: float = 0.0) -> JobTimings:
    """The job with its ranks where they stood, as those said last of which no end is recorded. `longest`: the seconds
    for which one that was never silent would have finished no step."""
    beats = timings.last_beats or (None,) * len(timings.states)
    states = tuple(
        state if beat is None else _last_state(state, beat, max(0.0, longest - beat.quiet_seconds))
        for state, beat in zip(timings.states, beats, strict=True)
    )
    return dataclasses.replace(timings, states=states)


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
        evidence = (seen, f"it is {place_text(state, next_step(state))}")
        more = {"confidence": CONFIDENCE["stopped"], "evidence": evidence, "stopped": True}
        found.append(culprit_at(timings, [column], state, range(len(timings.states)), **more))
    return PartialVerdict(tuple(found))


def hung_ranks(
    timings: JobTimings, step_seconds: float | None, ended: bool = False, whole: bool = True
) -> PartialVerdict:
    """The ranks that others wait for now. `step_seconds`: how long the job's steps usually take, None where that is not
    known. `ended`: the states are the last before the job was killed, and a silent rank did not come back. `whole`: who
    fell silent inside a collective was the first."""
    states = timings.states
    stopped = frozenset(column for column, state in enumerate(states) if state.stopped and state.state == "running")
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
        note = different or circle_note([int(timings.ranks[column]) for column in circle])
        return PartialVerdict(notes=(note, *hang.waiting_notes()))
    # Where all came, the silent ranks entered the collective and stand still in it, with every thread.
    silent = frozenset(column for column, state in enumerate(states) if state.state == "running" and is_silent(state))
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
    """Those that left, as the ones that the others cannot go on without. Where they are more than those that wait for
    them, it is these that went on to one collective more than the others, and a note says so."""
    waiting = ranks_of(timings, frozenset().union(*(each.waiting for each in left)))
    if len(left) <= len(waiting):
        return PartialVerdict(tuple(_left_culprit(timings, each) for each in left[:_MAX_NOTES]), notes)
    others = ranks_text(int(timings.ranks[each.column]) for each in left)
    ended = f"{others} did not: they have ended, with exit status 0"
    todo = "what to do: find where the program calls a collective on some of its ranks alone"
    text = f"{ranks_text(waiting)} called {left[0].missed}, which {ended}; {todo}"
    return PartialVerdict(notes=(Note("mismatch", text, ranks=waiting), *notes))


def _left_culprit(timings: JobTimings, left: Departure) -> Culprit:
    state = timings.states[left.column]
    waiting = ranks_text(int(timings.ranks[each]) for each in left.waiting)
    text = f"it left at step {next_step(state)}, while {waiting} went on to {left.missed}, to which it never came"
    others = [column for column, other in enumerate(timings.states) if other.state != "finished"]
    more = {"kind": "dead", "phase": None, "evidence": (text,), "end": state.end}
    return culprit_at(timings, [left.column], state, others, confidence=CONFIDENCE["left"], **more)


class _Found(NamedTuple):
    """A rank (its column) that others wait for, by what is known of it; `device`: it is its GPU that they wait for."""

    column: int
    wait: Standing | None
    facts: tuple[str, ...]
    device: bool = False


class _Hang(NamedTuple):
    """A job in which ranks wait, and what hung_ranks() was told of it."""

    timings: JobTimings
    graph: WaitGraph
    step_seconds: float | None
    ended: bool

    def at_roots(self, roots: Iterable[int]) -> PartialVerdict:
        waits = ((root, self.graph.wait_for(root)) for root in sorted(roots))
        return self.at([_Found(root, wait, tuple(self._facts(root, wait))) for root, wait in waits])

    def at_devices(self, behind: Sequence[tuple[Standing, str]]) -> PartialVerdict:
        found = []
        for at, what in behind:
            place = f"{at.operation}, number {at.number}, for {seconds_text(at.seconds)}"
            found.append(_Found(at.rank, at, (f"its GPU has not {what} {place}; those of all others have",), True))
        return self.at(found)

    def at(self, found: Sequence[_Found]) -> PartialVerdict:
        """A note on each of these, and those that hang as culprits: the others may only be late."""
        culprits = tuple(self._culprit(each) for each in found if self._is_hung(each))
        return PartialVerdict(culprits, (*map(self._note, found), *self.waiting_notes()))

    def _culprit(self, found: _Found) -> Culprit:
        timings, state, wait = self.timings, self.timings.states[found.column], found.wait
        known = "stopped" if state.stopped else "device" if found.device else "silent" if is_silent(state) else "late"
        more: dict[str, object] = {"phase": "collective"} if found.device else {}
        if wait is not None and (found.device or state.in_flight is None):
            more["group"] = wait.group
        return culprit_at(
            timings,
            [found.column],
            state,
            sorted(self.graph.standings)[: MAX_NAMED_RANKS + 1],
            confidence=CONFIDENCE[known],
            evidence=found.facts,
            stopped=state.stopped,
            silent=self.ended and is_silent(state),
            device_stopped=found.device,
            **more,
        )

    def _is_hung(self, found: _Found) -> bool:
        state, wait = self.timings.states[found.column], found.wait
        return wait.seconds > self._hung_after(state, wait) if wait else state.stopped and is_silent(state)

    def _hung_after(self, state: RankState, wait: Standing) -> float:
        """The seconds for which others must have waited for the rank before it is called hung. Of a job that was ended
        meanwhile they need not be minutes, unless the rank stood where scripts let one rank work alone."""
        if state.stopped or (self.ended and is_silent(state)):
            return 0.0
        seconds = HUNG_SILENT_SECONDS if is_silent(state) else HUNG_LATE_SECONDS
        if self.ended and state.phase not in MAY_TAKE_LONG:  # of a script that tells no phases, one rank may be saving
            seconds = STANDSTILL_SECONDS if state.phase or state.in_flight else HUNG_SILENT_SECONDS
        return max(seconds, HUNG_STEPS * (self.step_seconds or 0.0), WAITING_STEPS * self._usual_wait(wait.rank))

    def _usual_wait(self, column: int) -> float:
        """The longest time that the rank waited in a step and that came and passed twice: once may be an accident."""
        steps = self.timings.steps >= WARM_UP_STEPS
        waited = np.sort(np.nan_to_num(self.timings.waited_seconds[steps, column]))
        return float(waited[-2]) if len(waited) > 1 else 0.0

    def _facts(self, root: int, wait: Standing | None) -> Iterator[str]:
        """What is known of a rank that others wait for."""
        state = self.timings.states[root]
        if state.stopped:
            brief = wait is None and not is_silent(state)
            yield f"its process is stopped, by a signal or a debugger{', and may go on' if brief else ''}"
        elif state.beat and is_silent(state):
            age = seconds_text(state.beat.age_seconds)
            when = f"came at least {age} before the others'" if self.ended else f"is {age} old"
            yield f"its last sign of life {when}: none of its threads gets to run"
        yield f"it is {place_text(state, next_step(state))}"
        if wait:
            inside = f" in {wait.operation}, number {wait.number}" if root in wait.awaited else ""
            yield f"others have waited for it for {seconds_text(wait.seconds)}{inside}"

    def _note(self, found: _Found) -> Note:
        """Names the rank that others wait for."""
        rank, node = int(self.timings.ranks[found.column]), self.timings.nodes[found.column]
        kind = "not_completed" if found.device else "not_arrived" if found.wait else "stopped"
        text = f"rank {rank}{f' on {node}' if node else ''}: {'; '.join(found.facts)}"
        return Note(kind, text, (rank,), node)

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
