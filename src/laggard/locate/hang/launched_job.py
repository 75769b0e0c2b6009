"""A job without hooks, as NCCL RAS tells of it, and its parts in words. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from laggard.kit.words import counted, ranks_text
from laggard.model import MAX_NAMED_RANKS
from laggard.wire.ranks import Launches, RasCommunicator, RasJob, RasRank

STOPPED_CONFIDENCE = 0.9
"""The confidence that a process hangs which the kernel calls stopped."""


class Device(NamedTuple):
    """One GPU of one process, in each communicator one rank."""

    host: str
    pid: int
    gpu: int


@dataclasses.dataclass(frozen=True)
class LaunchedJob:
    """A job as NCCL RAS tells of it. `nodes`: names of its hosts; a host that no agent is on has none."""

    report: RasJob
    nodes: Mapping[str, str]

    @property
    def world(self) -> RasCommunicator:
        return max(self.report.communicators, key=lambda it: it.size)

    def node(self, host: str) -> str:
        return self.nodes.get(host, host)


def device_of(rank: RasRank) -> Device:
    """NCCL RAS does not know the process of every rank that is missing: those are told apart by their numbers."""
    return Device(rank.host, rank.pid if rank.pid > 0 else -1 - rank.rank, rank.gpu)


def ranks_of(job: LaunchedJob, members: Iterable[Device]) -> tuple[int, ...]:
    """Their ranks in the largest communicator, as far as they are known."""
    known = {device_of(rank): rank.rank for rank in job.world.ranks}
    return tuple(sorted(known[device] for device in members if device in known))[:MAX_NAMED_RANKS]


def others(job: LaunchedJob, members: Iterable[Device]) -> tuple[int, ...]:
    """The ranks of the largest communicator that are not among `members`."""
    own = set(members)
    left = {rank.rank for rank in job.world.ranks if rank.missing or device_of(rank) in own}
    others = (rank for rank in range(job.world.size) if rank not in left)
    return tuple(rank for rank, _ in zip(others, range(MAX_NAMED_RANKS), strict=False))


def gpu_of(members: Mapping[Device, RasRank]) -> str | None:
    return str(next(iter(members)).gpu) if len(members) == 1 else None


def communicator_name(it: RasCommunicator) -> str:
    return f"communicator {it.id.partition('/')[0]} of {counted(it.size, 'rank')}"


def inner_text(members: Mapping[Device, RasRank], it: RasCommunicator) -> str:
    return f"{ranks_text(rank.rank for rank in members.values())} of communicator {it.id.partition('/')[0]}"


def processes_text(members: Iterable[Device]) -> str:
    pids = sorted({device.pid for device in members if device.pid > 0})
    if not pids:
        return "NCCL RAS does not know its process"
    more = f" and {len(pids) - 8} more" if len(pids) > 8 else ""
    gpus = sorted({device.gpu for device in members})
    return f"pid {', '.join(map(str, pids[:8]))}{more}, CUDA device {', '.join(map(str, gpus[:8]))}"


def launches_text(launches: Launches) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(launches.items(), key=lambda item: -item[1])[:5])
    return f"{counted(total(launches), 'collective')}" + (f" ({counts})" if len(launches) > 1 else "")


def total(launches: Launches) -> int:
    return sum(launches.values())
