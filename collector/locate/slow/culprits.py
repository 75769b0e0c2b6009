"""What is said of a slow rank: in what it is slow, by how much, since when, and what explains it. Pure."""

from __future__ import annotations

import itertools

import numpy as np

from laggard.collector.locate.job_timings import Evidence
from laggard.collector.locate.slow.peers import Floats
from laggard.collector.locate.slow.ranks import Slow
from laggard.collector.locate.slow.steps import Steps
from laggard.constants import PHASES
from laggard.model import Culprit, Note
from laggard.text.words import ranks_text, seconds_text

INPUT = PHASES.index("input")


def slow_culprit(evidence: Evidence, steps: Steps, slow: Slow, saved: float) -> Culprit:
    """`saved`: the share of the step time that fixing it would save."""
    tail, column = slice(slow.since, None), slow.column
    mine = np.nanmedian(steps.phases[tail, column], axis=0)
    peers, others_busy, others_waited = steps.peers(slow.since).medians(column)
    phase = int(np.argmax(mine - peers))
    node = evidence.nodes[column]
    rank = int(evidence.ranks[column])
    return Culprit(
        kind="slow_input" if phase == INPUT else "slow_compute",
        ranks=(rank,),
        node=node,
        gpu=evidence.gpus[column],
        phase=PHASES[phase] if PHASES[phase] != "other" else None,
        slowdown_ratio=round((others_busy + slow.excess) / max(others_busy, 1e-9), 3),
        recoverable_ratio=round(saved, 3),
        since_step=int(steps.numbers[slow.since]),
        persistence="persistent",
        confidence=_confidence(slow, len(steps.numbers)),
        evidence=_reasons(steps, slow, mine, peers, others_waited, phase),
        findings=_explaining(evidence, node),
        victims=tuple(itertools.islice((int(other) for other in evidence.ranks if other != rank), 64)),
    )


def brief_notes(evidence: Evidence, slow: list[Slow]) -> list[Note]:
    """What is said of those that were slow for a moment alone; nothing where there are none."""
    if not slow:
        return []
    ranks = tuple(sorted(int(evidence.ranks[each.column]) for each in slow))
    lasted = max(slow, key=lambda each: each.seconds)
    when = f"in the last {lasted.steps} steps, {seconds_text(lasted.seconds)}"
    text = f"{ranks_text(ranks)} slower than the others {when}: too short a time to accuse anyone"
    return [Note("brief", text, ranks=ranks[:64])]


def _explaining(evidence: Evidence, node: str | None) -> tuple[str, ...]:
    """The findings of this node that not all others of the job have: what all have makes none of them the slower."""
    mine = evidence.findings_by_node.get(node or "", ())
    if not mine:
        return ()
    others = [evidence.findings_by_node.get(other or "", ()) for other in set(evidence.nodes) if other != node]
    return tuple(code for code in mine if not others or not all(code in theirs for theirs in others))


def _confidence(slow: Slow, steps: int) -> float:
    """Laplace's rule of succession on the steps in which it was slow: 8 of 8 give 0.9, 100 of 100 give 0.99."""
    count = steps - slow.since
    return round((slow.share * count + 1) / (count + 2), 2)


def _reasons(
    steps: Steps, slow: Slow, mine: Floats, peers: Floats, others_waited: float, phase: int
) -> tuple[str, ...]:
    tail, column = slice(slow.since, None), slow.column
    waited = float(np.nanmedian(steps.waited[tail, column]))
    count = len(steps.numbers) - slow.since
    return (
        f"{mine[phase]:.3f} s a step in {PHASES[phase]}, its peers {peers[phase]:.3f} s",
        f"waits {waited:.3f} s a step in collectives, its peers {others_waited:.3f} s",
        f"busier than its peers in {round(slow.share * count)} of the last {count} steps",
    )
