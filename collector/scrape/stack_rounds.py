"""Chooses the ranks that are asked for stacks, and asks their agents beside the rounds of scrapes: bounded in how
often, in ranks and bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from laggard.collector.jobs.job import MAX_BYTES, Job
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape.validation import validate_asked, validate_stacks
from laggard.kit.address import ip_of
from laggard.model import Culprit, JobKey, Location
from laggard.stacks.ask import SAMPLES, SECONDS
from laggard.stacks.sampled import Sampled
from laggard.wire import WireError
from laggard.wire.stacks import MissingStacks, StacksAsked

# The ranks of a job that are asked for their stacks: those that the verdict names with two peers each, and of a job
# that stands still all. Pure but for when which was asked.

SLOW_KINDS: Final = frozenset(("slow_compute", "slow_host", "slow_input", "uneven_work", "busy_threads"))
_STILL_KINDS: Final = frozenset(("hung", "dead"))
_STILL_NOTES: Final = frozenset(("deadlock", "mismatch", "hang", "waiting"))
"""The notes of a job that stands still and has no culprit."""

ASK_SECONDS: Final = 300.0
"""The least time between two asks about one culprit of a job."""

LOOK_SECONDS: Final = 30.0
"""The time between two looks at what the ranks of a job that stands still took by themselves, while some have nothing
yet: they take it after half a minute."""

MAX_CULPRITS: Final = 4
MAX_RANKS: Final = 4096
PEERS: Final = 2


class Wanted(NamedTuple):
    """`samples`: whether the ranks are asked to sample themselves; else what they took is read."""

    key: JobKey
    ranks: tuple[int, ...]
    samples: bool


class StackChoice:
    """Remembers which culprit was asked about, and when (monotonic seconds)."""

    def __init__(self) -> None:
        self._asked: dict[JobKey, dict[tuple[str, tuple[int, ...]], float]] = {}

    def forget(self, jobs: Collection[JobKey]) -> None:
        """All but these jobs."""
        self._asked = {key: asked for key, asked in self._asked.items() if key in jobs}

    def wanted(
        self, key: JobKey, job: Job, location: Location, answering: Collection[str], now: float
    ) -> Wanted | None:
        """The question to the job's ranks that is due now; None: none is."""
        if is_still(location):
            return self._of_still(key, job, answering, now)
        asked = self._asked.setdefault(key, {})
        slow = [it for it in location.culprits if it.kind in SLOW_KINDS and it.ranks][:MAX_CULPRITS]
        due = [it for it in slow if now - asked.get(_name(it), now - ASK_SECONDS) >= ASK_SECONDS]
        if not due or not job.running:
            return None
        for it in due:
            asked[_name(it)] = now
        for name, at in list(asked.items()):
            if now - at > ASK_SECONDS:
                del asked[name]
        accused = {rank for it in location.culprits for rank in it.ranks}
        able = {number for number in job.ranks if _answers(job, number, answering)}
        suspects = [rank for it in due if (rank := next((each for each in it.ranks if each in able), None)) is not None]
        peers = [peer for rank in suspects for peer in peers_of(job, rank, able - accused)]
        return Wanted(key, tuple(dict.fromkeys((*suspects, *peers))), True) if suspects and peers else None

    def _of_still(self, key: JobKey, job: Job, answering: Collection[str], now: float) -> Wanted | None:
        able = sorted(number for number in job.ranks if job.ranks[number].source in answering)[:MAX_RANKS]
        missing = tuple(number for number in able if number not in job.stacks)
        asked = self._asked.setdefault(key, {})
        every = LOOK_SECONDS if missing else ASK_SECONDS
        if not able or now - asked.get(_STILL, now - every) < every:
            return None
        asked[_STILL] = now
        return Wanted(key, missing or tuple(able), False)


_STILL: Final = ("still", ())


def is_still(location: Location) -> bool:
    """Whether the job stands still: a rank hangs or died, or all wait."""
    if location.culprits:
        kinds = {it.kind for it in location.culprits}
        return bool(kinds & _STILL_KINDS) and not kinds & SLOW_KINDS
    return any(note.kind in _STILL_NOTES for note in location.notes)


def peers_of(job: Job, rank: int, among: Collection[int]) -> list[int]:
    """Ranks that do the same work as far as that is known, by their collectives: the nearest by number."""
    own = _work(job, rank)
    return sorted(set(among) - {rank}, key=lambda it: (_work(job, it) != own, abs(it - rank), it))[:PEERS]


def _work(job: Job, rank: int) -> frozenset[tuple[str, str]]:
    return frozenset((total.op, total.group) for total in job.ranks[rank].newest.collectives)


def _answers(job: Job, rank: int, answering: Collection[str]) -> bool:
    window = job.ranks[rank]
    return window.newest.state == "running" and window.source in answering


def _name(culprit: Culprit) -> tuple[str, tuple[int, ...]]:
    return culprit.kind, culprit.ranks


log = logging.getLogger("laggard.collector")

MAX_TASKS: Final = 8
"""The most jobs that are asked at once."""

MAX_AT_ONCE: Final = 16
"""The most agents that are asked at once, of all jobs."""

MAX_RANKS_A_REQUEST: Final = 64
MAX_BODY_BYTES: Final = 12 << 20
"""An agent answers with 8 MiB at most; what encodes it may differ."""

_LOOKS: Final = 8
_LOOK_SECONDS: Final = 3.0
"""The time between two looks for the answers, which come up to half a minute late where a rank has answered another ask
just before."""

_SILENT: Final = "its agent does not answer"
_REASONS: Final = {
    "HTTP 401": "its agent has another token than the collector's stacks_token_file",
    "HTTP 403": "stacks are off at its agent: it needs the same stacks_token_file",
    "HTTP 404": "its agent does not see the rank any more",
    "HTTP 429": "its node was asked a moment ago",
    "HTTP 503": "its agent cannot write the ask: its log, or the agent itself, says why",
}


class _Answers(NamedTuple):
    found: Mapping[int, Sampled]
    missing: tuple[MissingStacks, ...]


class StackRounds:
    """`token`: tells the one to send to agents; None: none is asked. To be used on the event loop."""

    def __init__(
        self, windows: JobWindows, token: Callable[[], str] | None, timeout_seconds: float, server_name: str = ""
    ) -> None:
        self._windows = windows
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._server_name = server_name
        self._choice = StackChoice()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._tasks: dict[JobKey, asyncio.Task[None]] = {}

    def look(self, locations: Mapping[JobKey, Location], answering: Collection[str], now: float) -> None:
        """Begins to ask where a verdict names a slow rank, or a job stands still: all agents where there is a token,
        else this machine's about the jobs of this collector's own user."""
        self._choice.forget(self._windows.jobs.keys())
        near = answering if self._token else {url for url in answering if is_near(url)}
        for key, location in locations.items():
            job = self._windows.jobs.get(key)
            if job is None or key in self._tasks or len(self._tasks) >= MAX_TASKS:
                continue
            if self._token is None and key.owner != os.geteuid():
                continue
            wanted = self._choice.wanted(key, job, location, near, now)
            if wanted is not None:
                self._begin(key, self._gather(job, wanted))

    async def ask(
        self, key: JobKey, ranks: Sequence[int], samples: int, seconds: float, answering: Collection[str]
    ) -> StacksAsked:
        """Asks ranks of a job, all where none is named, and begins to gather what they answer. `answering`: the URLs of
        the agents that answered last."""
        job = self._windows.jobs[key]
        numbers = sorted(job.ranks) if not ranks else list(ranks)
        silent = {rank for rank in numbers if rank in job.ranks and job.ranks[rank].source not in answering}
        asked, missing = await self._ask_agents(
            job, key, [rank for rank in numbers if rank not in silent], samples, seconds
        )
        missing += [MissingStacks(rank, _SILENT) for rank in sorted(silent)]
        if asked:
            self._begin(key, self._collect(job, key, asked, seconds))
        told = tuple(sorted(rank for it in asked.values() for rank in it.ranks))
        idents = tuple(ident for it in asked.values() for ident in it.idents)
        return StacksAsked(key.owner, key.job_id, idents, told, seconds, tuple(missing))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _begin(self, key: JobKey, work: Coroutine[None, None, None]) -> None:
        """Takes the place of what is gathered for the job already: somebody waits for the newer ask."""
        before = self._tasks.pop(key, None)
        if before is not None:
            before.cancel()
        task: asyncio.Task[None] = asyncio.create_task(_safely(work))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._tasks.pop(key, None) if self._tasks.get(key) is done else None)

    async def _gather(self, job: Job, wanted: Wanted) -> None:
        if not wanted.samples:
            await self._read(job, wanted.key, job.by_agent(wanted.ranks))
            return
        asked, _ = await self._ask_agents(job, wanted.key, wanted.ranks, SAMPLES, SECONDS)
        await self._collect(job, wanted.key, asked, SECONDS)

    async def _ask_agents(
        self, job: Job, key: JobKey, ranks: Sequence[int], samples: int, seconds: float
    ) -> tuple[dict[str, StacksAsked], list[MissingStacks]]:
        agents = job.by_agent(ranks)
        unknown = [MissingStacks(rank, "no agent reports it") for rank in ranks if rank not in job.ranks]
        answers = await asyncio.gather(
            *(self._ask_agent(url, key, of_agent, samples, seconds) for url, of_agent in agents.items())
        )
        asked = {url: each for url, each in zip(agents, answers, strict=True) if isinstance(each, StacksAsked)}
        missing = [it for each in asked.values() for it in each.missing]
        for url, each in zip(agents, answers, strict=True):
            if isinstance(each, str):
                missing += [MissingStacks(rank, each) for rank in agents[url]]
        return asked, [*unknown, *missing]

    async def _ask_agent(
        self, url: str, key: JobKey, ranks: tuple[int, ...], samples: int, seconds: float
    ) -> StacksAsked | str:
        """The agent's answer, or why there is none."""
        address = f"{_address(url, '/ask', key, ranks)}&samples={samples}&seconds={seconds!r}"
        body = await self._fetch(address, "POST")
        if isinstance(body, FetchFailure):
            return _reason(body)
        try:
            return validate_asked(body, key.owner, key.job_id, ranks)
        except WireError as error:
            return f"its agent's answer is none: {error}"

    async def _collect(self, job: Job, key: JobKey, asked: Mapping[str, StacksAsked], seconds: float) -> None:
        """Waits until the ranks have answered, or too long."""
        left = {url: it.ranks for url, it in asked.items()}
        idents = {ident for it in asked.values() for ident in it.idents}
        await asyncio.sleep(seconds + 1.0)
        for _ in range(_LOOKS):
            found = await self._read(job, key, left)
            answered = {rank for rank, each in found.items() if each.ask in idents}
            left = {url: tuple(rank for rank in ranks if rank not in answered) for url, ranks in left.items()}
            left = {url: ranks for url, ranks in left.items() if ranks}
            if not left:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _read(self, job: Job, key: JobKey, agents: Mapping[str, tuple[int, ...]]) -> Mapping[int, Sampled]:
        """Reads what these ranks have taken, hands it to the job, and returns it."""
        requests = [
            self._read_agent(url, key, ranks[place : place + MAX_RANKS_A_REQUEST])
            for url, ranks in agents.items()
            for place in range(0, len(ranks), MAX_RANKS_A_REQUEST)
        ]
        answers = await asyncio.gather(*requests)
        found = {rank: each for answer in answers for rank, each in answer.found.items()}
        missing = {it.rank: it for answer in answers for it in answer.missing}
        if self._windows.jobs.get(key) is job:  # no other run took its place meanwhile
            await asyncio.to_thread(job.held_stacks.add, found, missing, time.monotonic())
            drop_beyond(self._windows.jobs.values(), MAX_BYTES)
        return found

    async def _read_agent(self, url: str, key: JobKey, ranks: tuple[int, ...]) -> _Answers:
        body = await self._fetch(_address(url, "", key, ranks), "GET")
        if isinstance(body, FetchFailure):
            return _Answers({}, tuple(MissingStacks(rank, _reason(body)) for rank in ranks))
        try:
            return _Answers(*await asyncio.to_thread(validate_stacks, body, key.owner, key.job_id, ranks))
        except WireError as error:
            log.debug("stacks of %s at %s: %s", key, url, error)
            return _Answers({}, ())

    async def _fetch(self, address: str, method: str) -> bytes | FetchFailure:
        token = self._token() if self._token else ""
        async with self._slots:
            return await fetch(
                address, self._timeout_seconds, MAX_BODY_BYTES, self._server_name, method=method, token=token
            )


def is_near(url: str) -> bool:
    """Whether it is an address of the loopback interface, over which an agent knows who asks."""
    host = urlsplit(url).hostname or ""
    found = ip_of(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def drop_beyond(jobs: Iterable[Job], most: int) -> None:
    """Drops the stacks of those jobs whose are the oldest, until all take at most `most` bytes."""
    held = sorted((job for job in jobs if job.stacks), key=lambda job: job.held_stacks.updated_at)
    total = sum(job.held_stacks.bytes for job in held)
    for job in held:
        if total <= most:
            return
        total -= job.held_stacks.bytes
        job.held_stacks.clear()


async def _safely(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except Exception:  # one job's failure must not be the others'
        log.exception("a defect in laggard: these stacks were lost")


def _address(url: str, path: str, key: JobKey, ranks: Iterable[int]) -> str:
    job = quote(key.job_id, safe="")
    return f"{url}/api/v1/stacks{path}?owner={key.owner}&job={job}&ranks={','.join(map(str, ranks))}"


def _reason(failure: FetchFailure) -> str:
    return _REASONS.get(failure.reason, f"{_SILENT}: {failure.reason}")
