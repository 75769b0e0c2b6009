"""Ranks that live and that others wait for now: who has not arrived, who is stopped, and who merely waits. Pure.

Who is waited for and waits for nobody is at the root. That is told as soon as it is seen; it becomes an accusation at
once for a process that the kernel calls stopped, and after minutes for one that lives: a rank that saves a checkpoint
is late too. Where ranks wait for one another nobody is at the root, and that is said. The thresholds are our own
choices, well below torch's own timeout of ten minutes for NCCL and thirty for gloo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from laggard.collector.locate.hang.deadlock import knot
from laggard.collector.locate.hang.liveness import is_silent, lives, silence
from laggard.collector.locate.hang.waits import Wait, find_waits, flight_text
from laggard.collector.locate.job_timings import Evidence, RankState
from laggard.model import Culprit, Note
from laggard.text.words import ranks_text, seconds_text

HUNG_STOPPED_SECONDS = 10.0
"""Stopped for so long, a rank is called hung even where nobody is seen to wait for it."""
HUNG_SILENT_SECONDS = 60.0
HUNG_LATE_SECONDS = 180.0
HUNG_STEPS = 20.0
"""Waited for so long, and for so many usual steps, a rank is called hung: one that is silent, one that beats."""

_MOST_NAMED = 64
_MOST_WAITS = 32


class Hung(NamedTuple):
    culprits: tuple[Culprit, ...]
    notes: tuple[Note, ...]


NOBODY = Hung((), ())


class _Victims(NamedTuple):
    """Who waits: the first columns, the longest wait of all, and the longest for each who is waited for."""

    first: tuple[int, ...]
    longest: Wait | None
    longest_for: Mapping[int, Wait]

    @classmethod
    def of(cls, waits: Mapping[int, Wait]) -> _Victims:
        by_length = sorted(waits.values(), key=lambda wait: wait.seconds)
        distinct = {wait.behind: wait for wait in by_length}  # thousands wait for the same
        ordered = sorted(distinct.values(), key=lambda wait: wait.seconds)
        longest_for = {column: wait for wait in ordered for column in wait.behind}
        return cls(tuple(sorted(waits)[: _MOST_NAMED + 1]), by_length[-1] if by_length else None, longest_for)

    def wait_for(self, root: int) -> Wait | None:
        """The longest wait for this rank, else the longest of all: for one that it waits in itself."""
        return self.longest_for.get(root, self.longest)


def hung_ranks(evidence: Evidence, step_seconds: float | None) -> Hung:
    """Who is waited for now. `step_seconds`: how long the job's steps usually take, None where that is not known."""
    states = evidence.states
    stopped = frozenset(column for column, state in enumerate(states) if lives(state) and state.stopped)
    if stopped and len(stopped) == len(states):
        text = f"the job is suspended: {_all(len(states))} stopped"
        return Hung((), (Note("suspended", text),))
    waits = find_waits(evidence, step_seconds, stopped)
    roots = stopped or _roots(waits, evidence)
    if not waits and not stopped:
        return NOBODY
    if not roots:
        return Hung((), tuple(_without_a_root(evidence, waits)))
    victims = _Victims.of(waits)
    culprits = (_culprit(evidence, root, victims, step_seconds) for root in sorted(roots))
    notes = (*(_root_note(evidence, root, victims) for root in sorted(roots)), *_waiting_notes(evidence, waits))
    return Hung(tuple(each for each in culprits if each is not None), notes)


def _all(count: int) -> str:
    return "its process is" if count == 1 else f"all {count} processes are"


def _roots(waits: Mapping[int, Wait], evidence: Evidence) -> frozenset[int]:
    """Who is waited for and waits for nobody. Else the silent ones: they entered the collective and stand still in
    it, with every thread."""
    awaited = frozenset().union(*{wait.behind for wait in waits.values()})
    at_the_root = awaited - frozenset(waits)
    if at_the_root:
        return at_the_root
    silent = frozenset(column for column, state in enumerate(evidence.states) if lives(state) and is_silent(state))
    return silent if waits and len(silent) < len(evidence.states) else frozenset()


def _without_a_root(evidence: Evidence, waits: Mapping[int, Wait]) -> Iterable[Note]:
    tied = knot({column: wait.behind for column, wait in waits.items()})
    if tied:
        ranks = tuple(int(evidence.ranks[column]) for column in sorted(tied))
        text = f"{ranks_text(ranks)} wait for one another, a deadlock: each has yet to come to what another is in"
        yield Note("deadlock", text, ranks[:_MOST_NAMED])
    yield from _waiting_notes(evidence, waits, "" if tied else "; nobody is known to be missing")


def _culprit(evidence: Evidence, root: int, victims: _Victims, step_seconds: float | None) -> Culprit | None:
    """None while it may only be late."""
    state, wait = evidence.states[root], victims.wait_for(root)
    waited = wait.seconds if wait else 0.0
    at_once = state.stopped and (wait is not None or silence(state) > HUNG_STOPPED_SECONDS)
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
        confidence=0.9 if state.stopped else 0.8 if is_silent(state) else 0.6,
        evidence=tuple(_reasons(evidence, root, wait)),
        findings=evidence.findings_by_node.get(node or "", ()),
        victims=tuple(int(evidence.ranks[column]) for column in victims.first if column != root)[:_MOST_NAMED],
    )


def _hung_after(state: RankState, step_seconds: float | None) -> float:
    least = HUNG_SILENT_SECONDS if is_silent(state) else HUNG_LATE_SECONDS
    return max(least, HUNG_STEPS * (step_seconds or 0.0))


def _reasons(evidence: Evidence, root: int, wait: Wait | None) -> Iterable[str]:
    state = evidence.states[root]
    if state.stopped:
        yield "its process is stopped, by a signal or a debugger"
    elif is_silent(state) and state.beat:
        yield f"its last sign of life is {seconds_text(state.beat.age_seconds)} old: none of its threads gets to run"
    if wait and root in wait.behind:
        yield f"it has not arrived at {wait.missed}, number {wait.number}"
    if state.in_flight:
        flight = state.in_flight
        yield f"it is in {flight_text(flight)}, number {flight.seq}, for {seconds_text(flight.seconds)}"
    elif state.phase:
        yield f"it is in {state.phase}"


def _root_note(evidence: Evidence, root: int, victims: _Victims) -> Note:
    rank, node = int(evidence.ranks[root]), evidence.nodes[root]
    wait = victims.wait_for(root)
    who = f"rank {rank}" + (f" on {node}" if node else "")
    state = evidence.states[root]
    deed = "is stopped" if state.stopped else "is silent" if is_silent(state) else None
    if wait is None:
        return Note("stopped", f"{who} {deed or 'stands still'}", (rank,), node)
    late = f"has not arrived at {wait.missed}, number {wait.number}" if root in wait.behind else None
    text = f"{who} {' and '.join(filter(None, (deed, late))) or 'stands still'}"
    return Note("not_arrived", text, (rank,), node)


def _waiting_notes(evidence: Evidence, waits: Mapping[int, Wait], remark: str = "") -> Iterable[Note]:
    """Who waits, by what they wait in. Of thousands of pairs the rest are told together."""
    together: dict[tuple[str, int], list[Wait]] = {}
    for wait in waits.values():
        together.setdefault((wait.what, wait.number), []).append(wait)
    told = list(together.items())
    for (what, number), those in told[:_MOST_WAITS]:
        yield _waiting_note(evidence, those, f"{what}, number {number}, for", remark)
    rest = [wait for _, those in told[_MOST_WAITS:] for wait in those]
    if rest:
        yield _waiting_note(evidence, rest, "others, for up to", remark)


def _waiting_note(evidence: Evidence, those: Sequence[Wait], where: str, remark: str) -> Note:
    ranks = tuple(int(evidence.ranks[wait.column]) for wait in those)
    longest = max(wait.seconds for wait in those)
    verb = "waits" if len(ranks) == 1 else "wait"
    text = f"{ranks_text(ranks)} {verb} in {where} {seconds_text(longest)}{remark}"
    return Note("waiting", text, ranks[:_MOST_NAMED])
