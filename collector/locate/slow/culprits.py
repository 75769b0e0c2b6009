"""Describes the slow ranks as culprits: in which phase, by how much, since when, and what explains it. Pure."""

from __future__ import annotations

import itertools

import numpy as np

from laggard.collector.locate.job_timings import Floats, JobTimings
from laggard.collector.locate.slow.hosts import merge_hosts
from laggard.collector.locate.slow.payoff import payoff
from laggard.collector.locate.slow.ranks import SlowRank
from laggard.collector.locate.slow.steps import Steps
from laggard.constants import PHASES
from laggard.model import MAX_NAMED_RANKS, Culprit, Note
from laggard.text.words import ranks_text, seconds_text

INPUT = PHASES.index("input")


def slow_culprits(timings: JobTimings, steps: Steps, slow: list[SlowRank]) -> tuple[tuple[Culprit, ...], float]:
    """The slow ranks and hosts, the slowest first, and the job's slowdown ratio: its step time over the step time
    without them."""
    saved, ratio = payoff(steps, slow)
    culprits = [_culprit(timings, steps, *each) for each in zip(slow, saved, strict=True)]
    return tuple(merge_hosts(timings, culprits)), ratio


def brief_notes(timings: JobTimings, slow: list[SlowRank]) -> list[Note]:
    """One note about the ranks that were slow for a moment only; none where there are no such ranks."""
    if not slow:
        return []
    ranks = tuple(sorted(int(timings.ranks[rank.column]) for rank in slow))
    longest = max(slow, key=lambda rank: rank.seconds)
    when = f"in the last {longest.steps} steps, {seconds_text(longest.seconds)}"
    text = f"{ranks_text(ranks)} slower than the others {when}: too short a time to accuse anyone"
    return [Note("brief", text, ranks=ranks[:MAX_NAMED_RANKS])]


def _culprit(timings: JobTimings, steps: Steps, slow: SlowRank, saved: float) -> Culprit:
    """`saved` is the share of the step time that fixing the rank would save."""
    tail, column = slice(slow.since, None), slow.column
    own = np.nanmedian(steps.phases[tail, column], axis=0)
    peers, peers_busy, peers_waited = steps.peers(slow.since).medians(column)
    phase = int(np.argmax(own - peers))
    node = timings.nodes[column]
    rank = int(timings.ranks[column])
    return Culprit(
        kind="slow_input" if phase == INPUT else "slow_compute",
        ranks=(rank,),
        node=node,
        gpu=timings.gpus[column],
        phase=PHASES[phase] if PHASES[phase] != "other" else None,
        slowdown_ratio=round((peers_busy + slow.excess) / max(peers_busy, 1e-9), 3),
        recoverable_ratio=round(saved, 3),
        since_step=int(steps.numbers[slow.since]),
        persistence="persistent",
        confidence=_confidence(slow, len(steps.numbers)),
        evidence=_evidence(steps, slow, own, peers, peers_waited, phase),
        findings=_explaining_findings(timings, node),
        victims=tuple(itertools.islice((int(other) for other in timings.ranks if other != rank), MAX_NAMED_RANKS)),
    )


def _explaining_findings(timings: JobTimings, node: str | None) -> tuple[str, ...]:
    """The codes of the node's findings, without those that all other nodes of the job have too: what all have makes
    none of them slower than the others."""
    codes = timings.findings_by_node.get(node or "", ())
    if not codes:
        return ()
    others = [timings.findings_by_node.get(other or "", ()) for other in set(timings.nodes) if other != node]
    return tuple(code for code in codes if not others or not all(code in theirs for theirs in others))


def _confidence(slow: SlowRank, steps: int) -> float:
    """Laplace's rule of succession on the steps in which the rank was slow: 8 of 8 give 0.9, 100 of 100 give 0.99."""
    count = steps - slow.since
    return round((slow.share * count + 1) / (count + 2), 2)


def _evidence(
    steps: Steps, slow: SlowRank, own: Floats, peers: Floats, peers_waited: float, phase: int
) -> tuple[str, ...]:
    tail, column = slice(slow.since, None), slow.column
    waited = float(np.nanmedian(steps.waited[tail, column]))
    count = len(steps.numbers) - slow.since
    return (
        f"{own[phase]:.3f} s a step in {PHASES[phase]}, its peers {peers[phase]:.3f} s",
        f"waits {waited:.3f} s a step in collectives, its peers {peers_waited:.3f} s",
        f"busier than its peers in {round(slow.share * count)} of the last {count} steps",
    )
