"""The nodes that the next job is to leave out, from the latest snapshot and the incidents of late."""

from __future__ import annotations

import time

from laggard.collector.fleet.exclusions import Suspicion, exclusions_document
from laggard.collector.incidents.incident import Incident
from laggard.collector.web.source import ClusterSource
from laggard.wire.exclusion import ExclusionsDocument


def exclusions(source: ClusterSource, max_drain_ratio: float, seconds: float) -> ExclusionsDocument:
    """`seconds`: for how long a node is left out after it was last named."""
    now = time.time()
    return exclusions_document(
        source.snapshot,
        map(_suspicion, source.incidents.suspects(now - seconds)),
        source.incidents.confirmations(),
        max_drain_ratio,
        seconds,
        now,
    )


def _suspicion(it: Incident) -> Suspicion:
    return Suspicion(it.id, it.culprit, it.what, it.opened_at, it.seen_at, it.most_recoverable_ratio)
