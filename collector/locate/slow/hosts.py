"""Merges slow ranks into slow hosts: where all ranks of a machine are slow, the machine is the culprit. Pure."""

from __future__ import annotations

from collections import Counter

from laggard.collector.locate.job_timings import JobTimings
from laggard.model import MAX_NAMED_RANKS, Culprit


def merge_hosts(timings: JobTimings, culprits: list[Culprit]) -> list[Culprit]:
    """`culprits`, with one for the machine in place of its ranks where all of these, and at least two, are slow in the
    same phase, and the job has other machines too."""
    by_host: dict[tuple[str | None, str | None], list[Culprit]] = {}
    for culprit in culprits:
        by_host.setdefault((culprit.node, culprit.phase), []).append(culprit)
    sizes = Counter(timings.nodes) if culprits else Counter()
    merged: list[Culprit] = []
    for culprit in culprits:
        same = by_host[culprit.node, culprit.phase]
        size = sizes[culprit.node]
        if culprit.node is None or len(same) < 2 or len(same) < size or size == len(timings.nodes):
            merged.append(culprit)
        elif culprit is same[0]:
            merged.append(_host_culprit(timings, same))
    return merged


def _host_culprit(timings: JobTimings, culprits: list[Culprit]) -> Culprit:
    ranks = tuple(sorted(rank for culprit in culprits for rank in culprit.ranks))
    return Culprit(
        kind="slow_host",
        ranks=ranks,
        node=culprits[0].node,
        phase=culprits[0].phase,
        slowdown_ratio=max(culprit.slowdown_ratio or 1.0 for culprit in culprits),
        recoverable_ratio=round(sum(culprit.recoverable_ratio or 0.0 for culprit in culprits), 3),
        since_step=min(culprit.since_step or 0 for culprit in culprits),
        confidence=min(culprit.confidence for culprit in culprits),
        evidence=(f"all {len(ranks)} ranks of the machine are slow", *culprits[0].evidence),
        findings=culprits[0].findings,
        victims=tuple(int(rank) for rank in timings.ranks if rank not in ranks)[:MAX_NAMED_RANKS],
    )
