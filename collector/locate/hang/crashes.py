"""Ranks whose process ended in mid-job, and which of them ended first. Pure."""

from __future__ import annotations

from typing import NamedTuple

from laggard.collector.locate.job_timings import Evidence, RankState
from laggard.model import Culprit, Note


class Dead(NamedTuple):
    culprits: tuple[Culprit, ...]
    notes: tuple[Note, ...]


def dead_culprits(evidence: Evidence) -> Dead:
    """The ranks that were killed. Where one is, its peers block in their next collective until the launcher ends
    them too: those that died waiting in one are victims, the others made them wait."""
    died = [column for column, state in enumerate(evidence.states) if state.state == "died"]
    first = [column for column in died if evidence.states[column].in_flight is None] or died
    if len(first) == len(evidence.states) > 1:  # the whole job was ended from outside
        return Dead((), (Note("ended", f"the job was ended: all {len(first)} processes were killed"),))
    culprits = tuple(_culprit(evidence, column) for column in first)
    notes = tuple(_note(evidence, column) for column in died)
    return Dead(culprits, notes)


def _culprit(evidence: Evidence, column: int) -> Culprit:
    state, rank = evidence.states[column], int(evidence.ranks[column])
    node = evidence.nodes[column]
    return Culprit(
        kind="hung",
        ranks=(rank,),
        node=node,
        gpu=evidence.gpus[column],
        phase=state.phase,
        group=state.in_flight.group if state.in_flight else None,
        since_step=_dying_step(state),
        confidence=0.9,
        evidence=(f"its process ended without a word {_place(state)}",),
        findings=evidence.findings_by_node.get(node or "", ()),
        victims=tuple(int(other) for other in evidence.ranks if other != rank)[:64],
    )


def _note(evidence: Evidence, column: int) -> Note:
    rank, node = int(evidence.ranks[column]), evidence.nodes[column]
    where = f" on {node}" if node else ""
    return Note("rank_died", f"rank {rank}{where} died {_place(evidence.states[column])}", (rank,), node)


def _dying_step(state: RankState) -> int:
    return 0 if state.step is None else state.step + 1


def _place(state: RankState) -> str:
    step = f"in step {_dying_step(state)}"
    if state.in_flight:
        return f"{step}, in {state.in_flight.op} of {state.in_flight.group}"
    return f"{step}, in {state.phase}" if state.phase else step
