"""The source from which the web handlers read: the scrape loop, as far as they know it, or what one user may see of
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from laggard.collector.incidents.fault import Fault
from laggard.collector.incidents.fault_rows import MachineRows
from laggard.collector.incidents.incident import HistoryState, Incident, IncidentQuery, IncidentsDocument
from laggard.collector.jobs.held_stacks import JobStacks
from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.scrape.looked_ranks import LookedRank
from laggard.recording.writer import JobRecording
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation
from laggard.wire.stacks import StacksAsked


class Incidents(Protocol):
    """The incidents as IncidentHistory has them."""

    @property
    def open(self) -> tuple[Incident, ...]: ...

    @property
    def opened(self) -> Mapping[str, int]: ...

    @property
    def closed(self) -> Mapping[str, int]: ...

    @property
    def refused(self) -> int: ...

    @property
    def closed_lately(self) -> tuple[Incident, ...]: ...

    @property
    def faults(self) -> tuple[Fault, ...]: ...

    @property
    def lost(self) -> Mapping[str, float]: ...

    def slow_links(self, since: float) -> tuple[Incident, ...]: ...

    def suspects(self, since: float) -> tuple[Incident, ...]: ...

    def confirmations(self) -> tuple[Confirmation, ...]: ...

    def confirm(self, confirmation: Confirmation) -> tuple[int, ...]: ...

    def document(self, query: IncidentQuery) -> IncidentsDocument: ...

    def machine(self, node: str, limit: int) -> MachineRows: ...

    def all_faults(self, since: float) -> tuple[Fault, ...]: ...

    def told_state(self) -> HistoryState: ...


class ClusterSource(Protocol):
    @property
    def snapshot(self) -> ClusterSnapshot:
        """The latest snapshot. It is replaced as a whole after each round: a handler that reads it once sees one
        round."""

    @property
    def why_not_ready(self) -> str:
        """The reason why clients are to ask another collector, or later; empty where there is none."""

    @property
    def incidents(self) -> Incidents: ...

    async def refresh(self) -> bool:
        """Returns when the snapshot is at most about a second old, or, with False, when that takes too long."""

    def looked_at(self, key: JobKey, ranks: Sequence[int]) -> Mapping[int, LookedRank]:
        """A reader looks at these ranks: returns what is known of their single collectives. Their agents are asked for
        these from the next round on, while somebody looks. To be called from any thread."""

    async def digest(self, name: str | None, run: str) -> Digest | None:
        """The digest of a job now, of its first hour, or of an earlier run; to be called on the event loop."""

    def stacks(self, key: JobKey) -> JobStacks | None:
        """The newest stacks that are held of the job's ranks; None where it is not known."""

    async def ask_for_stacks(
        self, key: JobKey, ranks: Sequence[int], samples: int, seconds: float
    ) -> StacksAsked | None:
        """Asks ranks of the job for their stacks, all where none is named; None where it is not known."""

    def recording(self, name: str | None) -> JobRecording | None:
        """The recording of what is held of a job; to be called on the event loop."""
