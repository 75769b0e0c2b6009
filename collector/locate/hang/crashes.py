"""Finds ranks whose process died in the middle of a job, and which of them died first. Pure."""

from __future__ import annotations

from laggard.collector.locate.job_timings import JobTimings, RankState
from laggard.collector.locate.partial_verdict import PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit, Note


def crashed_ranks(timings: JobTimings) -> PartialVerdict:
    """The ranks that were killed. When one is, its peers block in their next collective until the launcher kills them
    too: the ranks that died waiting in a collective are victims, and those that died outside of one are culprits. There
    is no culprit where all processes died, all inside of collectives or all outside: the whole job was ended."""
    died = [column for column, state in enumerate(timings.states) if state.state == "died"]
    first = [column for column in died if timings.states[column].in_flight is None] or died
    if len(first) == len(timings.states) > 1:
        return PartialVerdict(notes=(Note("ended", f"the job was ended: all {len(first)} processes were killed"),))
    culprits = tuple(_culprit(timings, column) for column in first)
    notes = tuple(_note(timings, column) for column in died)
    return PartialVerdict(culprits, notes)


def _culprit(timings: JobTimings, column: int) -> Culprit:
    state, rank = timings.states[column], int(timings.ranks[column])
    node = timings.nodes[column]
    return Culprit(
        kind="hung",
        ranks=(rank,),
        node=node,
        gpu=timings.gpus[column],
        phase=state.phase,
        group=state.in_flight.group if state.in_flight else None,
        since_step=_step_of_death(state),
        confidence=0.9,
        evidence=(f"its process died without notice {_place(state)}",),
        findings=timings.findings_by_node.get(node or "", ()),
        victims=tuple(int(other) for other in timings.ranks if other != rank)[:MAX_NAMED_RANKS],
    )


def _note(timings: JobTimings, column: int) -> Note:
    rank, node = int(timings.ranks[column]), timings.nodes[column]
    where = f" on {node}" if node else ""
    return Note("rank_died", f"rank {rank}{where} died {_place(timings.states[column])}", (rank,), node)


def _step_of_death(state: RankState) -> int:
    return 0 if state.step is None else state.step + 1


def _place(state: RankState) -> str:
    """Where the rank died, for people: `in step 59, in all_reduce of dp:0-3`."""
    step = f"in step {_step_of_death(state)}"
    if state.in_flight:
        return f"{step}, in {state.in_flight.op} of {state.in_flight.group}"
    return f"{step}, in {state.phase}" if state.phase else step
