"""Asks agents for single collectives of suspects, and of ranks that readers look at: bounded in how often, in jobs
and ranks, and in bytes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from laggard.collector.jobs.live_collectives import link_suspects
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape.validation import validate_collectives
from laggard.locate.links.network import SLOW_TRANSFERS
from laggard.model import JobKey, Location
from laggard.wire import WireError
from laggard.wire.ranks import RankCollectives

ASK_SECONDS = 10.0
"""The least time between two questions to a job's ranks."""

MAX_RANKS_A_ROUND = 256
"""The number of ranks of all jobs from which on no further job is asked in a round."""

LOOK_SECONDS = 0.5
"""The time after which no further job is looked at in a round."""

MAX_RANKS_A_REQUEST = 16
"""The most ranks a request: as many as an agent answers for at once."""

MAX_BODY_BYTES, MAX_BYTES_A_RANK = 8 << 20, 1 << 20
"""The most bytes of an answer, and of each rank in it: a rank tells of 4,096 collectives at most."""


class Wanted(NamedTuple):
    """A job to ask for, and the ranks by agent."""

    key: JobKey
    ranks: Mapping[str, tuple[int, ...]]


class CollectiveRounds:
    """Asks for some jobs in a round, those that were not asked for longest."""

    def __init__(self, windows: JobWindows, timeout_seconds: float, server_name: str = "") -> None:
        self._windows = windows
        self._timeout_seconds = timeout_seconds
        self._server_name = server_name
        self._asked_at: dict[JobKey, float] = {}

    def wanted(self, answering: Iterable[str], now: float, first: Collection[JobKey] = ()) -> tuple[Wanted, ...]:
        """Those that are due first of the running jobs whose ranks may sit at a slow link; before all others those of
        `first`, of which that is known. It may take long for large jobs: no work for the event loop."""
        answers, until = set(answering), time.monotonic() + LOOK_SECONDS
        self._asked_at = {key: at for key, at in self._asked_at.items() if key in self._windows.jobs}
        due = [key for key in self._windows.jobs if now - self._asked_at.get(key, now - ASK_SECONDS) >= ASK_SECONDS]
        found, ranks = list[Wanted](), 0
        for key in sorted(due, key=lambda key: (key not in first, self._asked_at.get(key, 0.0))):
            job = self._windows.jobs[key]
            if not job.running:
                continue
            self._asked_at[key] = now
            suspects = link_suspects(job.timings(key.job_id, answers, {}), job.newest_rows(answers))
            by_agent = job.by_agent(suspects, answers)
            if by_agent:
                found.append(Wanted(key, by_agent))
                ranks += sum(map(len, by_agent.values()))
            if ranks >= MAX_RANKS_A_ROUND or time.monotonic() >= until:
                break
        return tuple(found)

    async def ask(self, wanted: Sequence[Wanted], now: float) -> None:
        """Asks, and hands the answers to the jobs, unless another run of one took its place meanwhile."""
        jobs = [self._windows.jobs.get(each.key) for each in wanted]
        found = await asyncio.gather(*map(self.answers, wanted))
        for job, each, answers in zip(jobs, wanted, found, strict=True):
            if job is not None and self._windows.jobs.get(each.key) is job:
                job.collectives, job.collectives_at = answers, now

    async def answers(self, wanted: Wanted) -> dict[int, RankCollectives]:
        """The collectives that the agents have of these ranks, as far as they answer."""
        requests = [
            self._ask_agent(url, wanted.key, ranks[place : place + MAX_RANKS_A_REQUEST])
            for url, ranks in wanted.ranks.items()
            for place in range(0, len(ranks), MAX_RANKS_A_REQUEST)
        ]
        answers = await asyncio.gather(*requests)
        return {it.rank: it for answer in answers for it in answer}

    async def _ask_agent(self, url: str, key: JobKey, ranks: tuple[int, ...]) -> tuple[RankCollectives, ...]:
        """The collectives that one agent has; nothing where it does not answer, or not as an agent does."""
        asked = "".join(f"&rank={rank}" for rank in ranks)
        address = f"{url}/api/v1/collectives?owner={key.owner}&job={quote(key.job_id, safe='')}{asked}"
        most = min(MAX_BODY_BYTES, MAX_BYTES_A_RANK * len(ranks))
        body = await fetch(address, self._timeout_seconds, most, self._server_name)
        if isinstance(body, FetchFailure):
            return ()
        try:
            return (await asyncio.to_thread(validate_collectives, body, key.owner, key.job_id, ranks)).ranks
        except WireError:
            return ()


def is_in_network(location: Location) -> bool:
    """Whether the verdict names a link, or tells of transfers that take long."""
    kinds = (*(culprit.kind for culprit in location.culprits), *(note.kind for note in location.notes))
    return "slow_link" in kinds or SLOW_TRANSFERS in kinds


# The ranks that readers look at: while somebody does, their agents are asked for single collectives in each round. What
# they answer is for the reader alone: no verdict rests on who looks at what.

READER_SECONDS: Final = 20.0
"""The time for which a rank's agent is asked after somebody looked at the rank; pages ask every few seconds."""

MAX_LOOKED_RANKS: Final = 64
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
            for place in list(self._looked_at)[:-MAX_LOOKED_RANKS]:
                del self._looked_at[place]
            return {rank: self._known[key, rank] for rank in ranks if (key, rank) in self._known}

    def wanted(self, answering: Collection[str], now: float) -> list[Wanted]:
        """The ranks to ask for now: those of jobs that run, whose agents answer."""
        with self._lock:
            self._looked_at = {place: at for place, at in self._looked_at.items() if now - at < READER_SECONDS}
            self._known = {place: it for place, it in self._known.items() if place in self._looked_at}
            looked = list(self._looked_at)
        ranks: dict[JobKey, list[int]] = {}
        for key, rank in looked:
            ranks.setdefault(key, []).append(rank)
        jobs = ((key, self._windows.jobs.get(key)) for key in ranks)
        wanted = (Wanted(key, job.by_agent(ranks[key], answering)) for key, job in jobs if job and job.running)
        return [each for each in wanted if each.ranks]

    def keep(self, key: JobKey, found: Iterable[RankCollectives]) -> None:
        """Keeps what the agents answered, with the steps that are held of these ranks now."""
        job = self._windows.jobs.get(key)
        if job is None:
            return
        known = {(key, it.rank): LookedRank(it, job.ranks[it.rank].table) for it in found if it.rank in job.ranks}
        with self._lock:
            self._known.update(known)
