"""Asks the agents of suspects for single collectives, bounded in how often, in jobs and ranks, and in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from laggard.collector.jobs.job import Job, JobKey
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.collectives_validation import validate_collectives
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.locate.link_suspects import link_suspects
from laggard.wire import WireError
from laggard.wire.collectives import RankCollectives

ASK_SECONDS = 10.0
"""The least time between two questions to a job's ranks."""

MAX_RANKS_A_REQUEST = 16
"""The most ranks a request: as many as an agent answers for at once."""

MAX_BODY_BYTES = 8 << 20


class Wanted(NamedTuple):
    """The job to ask for next, and the ranks by agent."""

    key: JobKey
    ranks: Mapping[str, tuple[int, ...]]


class CollectiveRounds:
    """Asks for one job in a round, the one that was not asked for longest."""

    def __init__(self, windows: JobWindows, timeout_seconds: float, server_name: str = "") -> None:
        self._windows = windows
        self._timeout_seconds = timeout_seconds
        self._server_name = server_name
        self._asked_at: dict[JobKey, float] = {}

    def wanted(self, answering: Iterable[str], now: float) -> Wanted | None:
        """The one that is due first of the running jobs whose ranks may sit at a slow link; None where none is. It may
        take long for large jobs: no work for the event loop."""
        answers = set(answering)
        self._asked_at = {key: at for key, at in self._asked_at.items() if key in self._windows.jobs}
        due = [key for key in self._windows.jobs if now - self._asked_at.get(key, now - ASK_SECONDS) >= ASK_SECONDS]
        for key in sorted(due, key=lambda key: self._asked_at.get(key, 0.0)):
            job = self._windows.jobs[key]
            if not job.running:
                continue
            self._asked_at[key] = now
            suspects = link_suspects(job.timings(key.job_id, answers, {}), job.newest_rows(answers))
            by_agent: dict[str, tuple[int, ...]] = {}
            for rank in suspects:
                source = job.ranks[rank].source
                if source in answers:
                    by_agent[source] = (*by_agent.get(source, ()), rank)
            return Wanted(key, by_agent) if by_agent else None
        return None

    async def ask(self, wanted: Wanted, now: float) -> None:
        """Asks, and hands the answers to the job, unless another run of it took its place meanwhile."""
        job = self._windows.jobs.get(wanted.key)
        self._hand_over(job, wanted.key, await self.answers(wanted), now)

    async def answers(self, wanted: Wanted) -> dict[int, RankCollectives]:
        """The collectives that the agents have of these ranks, as far as they answer."""
        requests = [
            self._ask_agent(url, wanted.key, ranks[place : place + MAX_RANKS_A_REQUEST])
            for url, ranks in wanted.ranks.items()
            for place in range(0, len(ranks), MAX_RANKS_A_REQUEST)
        ]
        answers = await asyncio.gather(*requests)
        return {it.rank: it for answer in answers for it in answer}

    def _hand_over(self, job: Job | None, key: JobKey, found: dict[int, RankCollectives], now: float) -> None:
        if job is not None and self._windows.jobs.get(key) is job:
            job.collectives, job.collectives_at = found, now

    async def _ask_agent(self, url: str, key: JobKey, ranks: tuple[int, ...]) -> tuple[RankCollectives, ...]:
        """The collectives that one agent has; nothing where it does not answer, or not as an agent does."""
        asked = "".join(f"&rank={rank}" for rank in ranks)
        address = f"{url}/api/v1/collectives?owner={key.owner}&job={quote(key.job_id, safe='')}{asked}"
        body = await fetch(address, self._timeout_seconds, MAX_BODY_BYTES, self._server_name)
        if isinstance(body, FetchFailure):
            return ()
        try:
            return (await asyncio.to_thread(validate_collectives, body, key.owner, key.job_id, ranks)).ranks
        except WireError:
            return ()
