"""The nodes that the next job is to leave out, from the latest snapshot and the incidents of late."""

from __future__ import annotations

import time

from laggard.collector.fleet.exclusions import Suspicion, exclusions_document
from laggard.collector.incidents.incident import Incident
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.source import ClusterSource
from laggard.wire.exclusion import ExclusionsDocument


def exclusions(source: ClusterSource, settings: CollectorSettings, seconds: float | None = None) -> ExclusionsDocument:
    """`seconds`: for how long a node is left out after it was last named; None: as the settings say."""
    now, kept = time.time(), settings.exclude_seconds if seconds is None else seconds
    return exclusions_document(
        source.snapshot,
        map(_suspicion, source.incidents.suspects(now - kept)),
        source.incidents.confirmations(),
        settings.max_drain_ratio,
        kept,
        now,
    )


def _suspicion(it: Incident) -> Suspicion:
    return Suspicion(it.id, it.culprit, it.what, it.opened_at, it.seen_at, it.most_recoverable_ratio)
