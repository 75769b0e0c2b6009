"""Asks NCCL RAS about the jobs of this node that run without hooks, again and again, on a thread of its own.

A job pays for each question: its processes collect the answer from one another. So a job is asked rarely, and only
where it can tell what rank files do not: see RasAsker. Nothing of what comes back is trusted.
"""

from __future__ import annotations

import ipaddress
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from msgspec import structs

from laggard.agent.ranks.row import read_process_info
from laggard.agent.ras.answer import (
    UNKNOWN_HOST,
    Answer,
    Communicator,
    Here,
    History,
    parse,
    place_among_nodes,
    summarise,
)
from laggard.agent.sock_diag import listening_sockets
from laggard.nccl.ras import LIMITS, Limits, RasError, RasTooOld, ask
from laggard.wire.ranks import RasJob, RasSource

# The process that listens at NCCL RAS's address on this machine, according to the kernel. Every process of every NCCL
# job of one user does: the port is shared (SO_REUSEPORT), which Linux allows among sockets of one effective user alone.

_DISCARD_PORT: Final = 9


class Endpoint(NamedTuple):
    """An address that somebody listens at, and one of whose listeners a connection reaches."""

    host: str
    port: int
    owner: int  # uid


class Listener(NamedTuple):
    endpoint: Endpoint
    inode: int


def find_listeners(host: str, port: int) -> tuple[Listener, ...]:
    """Returns the sockets that listen at `host` and `port`, a name or address of this machine. None of them where the
    name is unknown. Raises OSError where the kernel does not tell who listens."""
    listening = listening_sockets(port)
    wanted = _addresses(host) if listening else frozenset()  # mostly nobody listens: then no name is looked up
    found = []
    for each in listening:
        if each.address in wanted or ipaddress.ip_address(each.address).is_unspecified:
            other = min(wanted, key=lambda it: (":" in it) != (":" in each.address)) if wanted else each.address
            endpoint = Endpoint(each.address if each.address in wanted else other, port, each.owner)
            found.append(Listener(endpoint, each.inode))
    return tuple(found)


def is_local(host: str) -> bool:
    """Returns whether `host`, an address in digits, is one of this machine's: to itself a machine sends from that very
    address. Nothing is sent. A link-local IPv6 address, which needs a zone, is not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return bool(probe.getsockname()[0] == host)
    except OSError:
        return False


def _addresses(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError:
        return frozenset()


# The processes, as the agent sees them, that NCCL RAS names on this node. A pid is taken only where the process is one
# of the user who listens: in a container with pids of its own it may be anybody's.

_SLURM_JOB: Final = re.compile(r"/job_(\d{1,12})(?:/|$)")
_MAX_PIDS: Final = 256


class Processes:
    """Remembers which pids were the user's processes, so that one that is gone can be told from one never seen."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._seen: frozenset[tuple[int, int]] = frozenset()
        self._job_names: dict[tuple[int, int], str] = {}

    def look(self, owner: int, pids: Iterable[int]) -> dict[int, str]:
        """Returns running, stopped or gone for each of `pids` that is, or was, a process of `owner`."""
        states, seen = {}, set()
        for pid in sorted(pid for pid in set(pids) if pid > 0)[:_MAX_PIDS]:
            info = read_process_info(pid, self._proc)
            if info and owner in info.uids:
                states[pid] = "stopped" if info.stopped else "running"
                self._remember_job(owner, pid, info.cgroup)
            elif (owner, pid) in self._seen:
                states[pid] = "gone"
            if pid in states:
                seen.add((owner, pid))
        self._seen = frozenset(seen | {key for key in self._seen if key[0] != owner or key[1] in states})
        self._job_names = {key: name for key, name in self._job_names.items() if key in self._seen}
        return states

    def job_name(self, owner: int, pids: Iterable[int]) -> str | None:
        """Returns the SLURM job that the cgroup of one of `pids` names; None where none does."""
        return next((self._job_names[owner, pid] for pid in sorted(pids) if (owner, pid) in self._job_names), None)

    def _remember_job(self, owner: int, pid: int, cgroup: str) -> None:
        found = _SLURM_JOB.search(cgroup)
        if found:
            self._job_names[owner, pid] = found[1]


log = logging.getLogger("laggard.agent")

MIN_INTERVAL_SECONDS: Final = 10.0
"""The least time between two questions."""

SETTLE_SECONDS: Final = 60.0
"""The time that a process has listened before it is asked, and that passes after an answer of a job that was still
being initialised: NCCL has crashed when it was asked during that (NVIDIA/nccl#1669)."""

SPREAD_SECONDS: Final = 60.0
"""The largest time that is added at random, so that not all nodes of a job ask it at once."""

RETRY_SECONDS: Final = 60.0
"""The time after a question without a good answer."""

REPORT_SECONDS: Final = 120.0
"""The largest age of an answer that is reported. Where several jobs listen, each question reaches one of them at
random."""

Hooked = Callable[[], Collection[tuple[int, int]]]
"""Returns user and pid of each running process that has a rank file."""


class Patience(NamedTuple):
    """The times that are waited: SETTLE_SECONDS, and SPREAD_SECONDS at most."""

    settle_seconds: float = SETTLE_SECONDS
    spread_seconds: float = SPREAD_SECONDS


PATIENCE: Final = Patience()


class _Job(NamedTuple):
    report: RasJob
    at: float
    place: int


class RasAsker:
    """`source()` is what is known. Not asked are: a user whose processes with rank files are as many as listen; sockets
    that have not listened for `settle_seconds`; NCCL before 2.28.7. Of the nodes of a job the first, in the order of
    ranks, asks each `interval_seconds`, and the one with k others before it (k + 1)² times as rarely: so a job is asked
    less than twice in an interval, however many nodes it has, and where the first is gone the next one goes on."""

    def __init__(
        self,
        host: str,
        port: int,
        interval_seconds: float,
        hooked: Hooked,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience = PATIENCE,
        limits: Limits = LIMITS,
    ) -> None:
        self._address = host, port
        self._interval_seconds = interval_seconds
        self._hooked = hooked
        self._clock = clock
        self._patience = patience
        self._limits = limits
        self._ready_at: dict[int, float] = {}  # by a listener's inode
        self._too_old: set[int] = set()  # inodes
        self._next_at = 0.0
        self._turn = 0
        self._history: dict[int, History] = {}  # by owner
        self._processes = Processes()
        self._jobs: dict[tuple[int, str], _Job] = {}
        self._state = "no_job", ""
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="nccl-ras", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def source(self) -> RasSource:
        """The source as far as it is known now. Safe to call from any thread: what it reads is replaced as a whole."""
        now, (state, reason) = self._clock(), self._state
        jobs = tuple(
            structs.replace(job.report, age_seconds=round(now - job.at, 3))
            for job in self._jobs.values()
            if now - job.at <= REPORT_SECONDS
        )
        return RasSource(state, reason, jobs)

    def step(self) -> None:
        """Looks who listens, and asks once where it is time."""
        now = self._clock()
        try:
            listeners = find_listeners(*self._address)
        except OSError as error:
            self._state = "failed", f"the kernel does not tell who listens: {error.strerror or error}"
            return
        self._note_listeners(listeners, now)
        hooked = self._hooked() if listeners else ()  # it reads every rank file
        candidates = _without_hooked(listeners, hooked)
        ready = {it.endpoint for it in candidates if self._is_ready(it.endpoint, candidates, now)}
        if not candidates:
            self._state = ("hooked", "all that listen have rank files") if listeners else ("no_job", "nobody listens")
        elif not ready:
            old = any(it.inode in self._too_old for it in candidates)
            too_old = ("too_old", "NCCL (or RCCL) there is older than 2.28.7 and is not asked")
            self._state = too_old if old else ("waiting", "not asked while it may be in its initialisation")
        elif now >= self._next_at:
            self._turn += 1
            self._ask(sorted(ready)[self._turn % len(ready)], listeners, hooked)

    def _run(self) -> None:
        while not self._stopped.wait(MIN_INTERVAL_SECONDS / 2):
            try:
                self.step()
            except Exception:  # the agent goes on
                log.exception("a defect in laggard, while asking NCCL RAS")
                self._state = "failed", "a defect in laggard: the agent's log has the traceback"

    def _note_listeners(self, listeners: Iterable[Listener], now: float) -> None:
        inodes = {it.inode for it in listeners}
        fresh = {inode: now + self._patience.settle_seconds + self._spread() for inode in inodes - set(self._ready_at)}
        self._ready_at = fresh | {inode: at for inode, at in self._ready_at.items() if inode in inodes}
        self._too_old &= inodes
        owners = {it.endpoint.owner for it in listeners}
        self._history = {owner: history for owner, history in self._history.items() if owner in owners}
        self._jobs = {key: job for key, job in self._jobs.items() if now - job.at <= REPORT_SECONDS}

    def _spread(self) -> float:
        return random.uniform(0.0, self._patience.spread_seconds)

    def _is_ready(self, endpoint: Endpoint, listeners: Iterable[Listener], now: float) -> bool:
        """Whether all that a connection may reach have listened for long enough, and none is known to be too old."""
        inodes = {it.inode for it in listeners if it.endpoint == endpoint}
        return not inodes & self._too_old and all(self._ready_at[inode] <= now for inode in inodes)

    def _ask(self, endpoint: Endpoint, listeners: Iterable[Listener], hooked: Collection[tuple[int, int]]) -> None:
        inodes = {it.inode for it in listeners if it.endpoint == endpoint}
        try:
            answer = parse(ask(endpoint.host, endpoint.port, self._limits))
        except RasTooOld as error:
            self._too_old |= inodes
            self._state = "too_old", str(error)
            return
        except RasError as error:
            self._state = "failed", str(error)
            self._next_at = self._clock() + RETRY_SECONDS
            return
        place = self._take(answer, endpoint.owner, hooked, self._clock())
        pause = max(self._interval_seconds * (place + 1) ** 2, SETTLE_SECONDS if answer.starting else 0.0)
        self._next_at = self._clock() + pause
        self._state = "asked", ""

    def _take(self, answer: Answer, owner: int, hooked: Collection[tuple[int, int]], now: float) -> int:
        """Keeps what the answer says. Returns this node's place among the nodes of all jobs that are asked here: where
        it is the first in any of them, it asks as often as the first."""
        here = self._here(answer, owner)
        answer = _unhooked(answer, here.hosts, {pid for user, pid in hooked if user == owner})
        history = self._history.get(owner, History()).after(answer, now)
        self._history = {**self._history, owner: history}
        if answer.communicators:
            report = summarise(answer, history, here, owner)
            job = _Job(report, now, place_among_nodes(answer, here.hosts))
            self._jobs = {**self._jobs, (owner, report.job_id): job}
        return min((job.place for job in self._jobs.values()), default=0)

    def _here(self, answer: Answer, owner: int) -> Here:
        hosts = {member.host for it in answer.communicators for member in it.members}
        local = frozenset(host for host in hosts if host not in ("", UNKNOWN_HOST) and is_local(host))
        pids = set().union(*(_pids_on(it, local) for it in answer.communicators))
        processes = self._processes.look(owner, pids)
        return Here(local, processes, self._processes.job_name(owner, pids))


def _without_hooked(listeners: Collection[Listener], hooked: Collection[tuple[int, int]]) -> tuple[Listener, ...]:
    """The listeners of users with more of them than processes that have rank files."""
    listening: dict[int, int] = {}
    for it in listeners:
        listening[it.endpoint.owner] = listening.get(it.endpoint.owner, 0) + 1
    with_files = {owner: sum(user == owner for user, _ in hooked) for owner in listening}
    return tuple(it for it in listeners if listening[it.endpoint.owner] > with_files[it.endpoint.owner])


def _unhooked(answer: Answer, local_hosts: frozenset[str], hooked_pids: Collection[int]) -> Answer:
    """The answer without the communicators all of whose processes on this node have rank files, and without any where
    no process on this node is without one."""
    local = {it.id: _pids_on(it, local_hosts) for it in answer.communicators}
    if hooked_pids and not any(pids - set(hooked_pids) for pids in local.values()):
        return structs.replace(answer, communicators=())
    kept = (it for it in answer.communicators if not local[it.id] or local[it.id] - set(hooked_pids))
    return structs.replace(answer, communicators=tuple(kept))


def _pids_on(communicator: Communicator, hosts: Collection[str]) -> set[int]:
    return {member.pid for member in communicator.members if member.host in hosts}
