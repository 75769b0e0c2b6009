"""Notes about a hang: who waits, who has not arrived, who waits for one another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from laggard.locate.hang.liveness import is_silent, stopped_for_long
from laggard.locate.hang.waits import Wait
from laggard.locate.job_timings import JobTimings, RankState
from laggard.model import MAX_NAMED_RANKS, Note
from laggard.text.words import ranks_text, seconds_text

_MAX_NOTES = 32


def suspended_note(ranks: int) -> Note:
    """The note on a job of `ranks` processes, all of which are stopped."""
    who = "its process is" if ranks == 1 else f"all {ranks} processes are"
    return Note("suspended", f"the job is suspended: {who} stopped")


def deadlock_note(timings: JobTimings, columns: Iterable[int]) -> Note:
    return circle_note([int(timings.ranks[column]) for column in sorted(columns)])


def circle_note(ranks: Sequence[int]) -> Note:
    """The note on ranks each of which has yet to come to what another is in."""
    text = f"{ranks_text(ranks)} wait for one another, a deadlock: each has yet to come to what another is in"
    return Note("deadlock", text, tuple(ranks[:MAX_NAMED_RANKS]))


def root_note(timings: JobTimings, root: int, wait: Wait | None) -> Note:
    """Names the rank that others wait for. `root`: its column. `wait`: the longest wait for it, None where there is
    none."""
    rank, node = int(timings.ranks[root]), timings.nodes[root]
    who = f"rank {rank}" + (f" on {node}" if node else "")
    state = timings.states[root]
    condition = "is stopped" if state.stopped else "is silent" if is_silent(state) else None
    if wait is None:
        brief = state.stopped and not stopped_for_long(state)
        how = "was stopped just now, and may go on" if brief else condition or "stands still"
        return Note("stopped", f"{who} {how}", (rank,), node)
    late = f"has not arrived at {wait.awaited}, number {wait.number}" if root in wait.not_arrived else None
    where = _where(state)
    text = f"{who} {' and '.join(filter(None, (condition, late))) or 'stands still'}"
    text += f"; it is {where}, and others have waited for {seconds_text(wait.seconds)}" if late and where else ""
    return Note("not_arrived", text, (rank,), node)


def _where(state: RankState) -> str:
    """The step and phase in which a rank stands that others wait for: `in forward of step 40`. Empty where it is in a
    collective, which is told by itself, or nothing tells its phase."""
    step = 0 if state.step is None else state.step + 1
    return f"in {state.phase} of step {step}" if state.phase and not state.in_flight else ""


def waiting_notes(timings: JobTimings, waits: Mapping[int, Wait], remark: str = "") -> Iterable[Note]:
    """One note for each collective, send or receive that ranks wait in; beyond _MAX_NOTES one note for all the rest.
    `remark` is added to each text."""
    by_operation: dict[tuple[str, int], list[Wait]] = {}
    for wait in waits.values():
        by_operation.setdefault((wait.operation, wait.number), []).append(wait)
    operations = list(by_operation.items())
    for (operation, number), same in operations[:_MAX_NOTES]:
        yield _waiting_note(timings, same, f"{operation}, number {number}, for", remark)
    rest = [wait for _, same in operations[_MAX_NOTES:] for wait in same]
    if rest:
        yield _waiting_note(timings, rest, "others, for up to", remark)


def _waiting_note(timings: JobTimings, waits: Sequence[Wait], where: str, remark: str) -> Note:
    ranks = tuple(int(timings.ranks[wait.column]) for wait in waits)
    longest = max(wait.seconds for wait in waits)
    verb = "waits" if len(ranks) == 1 else "wait"
    text = f"{ranks_text(ranks)} {verb} in {where} {seconds_text(longest)}{remark}"
    return Note("waiting", text, ranks[:MAX_NAMED_RANKS])
