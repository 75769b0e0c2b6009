"""Ranks that live and that others wait for now: who has not arrived, who is stopped, and who merely waits. Pure.

A rank waits where it has been inside a collective for longer than steps take. It waits for the members of the group
that have entered fewer collectives of that lane; where those wait themselves, elsewhere, for others in turn. Who is
waited for and waits for nobody is at the root. That is told as soon as it is seen; it becomes an accusation at once for
a process that the kernel calls stopped, and after minutes for one that lives: a rank that saves a checkpoint is late
too. The thresholds are our own choices, well below torch's own timeout of ten minutes for NCCL and thirty for gloo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from laggard.collector.evidence import Evidence, RankState
from laggard.collector.wording import ranks_text, seconds_text
from laggard.model import Culprit, Note

WAITING_SECONDS = 1.0
"""In a collective for so long, and for WAITING_STEPS of the job's usual steps, is a wait worth telling."""
WAITING_STEPS = 2.0
WAITING_BESIDE_STOPPED_SECONDS = 0.5
"""The same where a process of the job is stopped: there is no doubt what for."""
WAITING_UNTIMED_SECONDS = 20.0
"""The same while no step is known: the first ones load data and compile."""

SILENT_BEATS = 3.0
"""So many beats missed and a second: the process runs, but none of its threads gets to do anything."""

HUNG_STOPPED_SECONDS = 10.0
"""Stopped for so long, a rank is called hung even where nobody is seen to wait for it."""
HUNG_SILENT_SECONDS = 60.0
HUNG_LATE_SECONDS = 180.0
HUNG_STEPS = 20.0
"""Waited for so long, and for so many usual steps, a rank is called hung: one that is silent, one that beats."""

THE_WORLD = "#0"
"""As torch numbers process groups; others' numbers differ from rank to rank, and are not compared."""

_POINT_TO_POINT = ("send", "recv")
_SPAN = re.compile(r"[a-z]+:(\d+)-(\d+)(?:/(\d+))?(?:#.*)?")
_MOST_NAMED = 64


class Hung(NamedTuple):
    culprits: tuple[Culprit, ...]
    notes: tuple[Note, ...]


class _Wait(NamedTuple):
    """One rank's wait, by column. `number`: of the collective, in its lane or, told by torch, in its group."""

    column: int
    what: str  # "all_reduce of dp:0-3", for people
    group: str
    number: int
    seconds: float
    behind: frozenset[int]  # the columns that have not arrived there


NOBODY = Hung((), ())


def hung_ranks(evidence: Evidence, step_seconds: float | None) -> Hung:
    """Who is waited for now. `step_seconds`: how long the job's steps usually take, None where that is not known."""
    states = evidence.states
    stopped = frozenset(column for column, state in enumerate(states) if _lives(state) and state.stopped)
    if stopped and len(stopped) == len(states):
        text = f"the job is suspended: {_all(len(states))} stopped"
        return Hung((), (Note("suspended", text),))
    waits = _waits(evidence, _patience(step_seconds), stopped)
    roots = stopped or _roots(waits, evidence)
    if not waits and not stopped:
        return NOBODY
    if not roots:
        return Hung((), tuple(_waiting_notes(evidence, waits, "; nobody is known to be missing")))
    culprits = (_culprit(evidence, root, waits, step_seconds) for root in sorted(roots))
    notes = (*(_root_note(evidence, root, waits) for root in sorted(roots)), *_waiting_notes(evidence, waits))
    return Hung(tuple(each for each in culprits if each is not None), notes)


def _all(count: int) -> str:
    return "its process is" if count == 1 else f"all {count} processes are"


def _lives(state: RankState) -> bool:
    return state.state == "running"


def _patience(step_seconds: float | None) -> float:
    if step_seconds is None:
        return WAITING_UNTIMED_SECONDS
    return max(WAITING_SECONDS, WAITING_STEPS * step_seconds)


def _is_silent(state: RankState) -> bool:
    return state.beat is not None and _silence(state) > SILENT_BEATS * state.beat.interval_seconds + 1.0


def _silence(state: RankState) -> float:
    """Seconds since its last sign of life."""
    return state.beat.age_seconds if state.beat else 0.0


def _waits(evidence: Evidence, patience: float, stopped: frozenset[int]) -> dict[int, _Wait]:
    """Who waits, by column: what the hook sees first, and for who is in none of its collectives what torch tells."""
    patience = min(patience, WAITING_BESIDE_STOPPED_SECONDS) if stopped else patience
    waits: dict[int, _Wait] = {}
    if not any(_stands_still(state, patience) for state in evidence.states):
        return waits
    arrivals = _Arrivals(evidence)
    for column, state in enumerate(evidence.states):
        flight = state.in_flight
        if not _lives(state) or column in stopped or flight is None or flight.seconds < patience:
            continue
        behind = arrivals.behind(flight.op, flight.group, flight.seq) - {column}
        what = f"{flight.op} of {flight.group}"
        waits[column] = _Wait(column, what, flight.group, flight.seq, flight.seconds, behind)
    if not any(wait.behind for wait in waits.values()) and not arrivals.point_to_point:
        waits = {**_waits_by_torch(evidence, patience, stopped), **waits}
    return waits


def _stands_still(state: RankState, patience: float) -> bool:
    if state.in_flight and state.in_flight.seconds >= patience:
        return True
    return state.beat is not None and any(group.seconds >= patience for group in state.beat.groups)


class _Arrivals:
    """How many collectives of each lane each rank has entered, by op and group."""

    def __init__(self, evidence: Evidence) -> None:
        self._columns = {int(rank): column for column, rank in enumerate(evidence.ranks)}
        self._states = evidence.states
        self._entered: dict[tuple[str, str], dict[int, int]] = {}
        self.point_to_point = False
        for column, state in enumerate(evidence.states):
            for lane in state.beat.lanes if state.beat else ():
                self._note(lane.op, lane.group, column, lane.entered)
                self.point_to_point |= lane.op in _POINT_TO_POINT
            if state.in_flight:
                self._note(state.in_flight.op, state.in_flight.group, column, state.in_flight.seq)

    def _note(self, op: str, group: str, column: int, count: int) -> None:
        entered = self._entered.setdefault((op, group), {})
        entered[column] = max(entered.get(column, 0), count)

    def behind(self, op: str, group: str, number: int) -> frozenset[int]:
        """The columns of living members that have entered fewer than `number`. Of sends and receives that says
        nothing: each has a partner of its own."""
        if op in _POINT_TO_POINT:
            return frozenset()
        entered = self._entered.get((op, group), {})
        members = set(entered) | self._declared(group)
        late = (column for column in members if entered.get(column, 0) < number)
        return frozenset(column for column in late if _lives(self._states[column]) and self._states[column].beat)

    def _declared(self, group: str) -> set[int]:
        """The members that the group's name spans: a rank may hang before its first collective there."""
        found = _SPAN.fullmatch(group)
        if not found:
            return set()
        first, last, stride = int(found[1]), int(found[2]), int(found[3] or 1)
        return {
            column for rank, column in self._columns.items() if first <= rank <= last and not (rank - first) % stride
        }


def _waits_by_torch(evidence: Evidence, patience: float, stopped: frozenset[int]) -> dict[int, _Wait]:
    """Where collectives are called from C++, as DDP's are, the hook sees none in flight; the Flight Recorder counts
    them. A rank waits there where all that are furthest have stood still, and others are behind or its own collective
    is not done."""
    members = {
        column: group
        for column, state in enumerate(evidence.states)
        for group in (state.beat.groups if state.beat and _lives(state) else ())
        if group.name == THE_WORLD
    }
    newest = max((group.enqueued for group in members.values()), default=-1)
    ahead = {column: group for column, group in members.items() if group.enqueued == newest}
    behind = frozenset(members) - frozenset(ahead)
    there = {column: group for column, group in ahead.items() if column not in stopped}
    if any(group.seconds < patience for group in there.values()):
        return {}
    return {
        column: _Wait(column, "a collective of the world", THE_WORLD, newest, group.seconds, behind)
        for column, group in there.items()
        if behind or 0 <= group.completed < group.enqueued
    }


def _roots(waits: Mapping[int, _Wait], evidence: Evidence) -> frozenset[int]:
    """Who is waited for and waits for nobody. Else the silent ones: they entered the collective and stand still in
    it, with every thread."""
    awaited = frozenset(column for wait in waits.values() for column in wait.behind)
    at_the_root = awaited - frozenset(waits)
    if at_the_root:
        return at_the_root
    silent = frozenset(column for column, state in enumerate(evidence.states) if _lives(state) and _is_silent(state))
    return silent if waits and len(silent) < len(evidence.states) else frozenset()


def _waited_for(root: int, waits: Mapping[int, _Wait]) -> _Wait | None:
    """The longest wait for this rank, else the longest of all: for one that it waits in itself."""
    own = [wait for wait in waits.values() if root in wait.behind]
    return max(own or waits.values(), key=lambda wait: wait.seconds, default=None)


def _culprit(evidence: Evidence, root: int, waits: Mapping[int, _Wait], step_seconds: float | None) -> Culprit | None:
    """None while it may only be late."""
    state, wait = evidence.states[root], _waited_for(root, waits)
    waited = wait.seconds if wait else 0.0
    at_once = state.stopped and (wait is not None or _silence(state) > HUNG_STOPPED_SECONDS)
    if not at_once and waited <= _hung_after(state, step_seconds):
        return None
    rank, node = int(evidence.ranks[root]), evidence.nodes[root]
    return Culprit(
        kind="hung",
        ranks=(rank,),
        node=node,
        gpu=evidence.gpus[root],
        phase="collective" if state.in_flight else state.phase,
        group=state.in_flight.group if state.in_flight else wait.group if wait else None,
        since_step=0 if state.step is None else state.step + 1,
        confidence=0.9 if state.stopped else 0.8 if _is_silent(state) else 0.6,
        evidence=tuple(_reasons(evidence, root, wait)),
        findings=evidence.findings_by_node.get(node or "", ()),
        victims=tuple(int(evidence.ranks[column]) for column in sorted(waits) if column != root)[:_MOST_NAMED],
    )


def _hung_after(state: RankState, step_seconds: float | None) -> float:
    least = HUNG_SILENT_SECONDS if _is_silent(state) else HUNG_LATE_SECONDS
    return max(least, HUNG_STEPS * (step_seconds or 0.0))


def _reasons(evidence: Evidence, root: int, wait: _Wait | None) -> Iterable[str]:
    state = evidence.states[root]
    if state.stopped:
        yield "its process is stopped, by a signal or a debugger"
    elif _is_silent(state) and state.beat:
        yield f"its last sign of life is {seconds_text(state.beat.age_seconds)} old: none of its threads gets to run"
    if wait and root in wait.behind:
        yield f"it has not arrived at {wait.what}, number {wait.number}"
    if state.in_flight:
        flight = state.in_flight
        yield f"it is in {flight.op} of {flight.group}, number {flight.seq}, for {seconds_text(flight.seconds)}"
    elif state.phase:
        yield f"it is in {state.phase}"


def _root_note(evidence: Evidence, root: int, waits: Mapping[int, _Wait]) -> Note:
    rank, node = int(evidence.ranks[root]), evidence.nodes[root]
    wait = _waited_for(root, waits)
    who = f"rank {rank}" + (f" on {node}" if node else "")
    state = evidence.states[root]
    deed = "is stopped" if state.stopped else "is silent" if _is_silent(state) else None
    if wait is None:
        return Note("stopped", f"{who} {deed or 'stands still'}", (rank,), node)
    late = f"has not arrived at {wait.what}, number {wait.number}" if root in wait.behind else None
    text = f"{who} {' and '.join(filter(None, (deed, late))) or 'stands still'}"
    return Note("not_arrived", text, (rank,), node)


def _waiting_notes(evidence: Evidence, waits: Mapping[int, _Wait], remark: str = "") -> Iterable[Note]:
    """Who waits, by what they wait in."""
    together: dict[tuple[str, int], list[_Wait]] = {}
    for wait in waits.values():
        together.setdefault((wait.what, wait.number), []).append(wait)
    for (what, number), those in together.items():
        ranks = tuple(int(evidence.ranks[wait.column]) for wait in those)
        longest = max(wait.seconds for wait in those)
        verb = "waits" if len(ranks) == 1 else "wait"
        text = f"{ranks_text(ranks)} {verb} in {what}, number {number}, for {seconds_text(longest)}{remark}"
        yield Note("waiting", text, ranks[:_MOST_NAMED])
