"""Where all ranks of a machine are slow alike, the machine is the culprit. Pure."""

from __future__ import annotations

from collections import Counter

from laggard.collector.locate.job_timings import Evidence
from laggard.model import Culprit


def by_host(evidence: Evidence, culprits: list[Culprit]) -> list[Culprit]:
    """Where all of a machine's ranks are slow in the same phase, and others' are not, the machine is the culprit."""
    merged: list[Culprit] = []
    alike: dict[tuple[str | None, str | None], list[Culprit]] = {}
    for culprit in culprits:
        alike.setdefault((culprit.node, culprit.phase), []).append(culprit)
    sizes = Counter(evidence.nodes) if culprits else Counter()
    for culprit in culprits:
        mates = alike[culprit.node, culprit.phase]
        size = sizes[culprit.node]
        if culprit.node is None or len(mates) < 2 or len(mates) < size or size == len(evidence.nodes):
            merged.append(culprit)
        elif culprit is mates[0]:
            merged.append(_host(evidence, mates))
    return merged


def _host(evidence: Evidence, mates: list[Culprit]) -> Culprit:
    ranks = tuple(sorted(rank for mate in mates for rank in mate.ranks))
    return Culprit(
        kind="slow_host",
        ranks=ranks,
        node=mates[0].node,
        phase=mates[0].phase,
        slowdown_ratio=max(mate.slowdown_ratio or 1.0 for mate in mates),
        recoverable_ratio=round(sum(mate.recoverable_ratio or 0.0 for mate in mates), 3),
        since_step=min(mate.since_step or 0 for mate in mates),
        confidence=min(mate.confidence for mate in mates),
        evidence=(f"all {len(ranks)} ranks of the machine are slow", *mates[0].evidence),
        findings=mates[0].findings,
        victims=tuple(int(rank) for rank in evidence.ranks if rank not in ranks)[:64],
    )
