"""What reading a recording yields, whatever its kind."""

from __future__ import annotations

import dataclasses

from laggard.collector.locate.job_timings import JobTimings
from laggard.nccl.inspector import Arrivals


@dataclasses.dataclass(frozen=True)
class RecordedTimings:
    """The timings in a recording, and lines that say what of it was lost or could not be used. `owner`: the uid of the
    job's user, which only a collector's recording has."""

    timings: JobTimings
    gaps: tuple[str, ...]
    owner: int | None = None
    arrivals: Arrivals | None = None
    """Who came last to collectives, where that is all there is (NCCL Inspector's files); there are no timings then."""
