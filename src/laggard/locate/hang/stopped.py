"""Finds the ranks that were stopped, by a signal or a debugger, when a job ended: the others of their machine saw it,
and whoever failed after that failed because they waited for them. Pure.
"""

from __future__ import annotations

from laggard.locate.job_timings import JobTimings
from laggard.locate.partial_verdict import NOTHING_FOUND, PartialVerdict
from laggard.model import MAX_NAMED_RANKS, Culprit


def stopped_to_the_end(timings: JobTimings) -> PartialVerdict:
    """The ranks of a recording that were stopped until they ended, as culprits. Where all were, somebody suspended the
    job."""
    stopped = [column for column, state in enumerate(timings.states) if state.stopped and state.state == "died"]
    if timings.live or not 0 < len(stopped) < len(timings.states):
        return NOTHING_FOUND
    return PartialVerdict(tuple(_culprit(timings, column) for column in stopped[:MAX_NAMED_RANKS]))


def _culprit(timings: JobTimings, column: int) -> Culprit:
    state, rank = timings.states[column], int(timings.ranks[column])
    flight = state.in_flight
    evidence = ["the other ranks of its machine saw its process stopped, by a signal or a debugger"]
    if flight is not None:
        evidence.append(f"it is in {flight.op} of {flight.group}")
    elif state.phase:
        evidence.append(f"it is in {state.phase}")
    return Culprit(
        kind="hung",
        ranks=(rank,),
        node=timings.nodes[column],
        gpu=timings.gpus[column],
        phase="collective" if flight else state.phase,
        group=flight.group if flight else None,
        since_step=0 if state.step is None else state.step + 1,
        confidence=0.9,
        evidence=tuple(evidence),
        victims=tuple(int(each) for each in timings.ranks if each != rank)[:MAX_NAMED_RANKS],
        stopped=True,
    )
