"""Where the web handlers read from: the scrape loop, as far as they know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from laggard.collector.incidents.history import IncidentHistory
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.recording.writer import JobRecording
from laggard.collector.scrape.looked_ranks import LookedRank


class ClusterSource(Protocol):
    snapshot: ClusterSnapshot
    """The latest snapshot. It is replaced as a whole after each round: a handler that reads it once sees one round."""

    incidents: IncidentHistory

    async def refresh(self) -> bool:
        """Returns when the snapshot is at most about a second old, or, with False, when that takes too long."""

    def looked_at(self, key: JobKey, ranks: Sequence[int]) -> Mapping[int, LookedRank]:
        """A reader looks at these ranks: returns what is known of their single collectives. Their agents are asked for
        these from the next round on, while somebody looks. To be called from any thread."""

    def recording(self, name: str | None) -> JobRecording | None:
        """What is held of a job; to be called on the event loop."""
