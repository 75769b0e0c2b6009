"""The changes from one answer of NCCL RAS to the next, which tell since when each rank's launch counts stand still.
Pure.

Times are monotonic seconds of the agent. A count that differs between ranks says nothing by itself: the ranks are read
one after the other while they go on. Counts that are the same in several answers do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from laggard.agent.ras.answer import Answer, Communicator

Counts = tuple[tuple[str, int], ...]

FORGET_SECONDS: Final = 3600.0
"""The time after which a communicator that no answer has had is gone."""

MAX_RANKS: Final = 65_536
"""The most ranks of communicators that are remembered."""


class Device(NamedTuple):
    """One GPU of one process: what launches. In each communicator it is one rank."""

    host: str
    pid: int
    gpu: int


class Still(NamedTuple):
    """Something has been the same in `readings` answers, of which the first came at `since` and the last at `until`."""

    since: float
    until: float
    readings: int = 1

    def again(self, now: float) -> Still:
        return Still(self.since, now, self.readings + 1)

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclasses.dataclass(frozen=True)
class Seen:
    """A communicator in the last answer that had it. `counts` is by rank, None for a rank that was missing."""

    counts: Mapping[int, Counts | None]
    still: Still
    missing: Mapping[int, Still]


@dataclasses.dataclass(frozen=True)
class History:
    """Communicators by id, and devices."""

    communicators: Mapping[str, Seen] = dataclasses.field(default_factory=dict)
    devices: Mapping[Device, Still] = dataclasses.field(default_factory=dict)

    def after(self, answer: Answer, now: float) -> History:
        """The history with an answer that came at `now`."""
        kept = {name: seen for name, seen in self.communicators.items() if _is_recent(seen.still, now)}
        changed: set[Device] = set()
        for communicator in answer.communicators:
            seen, moved = _seen(communicator, kept.get(communicator.id), now)
            kept[communicator.id] = seen
            changed |= moved
        devices = {device: still for device, still in self.devices.items() if _is_recent(still, now)}
        devices |= {device: self._device(device, device in changed, now) for device in _devices(answer)}
        return History(_limited(kept, answer), devices)

    def _device(self, device: Device, changed: bool, now: float) -> Still:
        before = self.devices.get(device)
        return Still(now, now) if before is None or changed else before.again(now)


def counts_of(launches: Mapping[str, int]) -> Counts:
    return tuple(sorted((name, count) for name, count in launches.items() if count))


def _seen(communicator: Communicator, before: Seen | None, now: float) -> tuple[Seen, set[Device]]:
    """The communicator as it is now, and the devices whose counts in it changed."""
    counts: dict[int, Counts | None] = {rank.rank: counts_of(rank.collective_counts) for rank in communicator.ranks}
    known = before.counts if before else {}
    moved = {
        Device(rank.host, rank.pid, rank.cuda_dev)
        for rank in communicator.ranks
        if known.get(rank.rank) is not None and known[rank.rank] != counts[rank.rank]
    }
    missing = {rank.rank: Still(now, now) for rank in communicator.missing_ranks}
    if before:
        missing |= {number: before.missing[number].again(now) for number in missing if number in before.missing}
    still = Still(now, now) if before is None or moved else before.still.again(now)
    return Seen(counts | dict.fromkeys(missing), still, missing), moved


def _devices(answer: Answer) -> Iterable[Device]:
    return {
        Device(rank.host, rank.pid, rank.cuda_dev)
        for communicator in answer.communicators
        for rank in communicator.ranks
    }


def _is_recent(still: Still, now: float) -> bool:
    return now - still.until < FORGET_SECONDS


def _limited(kept: Mapping[str, Seen], answer: Answer) -> Mapping[str, Seen]:
    """Only those of the newest answer, where all together have too many ranks."""
    if sum(len(seen.counts) for seen in kept.values()) <= MAX_RANKS:
        return kept
    newest = {communicator.id for communicator in answer.communicators}
    return {name: seen for name, seen in kept.items() if name in newest}
