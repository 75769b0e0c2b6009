"""The ranks that readers look at: while somebody does, their agents are asked for single collectives in each round.
What they answer is for the reader alone: no verdict rests on who looks at what."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.collector.jobs.job import JobKey
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.collective_rounds import Wanted
from laggard.wire.collectives import RankCollectives

LOOK_SECONDS: Final = 20.0
"""The time for which a rank's agent is asked after somebody looked at the rank; pages ask every few seconds."""

MAX_RANKS: Final = 64
"""The most ranks of all readers together; those that were looked at last."""


class LookedRank(NamedTuple):
    """The last collectives of a rank, and its steps, of the same clock."""

    collectives: RankCollectives
    steps: NDArray[np.float64]


class LookedRanks:
    """Handlers look from threads; the scrape loop asks."""

    def __init__(self, windows: JobWindows) -> None:
        self._windows = windows
        self._lock = threading.Lock()
        self._looked_at: dict[tuple[JobKey, int], float] = {}
        self._known: dict[tuple[JobKey, int], LookedRank] = {}

    def look(self, key: JobKey, ranks: Sequence[int], now: float) -> Mapping[int, LookedRank]:
        """Notes that a reader looks. Returns what is known of these ranks."""
        with self._lock:
            for place in ((key, rank) for rank in ranks):
                self._looked_at.pop(place, None)
                self._looked_at[place] = now
            for place in list(self._looked_at)[:-MAX_RANKS]:
                del self._looked_at[place]
            return {rank: self._known[key, rank] for rank in ranks if (key, rank) in self._known}

    def wanted(self, answering: Collection[str], now: float) -> list[Wanted]:
        """The ranks to ask for now: those of jobs that run, whose agents answer."""
        with self._lock:
            self._looked_at = {place: at for place, at in self._looked_at.items() if now - at < LOOK_SECONDS}
            self._known = {place: it for place, it in self._known.items() if place in self._looked_at}
            looked = list(self._looked_at)
        by_job: dict[JobKey, dict[str, tuple[int, ...]]] = {}
        for key, rank in looked:
            job = self._windows.jobs.get(key)
            if job is not None and job.running and rank in job.ranks and job.ranks[rank].source in answering:
                agents, source = by_job.setdefault(key, {}), job.ranks[rank].source
                agents[source] = (*agents.get(source, ()), rank)
        return [Wanted(key, agents) for key, agents in by_job.items()]

    def keep(self, key: JobKey, found: Iterable[RankCollectives]) -> None:
        """Keeps what the agents answered, with the steps that are held of these ranks now."""
        job = self._windows.jobs.get(key)
        if job is None:
            return
        known = {(key, it.rank): LookedRank(it, job.ranks[it.rank].table) for it in found if it.rank in job.ranks}
        with self._lock:
            self._known.update(known)
