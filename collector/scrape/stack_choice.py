"""The ranks of a job that are asked for their stacks: those that the verdict names with two peers each, and of a job
that stands still all. Pure but for when which was asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from laggard.collector.jobs.job import Job, JobKey
from laggard.model import Culprit, Location

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


def by_agent(job: Job, ranks: Iterable[int]) -> dict[str, tuple[int, ...]]:
    """The ranks by the URL of the agent that reports them."""
    found: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        if rank in job.ranks:
            source = job.ranks[rank].source
            found[source] = (*found.get(source, ()), rank)
    return found
