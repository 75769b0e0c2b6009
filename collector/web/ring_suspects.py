"""The nodes that a ring should measure, whenever one did last: those to which a job's slow link leads."""

from __future__ import annotations

import time

from laggard.collector.web.source import ClusterSource


def ring_suspects(source: ClusterSource, period_seconds: float) -> frozenset[str]:
    """The machines of slow links of the last `period_seconds` that no ring has measured since they were last named."""
    now = time.time()
    measured = {
        row.node: now - row.ring_age_seconds for row in source.snapshot.nodes if row.ring_age_seconds is not None
    }
    links = source.incidents.slow_links(now - period_seconds)
    return frozenset(node for it in links for node in it.culprit.machines if measured.get(node, 0.0) < it.seen_at)
