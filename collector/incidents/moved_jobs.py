"""Jobs that move from one collector to another, and their incidents with them.

Whoever takes a job over goes on with its open incidents under the ids that their rows have: so an incident is neither
opened a second time nor closed by one that no longer looks. The one before may write once more after that, so what it
wrote is read again for SETTLE_SECONDS: an incident goes on where somebody saw it after it was closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.collector.incidents import incident_rows
from laggard.collector.incidents.engine import Engine
from laggard.collector.incidents.incident import Incident, IncidentQuery
from laggard.collector.jobs.key import JobKey

SETTLE_SECONDS: Final = 30.0
"""The time for which whoever watched a job before may still write of it: a beat, a round, and what the database takes.
laggard's estimate."""

MAX_OF_JOB: Final = 128
"""The most incidents of one job that are taken over, the last ones: twice as many as can be open."""


class Moved(NamedTuple):
    """The jobs that others watch from now on; the incidents of those that this collector takes over, open or closed of
    late."""

    released: frozenset[JobKey] = frozenset()
    incidents: tuple[Incident, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.released or self.incidents)


NOBODY: Final = Moved()


def taken_over(engine: Engine, keys: Iterable[JobKey], since: float) -> Moved:
    """Reads what goes with the jobs, of what was open at `since` (Unix seconds) or later."""
    found: list[Incident] = []
    for key in keys:
        query = IncidentQuery(key.job_id, key.owner, since, limit=MAX_OF_JOB)
        found += incident_rows.read(engine, query).incidents
    return Moved(incidents=tuple(found))
