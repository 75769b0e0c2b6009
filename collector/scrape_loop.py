"""Asks every agent, round after round. An agent that is ill is named, with its state; the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import httpx

from laggard.collector.fleet.outliers import compare, with_codes
from laggard.collector.jobs.snapshot import Locate, Picture, paint
from laggard.collector.jobs.window import Windows
from laggard.collector.node_finding import NodeFinding
from laggard.collector.recording.writer import Recording
from laggard.collector.scrape.agent import Agent
from laggard.collector.scrape.fetch import Failure, fetch, make_client
from laggard.collector.scrape.targets import Target
from laggard.collector.scrape.validation import believe_ranks, believe_report
from laggard.collector.settings import CollectorSettings
from laggard.model import Report, Severity
from laggard.wire import RanksDocument, WireError

log = logging.getLogger("laggard.collector")

T = TypeVar("T")

MOST_OFTEN_SECONDS = 1.0
"""From a look to the next at the soonest, whoever asks for it: what agents are to expect."""

_SEVERITIES = tuple(Severity)


class Answer(NamedTuple):
    """What one agent said when it was asked. `report` is None where it was not asked for one."""

    ranks: RanksDocument | Failure
    report: Report | Failure | None


class Gatherer:
    """Owns the agents' standing and the windows; `picture` is replaced as a whole after each round."""

    def __init__(self, targets: Sequence[Target], settings: CollectorSettings, locate: Locate) -> None:
        self._agents = [Agent(target) for target in targets]
        self._settings = settings
        self._locate = locate
        self._windows = Windows(settings.max_jobs, settings.max_ranks, settings.forget_after_seconds)
        self.picture = Picture(nodes=tuple(agent.row(0.0) for agent in self._agents))
        self._wanted = asyncio.Event()
        self._done = asyncio.Condition()

    async def fresh(self) -> None:
        """Returns once `picture` is from a round that began at most MOST_OFTEN_SECONDS ago, or such a round takes too
        long. However many ask, rounds begin no more often."""
        began = time.monotonic()
        if not self._is_since(began):
            self._wanted.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._round_since(began), self._settings.timeout_seconds)

    async def _round_since(self, moment: float) -> None:
        async with self._done:
            await self._done.wait_for(lambda: self._is_since(moment))

    def recording(self, name: str | None) -> Recording | None:
        """What is held of that job; None where it is not known. From the event loop: nothing is folded meanwhile."""
        painted = self.picture.job(name)
        job = self._windows.jobs.get(painted.key) if painted else None
        if painted is None or job is None:
            return None
        answering = {row.url for row in self.picture.nodes if row.state == "up"}
        steps = {number: tuple(rank.rows.values()) for number, rank in job.ranks.items()}
        return Recording(painted.key.job_id, job.known(answering), steps, painted.evidence.findings_by_node)

    def _is_since(self, moment: float) -> bool:
        return self.picture.asked_at is not None and self.picture.asked_at >= moment - MOST_OFTEN_SECONDS

    async def run(self) -> None:
        """Rounds, for ever, `interval_seconds` from start to start, or sooner where a fresh look is asked for."""
        async with make_client(self._settings.timeout_seconds, self._settings.concurrency) as client:
            while True:
                began = time.monotonic()
                try:
                    await self.round(client)
                except Exception:  # a round that failed must not be the last
                    log.exception("a defect in laggard: this round was lost")
                async with self._done:
                    self._done.notify_all()
                await self._pause(began)

    async def _pause(self, began: float) -> None:
        await asyncio.sleep(max(0.05, began + min(MOST_OFTEN_SECONDS, self._interval) - time.monotonic()))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), max(0.0, began + self._interval - time.monotonic()))
        self._wanted.clear()

    @property
    def _interval(self) -> float:
        return self._settings.interval_seconds

    async def round(self, client: httpx.AsyncClient) -> None:
        asked_at = time.monotonic()
        gate = asyncio.Semaphore(self._settings.concurrency)
        answers = await asyncio.gather(*(self._ask(client, gate, agent) for agent in self._agents))
        now = time.monotonic()
        for agent, answer in zip(self._agents, answers, strict=True):
            self._take(agent, answer, now)
        self._windows.forget(now)
        fleet = await asyncio.to_thread(compare, self._agents)
        codes = fleet.codes()
        outline = Picture(
            nodes=tuple(with_codes(agent.row(now), codes) for agent in self._agents),
            ignored="; ".join(agent.ignored for agent in self._agents if agent.ignored),
            findings=_worst_first((*_findings(self._agents), *fleet.findings)),
            fleet_findings=fleet.findings,
            fleet_notes=fleet.notes,
            rounds=self.picture.rounds + 1,
            taken_at=now,
            asked_at=asked_at,
        )
        # The analysis may take long on many ranks: in a thread, so that the page goes on answering.
        self.picture = await asyncio.to_thread(paint, self._windows, outline, self._locate)

    async def _ask(self, client: httpx.AsyncClient, gate: asyncio.Semaphore, agent: Agent) -> Answer:
        async with gate:
            ranks = await self._read(client, f"{agent.url}/api/v1/ranks?since={agent.since!r}", believe_ranks)
            due = agent.report_due(time.monotonic(), self._settings.report_interval_seconds)
            if isinstance(ranks, Failure) or not due:
                return Answer(ranks, None)
            return Answer(ranks, await self._read(client, f"{agent.url}/api/v1/report", believe_report))

    async def _read(self, client: httpx.AsyncClient, url: str, believe: Callable[[bytes], T]) -> T | Failure:
        body = await fetch(client, url, self._settings.timeout_seconds, self._settings.max_body_bytes)
        if isinstance(body, Failure):
            return body
        try:
            return await asyncio.to_thread(believe, body)
        except WireError as error:
            return Failure("garbage", str(error))

    def _take(self, agent: Agent, answer: Answer, now: float) -> None:
        before = agent.state
        agent.take_ranks(answer.ranks, self._windows, now)
        agent.take_report(answer.report, now, self._settings.forget_after_seconds)
        if agent.state != before:
            level = logging.INFO if agent.state == "up" else logging.WARNING
            log.log(level, "%s is %s%s", agent.url, agent.state, f": {agent.reason}" if agent.reason else "")


def _findings(agents: Iterable[Agent]) -> Iterator[NodeFinding]:
    """The node is the one that its ranks are known under, so that the two can be joined."""
    for agent in agents:
        of_node = agent.report.findings if agent.report else ()
        for finding in (*of_node, *agent.job_findings):
            yield NodeFinding(agent.url, agent.name, finding)


def _worst_first(found: Iterable[NodeFinding]) -> tuple[NodeFinding, ...]:
    return tuple(sorted(found, key=lambda it: (_SEVERITIES.index(it.finding.severity), it.node, it.finding.code)))
