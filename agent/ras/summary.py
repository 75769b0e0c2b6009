"""One answer of NCCL RAS, and what changed since those before it, as the agent reports it. Pure.

Of a job with thousands of ranks nearly all are alike. Listed are, in each of their communicators, the devices of this
node, those behind in any communicator, those with an error, and the ranks that are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import structs

from laggard.agent.ras.answer import UNKNOWN_HOST, Answer, Communicator, Member, Rank
from laggard.agent.ras.history import Counts, Device, History, Still, counts_of
from laggard.wire.ras import RasCommunicator, RasJob, RasRank

MAX_LISTED: Final = 1024
"""The most ranks of communicators in one job's report."""

MAX_COMMUNICATORS: Final = 256
"""The most communicators in one job's report: the largest, those with something wrong, then the next in size."""


class Here(NamedTuple):
    """The knowledge of the agent about its own node: which of the hosts are its addresses, what it sees of the
    processes there (running, stopped, gone), by pid, and the name of the job, None where nothing tells it."""

    hosts: frozenset[str]
    processes: Mapping[int, str]
    job_name: str | None


def summarise(answer: Answer, history: History, here: Here, owner: int) -> RasJob:
    """Returns the job that the answer is about, as of that answer. `history` ends with it; `owner` is a uid."""
    listed = _listed_devices(answer, here)
    reports = [_report(it, history, here, listed) for it in answer.communicators]
    world = largest(answer)
    shown = sorted(reports, key=lambda it: (world is None or it.id != world.id, *_importance(it)))[:MAX_COMMUNICATORS]
    return RasJob(
        job_id=here.job_name or job_name(answer),
        owner=owner,
        nccl_version=answer.nccl_version,
        age_seconds=0.0,
        local_hosts=tuple(sorted(here.hosts)),
        communicators=tuple(_cut(shown)),
    )


def largest(answer: Answer) -> Communicator | None:
    """The communicator with the most ranks; of several the one with the first hash."""
    return min(answer.communicators, key=lambda it: (-it.size, it.id), default=None)


def job_name(answer: Answer) -> str:
    """The name of a job that no scheduler named: after its largest communicator, which all its nodes see."""
    world = largest(answer)
    return f"nccl-{world.hash.removeprefix('0x')}" if world else "nccl"


def place_among_nodes(answer: Answer, local_hosts: frozenset[str]) -> int:
    """The number of the job's hosts that come before this node, in the order of their lowest ranks that answered."""
    world = largest(answer)
    in_order = dict.fromkeys(rank.host for rank in sorted(world.ranks, key=lambda it: it.rank)) if world else {}
    places = [place for place, host in enumerate(in_order) if host in local_hosts]
    return min(places, default=len(in_order))


def front(communicator: Communicator) -> Counts:
    """The counts of the ranks that have launched the most collectives; where those differ, the most frequent ones."""
    counts = Counter(counts_of(rank.collective_counts) for rank in communicator.ranks)
    return max(counts, key=lambda each: (sum(count for _, count in each), counts[each]), default=())


def _device(rank: Member) -> Device:
    return Device(rank.host, rank.pid, rank.cuda_dev)


def _listed_devices(answer: Answer, here: Here) -> frozenset[Device]:
    listed: set[Device] = set()
    for communicator in answer.communicators:
        ahead = front(communicator)
        listed.update(_device(rank) for rank in communicator.missing_ranks)
        for rank in communicator.ranks:
            if rank.host in here.hosts or rank.status.async_error or counts_of(rank.collective_counts) != ahead:
                listed.add(_device(rank))
    return frozenset(listed)


def _report(communicator: Communicator, history: History, here: Here, listed: frozenset[Device]) -> RasCommunicator:
    ahead, still = front(communicator), history.communicators[communicator.id].still
    return RasCommunicator(
        id=communicator.id,
        size=communicator.size,
        answered=len(communicator.ranks),
        launches=dict(ahead),
        at_front=sum(counts_of(rank.collective_counts) == ahead for rank in communicator.ranks),
        unchanged_seconds=round(still.seconds, 3),
        readings=still.readings,
        ranks=tuple(_rows(communicator, history, here, listed)),
        starting=any(rank.status.starting for rank in communicator.ranks),
        ending=any(rank.status.ending for rank in communicator.ranks),
    )


def _rows(communicator: Communicator, history: History, here: Here, listed: frozenset[Device]) -> Iterator[RasRank]:
    """The ranks to be listed: missing ones first, then those that are the furthest behind."""
    missing = history.communicators[communicator.id].missing
    for absent in communicator.missing_ranks:
        row = _row(absent, here, missing[absent.rank])
        dead, unresponsive = absent.status.considered_dead, absent.status.unresponsive
        yield RasRank(*row, missing=True, dead=dead, unresponsive=unresponsive, process=_process(absent, here))
    chosen = (rank for rank in communicator.ranks if _device(rank) in listed)
    for rank in sorted(chosen, key=lambda it: (sum(it.collective_counts.values()), it.rank)):
        row = _row(rank, here, history.devices[_device(rank)])
        yield RasRank(*row, async_error=rank.status.async_error, process=_process(rank, here))


class _Row(NamedTuple):
    """The fields that every rank's row has, in the order of RasRank's."""

    rank: int
    host: str
    pid: int
    gpu: int
    launches: dict[str, int]
    unchanged_seconds: float
    readings: int


def _row(rank: Member, here: Here, still: Still) -> _Row:
    launches = dict(counts_of(rank.collective_counts)) if isinstance(rank, Rank) else {}
    host = rank.host or UNKNOWN_HOST
    return _Row(rank.rank, host, rank.pid, rank.cuda_dev, launches, round(still.seconds, 3), still.readings)


def _process(rank: Member, here: Here) -> str:
    return here.processes.get(rank.pid, "") if rank.host in here.hosts else ""


def _importance(it: RasCommunicator) -> tuple[bool, int, str]:
    healthy = it.at_front == it.size and not any(rank.async_error for rank in it.ranks)
    return healthy, -it.size, it.id


def _cut(communicators: list[RasCommunicator]) -> Iterator[RasCommunicator]:
    """The communicators with MAX_LISTED ranks together, and in each how many are left out."""
    room = MAX_LISTED
    for it in communicators:
        left_out = max(0, len(it.ranks) - room)
        yield structs.replace(it, ranks=it.ranks[:room], left_out=left_out)
        room = max(0, room - len(it.ranks))
