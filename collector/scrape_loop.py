"""The scrape loop: asks every agent, round after round. An agent that fails is named with its state; the others go
on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from laggard.collector.agent_state import AgentState, SharedReports, StateChanges, compare_nodes, last_steps_since
from laggard.collector.cluster import Cluster, Round
from laggard.collector.discovery import Discovery
from laggard.collector.evaluators import Evaluator
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.incident import FIRST, LAST, AskedDigest, KeptDigest, NodeSight, of_incident
from laggard.collector.jobs.held_verdicts import CalmJobs, HeldCulprits
from laggard.collector.jobs.holdings import Limits
from laggard.collector.jobs.job import JobStacks
from laggard.collector.jobs.own_past import OwnPasts, described
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot, Locate, build_snapshot
from laggard.collector.jobs.unseen import RasAnswer, launched_jobs
from laggard.collector.jobs.window import JobWindows
from laggard.collector.memory import trim
from laggard.collector.prometheus.watch import PrometheusWatch
from laggard.collector.scrape.collective_rounds import CollectiveRounds, LookedRank, LookedRanks, Wanted, is_in_network
from laggard.collector.scrape.connections import KeptConnections, Slot, Slots, in_turn
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape.stack_rounds import StackRounds
from laggard.collector.scrape.validation import RanksAnswer, validate_ranks_answer, validate_report
from laggard.collector.settings import CollectorSettings
from laggard.locate.against.digest import digest_of
from laggard.model import JobKey, Report
from laggard.recording.writer import JobRecording
from laggard.wire import WireError
from laggard.wire.digest import Digest
from laggard.wire.stacks import StacksAsked

log = logging.getLogger("laggard.collector")

T = TypeVar("T")

MIN_INTERVAL_SECONDS = 1.0
"""The least time from the start of one round to the start of the next, however many clients ask for fresh data: what
agents have to expect."""

FRESH_SECONDS = 0.9
"""The time that a client waits for fresh data where rounds take longer than that: it is told how old its answer is.
With the time that the answer itself takes it has one within a second (`bench/fleet.py`)."""

MAX_LOOKED_AT = 64
"""The most nodes of one round whose reports are asked for before their time."""

_SHORT_BYTES = 64 << 10


class ScrapeLoop:
    """Owns the agents' states and the job windows; `snapshot` is replaced as a whole after each round."""

    def __init__(
        self,
        discovery: Discovery,
        settings: CollectorSettings,
        locate: Locate,
        watch: PrometheusWatch | Evaluator | None = None,
        stacks_token: Callable[[], str] | None = None,
    ) -> None:
        """`stacks_token`: tells the token to send to agents, which are asked for stacks; None: none is."""
        self.watch = watch
        self.incidents = IncidentHistory(HistorySettings.of(settings, os.environ))
        self._discovery = discovery
        self._agents = [AgentState(target) for target in discovery.found.targets]
        self._settings = settings
        self._locate = locate
        self._windows = JobWindows(Limits(settings.max_jobs, settings.max_ranks), settings.forget_after_seconds)
        self.snapshot = ClusterSnapshot(nodes=tuple(agent.row(0.0) for agent in self._agents))
        self._shared = SharedReports()
        self._held = HeldCulprits()
        self._calm = CalmJobs()
        self._asked_for = True  # whether somebody asked for this round
        self._pasts = OwnPasts()
        self._incidents_told: set[int] = set()
        self.connections = KeptConnections()
        self._collectives = CollectiveRounds(self._windows, settings.timeout_seconds, settings.target_server_name)
        self._wanted: tuple[Wanted, ...] = ()
        self._looked = LookedRanks(self._windows)
        self._stacks = StackRounds(self._windows, stacks_token, settings.timeout_seconds, settings.target_server_name)
        self._changes = StateChanges()
        self._cluster = Cluster(settings, discovery)
        self._look_at: set[str] = set()  # the nodes whose next reports gates wait for
        self._hurried = False  # whether the next round is early for these alone: no job's verdict is waited for
        self._refresh_wanted = asyncio.Event()
        self._round_ended = asyncio.Condition()
        # One thread: several would take turns with the event loop, which then reads no answer in time.
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="validate")

    async def refresh(self) -> bool:
        """Returns once `snapshot` is from a round that began at most MIN_INTERVAL_SECONDS ago, or once such a round
        takes too long; then False. However many clients ask, rounds begin no more often."""
        now = time.monotonic()
        if not self._is_fresh(now):
            self._hurried = False
            self._refresh_wanted.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wait_for_round(now), self._patience_seconds())
        return self._is_fresh(now)

    def look_at(self, node: str) -> None:
        """Asks the node's agent for its report in the next round, which begins soon: a gate says that the node fails,
        and only an agent is believed."""
        if len(self._look_at) < MAX_LOOKED_AT and any(row.node == node for row in self.snapshot.nodes):
            self._look_at.add(node)
            self._hurried = self._hurried or not self._refresh_wanted.is_set()
            self._refresh_wanted.set()

    @property
    def why_not_ready(self) -> str:
        """The reason why it has nothing to tell yet, or, as one of several evaluators, cannot tell what the others
        judged; empty where it can tell."""
        if not self.snapshot.rounds:
            return "the first round of scrapes is under way"
        return self.watch.why_not_ready if isinstance(self.watch, Evaluator) else ""

    def recording(self, name: str | None) -> JobRecording | None:
        """The recording of what is held of the job that ClusterSnapshot.job() finds; None where it finds none. It is to
        be called on the event loop: no round ingests anything meanwhile."""
        found = self.snapshot.job(name)
        job = self._windows.jobs.get(found.key) if found else None
        if found is None or job is None:
            return None
        answering = {row.url for row in self.snapshot.nodes if row.state == "up"}
        steps = {number: rank.table for number, rank in job.ranks.items()}
        findings, asked = found.timings.findings_by_node, job.asked_seconds_ago()
        return JobRecording(found.key.job_id, job.newest_rows(answering), steps, findings, asked, found.key.owner)

    def looked_at(self, key: JobKey, ranks: Sequence[int]) -> Mapping[int, LookedRank]:
        """Notes that a reader looks at these ranks. Returns what is known of their single collectives."""
        return self._looked.look(key, ranks, time.monotonic())

    def stacks(self, key: JobKey) -> JobStacks | None:
        """The newest stacks that are held of the job's ranks; None where it is not known."""
        job = self._windows.jobs.get(key)
        return None if job is None else JobStacks(job.stacks, job.held_stacks.missing, tuple(sorted(job.ranks)))

    async def ask_for_stacks(
        self, key: JobKey, ranks: Sequence[int], samples: int, seconds: float
    ) -> StacksAsked | None:
        """Asks ranks of the job for their stacks, all where none is named; None where it is not known. To be called on
        the event loop."""
        if key not in self._windows.jobs:
            return None
        answering = {row.url for row in self.snapshot.nodes if row.state == "up"}
        return await self._stacks.ask(key, ranks, samples, seconds, answering)

    async def run(self) -> None:
        """Rounds for ever, `interval_seconds` from start to start, or sooner where fresh data are asked for."""
        await asyncio.to_thread(self.incidents.start)
        self._discovery.start(self._settings.discovery_interval_seconds)
        await asyncio.to_thread(self._discovery.wait, self._settings.timeout_seconds)
        beside = [asyncio.create_task(self.watch.run())] if self.watch else []
        if isinstance(self.watch, Evaluator):
            self.watch.on_news = self._refresh_wanted.set
            await self.watch.begun(self._settings.timeout_seconds)
        try:
            await self._scrape_for_ever()
        finally:
            self._stacks.close()
            self.connections.close()
            for task in beside:
                task.cancel()

    async def _scrape_for_ever(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._scrape()
            except Exception:  # one failed round must not be the last
                log.exception("a defect in laggard: this round was lost")
            async with self._round_ended:
                self._round_ended.notify_all()
            await self._pause(began)

    async def _pause(self, began: float) -> None:
        interval = self._settings.interval_seconds
        await asyncio.sleep(max(0.05, began + min(MIN_INTERVAL_SECONDS, interval) - time.monotonic()))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._refresh_wanted.wait(), max(0.0, began + interval - time.monotonic()))
        self._asked_for = self._refresh_wanted.is_set() and not self._hurried
        self._hurried = False
        self._refresh_wanted.clear()

    def _patience_seconds(self) -> float:
        """The seconds for which a client waits for a round: the first one and short ones are worth it."""
        lasted = self.snapshot.round_seconds
        longest = self._settings.timeout_seconds
        return longest if lasted is None or lasted <= FRESH_SECONDS else min(FRESH_SECONDS, longest)

    async def _wait_for_round(self, moment: float) -> None:
        async with self._round_ended:
            await self._round_ended.wait_for(lambda: self._is_fresh(moment))

    def _is_fresh(self, moment: float) -> bool:
        began = self.snapshot.round_began_at
        return began is not None and began >= moment - MIN_INTERVAL_SECONDS

    async def _scrape(self) -> None:
        """One round."""
        began = time.monotonic()
        self._update_agents()
        self.connections.drop_old()
        slots = Slots(self._settings.concurrency)
        failed = [agent for agent in self._agents if agent.state not in ("up", "waiting")]
        others = [agent for agent in self._agents if agent.state in ("up", "waiting")]
        await asyncio.gather(*(self._ask(slots, agent) for agent in in_turn(failed, others)))
        self._look_at.clear()
        await self._collectives.ask(self._wanted, time.monotonic())
        await self._ask_for_readers()
        now = time.monotonic()
        for level, line in self._changes.lines(now):
            log.log(level, line)  # as the text itself: each line counts as a kind of its own
        self._windows.expire(now)
        comparison = await asyncio.to_thread(compare_nodes, self._agents)
        view = Round(self.snapshot.rounds + 1, began, now, comparison)
        cluster = self._cluster.snapshot(self._agents, view, self.incidents.faults, self.watch)
        # The analysis of many ranks may take long: it runs in a thread, so that the page goes on answering.
        launched = launched_jobs(_ras_answers(self._agents, now))
        self._calm.begin_round(judges_all=self._asked_for)
        snapshot = await asyncio.to_thread(build_snapshot, self._windows, cluster, self._locate, launched, self._calm)
        jobs = _with_others(self._held.held(snapshot.jobs, now), self.watch.jobs if self.watch else ())
        jobs = self._pasts.noted(jobs)
        snapshot = dataclasses.replace(snapshot, jobs=jobs, round_seconds=time.monotonic() - began)
        self.snapshot = snapshot
        await asyncio.to_thread(trim)
        urls = [row.url for row in snapshot.nodes if row.state == "up"]
        self._stacks.look({job.key: job.location for job in jobs}, set(urls), now)
        in_network = {job.key for job in jobs if is_in_network(job.location)}
        self._wanted = await asyncio.to_thread(self._collectives.wanted, urls, now, in_network)
        sights = tuple(_node_sights(self._agents))
        await asyncio.to_thread(self._follow, snapshot.jobs, sights)
        await self._keep_digests(now)

    def _follow(self, jobs: tuple[JobSnapshot, ...], nodes: tuple[NodeSight, ...]) -> None:
        """Has the incidents' history take the round in; of an evaluator, its own jobs alone."""
        if isinstance(self.watch, Evaluator):
            jobs, moved = self.watch.turn()
            self.incidents.move(moved)
        self.incidents.observe(jobs, nodes)

    async def _keep_digests(self, now: float) -> None:
        """Makes the digests that are due, and has those kept that later runs are compared with."""
        due = [(job, described(self._windows.jobs[job.key], job)) for job in self._pasts.due(self.snapshot.jobs, now)
               if job.key in self._windows.jobs]  # fmt: skip
        if not due:
            return
        made = await asyncio.to_thread(self._pasts.make, due, now, time.time())
        kept = [KeptDigest(*it.key, LAST, it.digest) for it in made if it.digest.healthy]
        kept += [KeptDigest(*it.key, FIRST, it.digest) for it in made if it.is_first]
        begun = {it.key: it.id for it in self.incidents.open if it.id not in self._incidents_told}
        kept += [KeptDigest(*it.key, of_incident(begun[it.key]), it.digest) for it in made if it.key in begun]
        self._incidents_told = {it.id for it in self.incidents.open} & (
            self._incidents_told | {begun[it.key] for it in made if it.key in begun}
        )
        self.incidents.keep(kept)

    async def digest(self, name: str | None, run: str) -> Digest | None:
        """The digest of a run: `now`, what is held of the job that ClusterSnapshot.job() finds; `first`, `last` or
        `incident:ID`, which are kept of it, or of the last run like it."""
        found = self.snapshot.job(name)
        job = self._windows.jobs.get(found.key) if found else None
        if found is None or job is None:
            return None
        if run == "now":
            return await asyncio.to_thread(digest_of, found.timings, **described(job, found))
        if run == FIRST and (first := self._pasts.first(found.key)):
            return first
        asked = AskedDigest(run, *found.key, found.started_at or 0.0, found.script, found.timings.world_size)
        return await asyncio.to_thread(self.incidents.digest, asked)

    async def _ask_for_readers(self) -> None:
        """Asks for the collectives of the ranks that somebody looks at."""
        answering = {agent.url for agent in self._agents if agent.state == "up"}
        for wanted in self._looked.wanted(answering, time.monotonic()):
            self._looked.keep(wanted.key, (await self._collectives.answers(wanted)).values())

    def _update_agents(self) -> None:
        """Takes over what discovery has found. Of an agent that is gone the jobs stay as long as any: they end, or
        another agent reports their ranks."""
        known = {agent.target: agent for agent in self._agents}
        wanted = dict.fromkeys(self._discovery.found.targets)
        for target in known.keys() - wanted.keys():
            self._windows.forget_agent(target.url)
            self._changes.forget(target.url)
        self._agents = [known.get(target) or AgentState(target) for target in wanted]

    async def _ask(self, slots: Slots, agent: AgentState) -> None:
        """Asks one agent, and takes its answer over at once: those of all agents together may have gigabytes."""
        async with slots.one() as slot:
            asked_at = time.monotonic()
            ranks = await self._ask_for_ranks(agent, slot)
            due = agent.report_due(time.monotonic(), self._settings.report_interval_seconds)
            due = due or agent.node in self._look_at
            report: Report | FetchFailure | None = None
            if due and not isinstance(ranks, FetchFailure):
                report = await self._get(f"{agent.url}/api/v1/report", validate_report, slot)
            if isinstance(report, Report):
                report = self._shared.of(report)
            before, now = agent.state, time.monotonic()
            agent.update_ranks(ranks, self._windows, now, asked_at)
            agent.update_report(report, now, self._settings.forget_after_seconds)
            if agent.state != before:
                self._changes.add(agent.url, agent.state, agent.reason)

    async def _ask_for_ranks(self, agent: AgentState, slot: Slot) -> RanksAnswer | FetchFailure:
        """The agent's ranks with the steps that are new; of an agent that was never asked before, with the last ones:
        which these are, it is asked first."""
        address, since = f"{agent.url}/api/v1/ranks", agent.since
        if agent.boot_id is None:
            found = await self._get(address, validate_ranks_answer, slot)
            if isinstance(found, FetchFailure) or not found.document.ranks:
                return found
            since = last_steps_since(found.document)
        return await self._get(f"{address}?since={since!r}", validate_ranks_answer, slot)

    async def _get(self, url: str, validate: Callable[[bytes], T], slot: Slot) -> T | FetchFailure:
        settings = self._settings
        body = await fetch(
            url,
            settings.timeout_seconds,
            settings.max_body_bytes,
            settings.target_server_name,
            slot=slot,
            kept=self.connections,
        )
        if isinstance(body, FetchFailure):
            return body
        try:
            # A thread takes longer to reach than a short answer to check.
            if len(body) <= _SHORT_BYTES:
                return validate(body)
            return await asyncio.get_running_loop().run_in_executor(self._checker, validate, body)
        except WireError as error:
            return FetchFailure("garbage", str(error))


def _with_others(jobs: tuple[JobSnapshot, ...], others: tuple[JobSnapshot, ...]) -> tuple[JobSnapshot, ...]:
    """The jobs that agents report, then those that Prometheus alone has."""
    held = {job.key for job in jobs}
    return (*jobs, *(job for job in others if job.key not in held))


def _node_sights(agents: Iterable[AgentState]) -> Iterator[NodeSight]:
    """The reports of the nodes whose agents answer; what a silent one said last is no news."""
    for agent in agents:
        if agent.state == "up" and (read := agent.read) and not agent.report_failure:
            yield read.sight


def _ras_answers(agents: Iterable[AgentState], now: float) -> Iterator[RasAnswer]:
    for agent in agents:
        if agent.ras and agent.answered_at is not None and agent.state == "up":
            yield RasAnswer(agent.name, agent.ras, now - agent.answered_at)
