"""A step of a job as a graph of events: who waits for whom, and how long each part takes. Pure.

An event happens once all events before it have, and its own duration has passed: times are sums and maxima, so that a
step of all ranks is computed level by level, and what a fault costs is the same step without it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard_bench.cluster import Cluster, Element, transfer_seconds

Times = NDArray[np.float64]

GPU, HOST, INPUT, TRANSFER, FREE = range(5)
"""What an event's duration is: a GPU's work, the host's, the wait for input, a transfer, or nothing."""
LAUNCH_SECONDS = 12e-6


class Group(NamedTuple):
    """A process group."""

    name: str
    role: str
    ranks: tuple[int, ...]


class SpanRecord(NamedTuple):
    rank: int
    phase: str
    micro: int
    start: int
    end: int


class CallRecord(NamedTuple):
    """A collective of one rank: its events. `wait`: the event at which the rank began to wait; `ready`, `done`: those
    at which its kernel began and ended, which for one that is hidden behind work is before `end`."""

    rank: int
    group: str
    op: str
    peer: int
    size: int
    start: int
    end: int
    wait: int
    ready: int
    done: int


class Transfer(NamedTuple):
    """A transfer among `members`: the event of each one's end."""

    members: tuple[int, ...]
    op: str
    size: float
    events: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Handle:
    """A collective that runs beside the work: by rank, its end, and where its record begins."""

    group: Group
    op: str
    size: int
    ends: dict[int, int]
    starts: dict[int, int]
    ready: dict[int, int]


class Builder:
    """Builds the graph of one step. `main` and `comm`: by rank, the last event of its two streams."""

    def __init__(self, cluster: Cluster, ranks: Sequence[int], work: Callable[[int], float] = lambda rank: 1.0) -> None:
        self.cluster, self.ranks = cluster, tuple(ranks)
        self._work = work
        self.before: list[Sequence[int]] = []
        self.duration: list[float] = []
        self.kind: list[int] = []
        self.owner: list[int] = []
        self.micro: list[int] = []
        self.level: list[int] = []
        self.spans: list[SpanRecord] = []
        self.calls: list[CallRecord] = []
        self.transfers: list[Transfer] = []
        self.groups: dict[str, Group] = {}
        self.main = {rank: self._event((), 0.0, FREE, rank) for rank in self.ranks}
        self.comm = {rank: self._event((), 0.0, FREE, rank) for rank in self.ranks}
        self.first = dict(self.main)
        self._seconds: dict[tuple[Any, ...], list[float]] = {}

    def _event(self, before: Sequence[int], duration: float, kind: int, owner: int, micro: int = 0) -> int:
        self.level.append(1 + max(map(self.level.__getitem__, before)) if before else 0)
        self.before.append(before)
        self.duration.append(duration)
        self.kind.append(kind)
        self.owner.append(owner)
        self.micro.append(micro)
        return len(self.before) - 1

    def group(self, role: str, ranks: Iterable[int], suffix: str = "") -> Group:
        members = tuple(sorted(ranks))
        name = f"{role}{suffix}:{_runs(members)}"
        return self.groups.setdefault(name, Group(name, role, members))

    def compute(self, ranks: Iterable[int], seconds: float, kind: int = GPU, micro: int = 0) -> None:
        """Each rank's own work, on its main stream."""
        for rank in ranks:
            scaled = seconds * self._work(rank) if kind == GPU else seconds
            self.main[rank] = self._event((self.main[rank],), scaled, kind, rank, micro)

    def phase(self, ranks: Iterable[int], name: str, begun: Mapping[int, int], micro: int = 0) -> None:
        """Ends a phase that began at each rank's event in `begun`."""
        self.spans += [SpanRecord(rank, name, micro, begun[rank], self.main[rank]) for rank in ranks]

    def begun(self, ranks: Iterable[int]) -> dict[int, int]:
        return {rank: self.main[rank] for rank in ranks}

    def _transfer(self, group: Group, op: str, size: float, ready: Sequence[int]) -> dict[int, int]:
        key = (group.ranks, op, size)
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = transfer_seconds(self.cluster, group.ranks, op, size)
        all_there = self._event(tuple(ready), 0.0, FREE, group.ranks[0])
        ends = [
            self._event((all_there,), each, TRANSFER, rank) for rank, each in zip(group.ranks, seconds, strict=True)
        ]
        self.transfers.append(Transfer(group.ranks, op, size, tuple(ends)))
        return dict(zip(group.ranks, ends, strict=True))

    def sync(self, group: Group, op: str, size: float) -> None:
        """A collective that each rank waits for at once."""
        if len(group.ranks) < 2:
            return
        begun = self.begun(group.ranks)
        ends = self._transfer(group, op, size, [self.main[rank] for rank in group.ranks])
        for rank in group.ranks:
            start, end = begun[rank], ends[rank]
            self.calls.append(CallRecord(rank, group.name, op, -1, int(size), start, end, start, start, end))
            self.main[rank] = ends[rank]

    def silent(self, group: Group) -> None:
        """The ranks wait for one another where nothing records it."""
        all_there = self._event(tuple(self.main[rank] for rank in group.ranks), 0.0, FREE, group.ranks[0])
        for rank in group.ranks:
            self.main[rank] = self._event((all_there,), LAUNCH_SECONDS, FREE, rank)

    def launch(self, group: Group, op: str, size: float) -> Handle | None:
        """A collective on a stream of its own: it begins when that stream has done what came before."""
        if len(group.ranks) < 2:
            return None
        ready = [self._event((self.main[rank], self.comm[rank]), 0.0, FREE, rank) for rank in group.ranks]
        ends = self._transfer(group, op, size, ready)
        self.comm.update(ends)
        by_rank = dict(zip(group.ranks, ready, strict=True))
        return Handle(group, op, int(size), ends, self.begun(group.ranks), by_rank)

    def wait(self, handle: Handle | None, starts: Mapping[int, int] | None = None) -> None:
        """The main stream waits for it. `starts`: where its record begins, if not at the launch, as DDP's do."""
        if handle is None:
            return
        for rank in handle.group.ranks:
            before = self.main[rank]
            self.main[rank] = self._event((before, handle.ends[rank]), 0.0, FREE, rank)
            start, begun = (handle.starts[rank], before) if starts is None else (starts[rank], starts[rank])
            waiting = (start, self.main[rank], begun, handle.ready[rank], handle.ends[rank])
            self.calls.append(CallRecord(rank, handle.group.name, handle.op, -1, handle.size, *waiting))

    def send(self, group: Group, source: int, target: int, size: float) -> int:
        """A send that its rank goes on from at once; returns the event at which the data is there."""
        begun = self.main[source]
        self.main[source] = self._event((begun,), LAUNCH_SECONDS, FREE, source)
        end = self.main[source]
        self.calls.append(CallRecord(source, group.name, "send", target, int(size), begun, end, begun, begun, end))
        seconds = size / self.cluster.speed(source, target, None, 1.0) + self.cluster.hop(source, target)
        there = self._event((begun,), seconds, TRANSFER, target)
        self.transfers.append(Transfer((source, target), "send", size, (there,)))
        return there

    def recv(self, group: Group, source: int, target: int, size: float, there: int) -> None:
        begun = self.main[target]
        self.main[target] = self._event((begun, there), 0.0, FREE, target)
        end = self.main[target]
        self.calls.append(CallRecord(target, group.name, "recv", source, int(size), begun, end, begun, begun, end))


def _runs(members: tuple[int, ...]) -> str:
    """The members in a few characters: as they are, or first, step and count."""
    if len(members) <= 4:
        return "-".join(map(str, members))
    step = members[1] - members[0]
    even = all(b - a == step for a, b in zip(members, members[1:], strict=False))
    return f"{members[0]}+{step}x{len(members)}" if even else f"{members[0]}..{members[-1]}x{len(members)}"


class Program:
    """A compiled step. Events are in the order of their levels."""

    def __init__(self, built: Builder) -> None:
        self.cluster, self.ranks = built.cluster, built.ranks
        order = np.argsort(np.array(built.level), kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.place = place
        self.duration = np.array(built.duration)[order]
        self.kind = np.array(built.kind)[order]
        self.owner = np.array(built.owner)[order]
        self.micro = np.array(built.micro)[order]
        self.levels = self._compile(built, order, place)
        first = np.array([built.first[rank] for rank in self.ranks])
        self.entry = place[np.concatenate((first, first + len(first)))]  # main streams, then the others
        self.exit = place[[built.main[rank] for rank in self.ranks] + [built.comm[rank] for rank in self.ranks]]
        self.spans, self.calls, self.groups = built.spans, built.calls, built.groups
        self.transfers = [each._replace(events=tuple(place[list(each.events)])) for each in built.transfers]
        self.first = {rank: int(place[event]) for rank, event in built.first.items()}
        self.last = {rank: int(place[event]) for rank, event in built.main.items()}

    @staticmethod
    def _compile(
        built: Builder, order: NDArray[np.int64], place: NDArray[np.int64]
    ) -> list[tuple[int, int, NDArray[np.int64], NDArray[np.int64] | None]]:
        levels = np.array(built.level)[order]
        bounds = np.flatnonzero(np.diff(levels)) + 1
        found = []
        for low, high in zip(bounds, [*bounds[1:], len(order)], strict=True):
            before = [built.before[event] for event in order[low:high]]
            counts = np.array([len(each) for each in before])
            flat = place[np.concatenate([np.array(each) for each in before])]
            offsets = None if (counts == 1).all() else np.concatenate(([0], np.cumsum(counts)[:-1]))
            found.append((int(low), int(high), flat, offsets))
        return found

    def run(self, carried: Times, duration: Times) -> Times:
        """[N, S]: the time of each event in each scenario, from the times [2R, S] at which the streams became free and
        the durations [N, S]."""
        times = np.empty_like(duration)
        times[self.entry] = carried
        for low, high, before, offsets in self.levels:
            came = times[before] if offsets is None else np.maximum.reduceat(times[before], offsets, axis=0)
            np.add(came, duration[low:high], out=times[low:high])
        return times

    def slowed(self, slow: Element, factor: float) -> Times:
        """[N]: seconds that each transfer takes longer where `slow` has 1/factor of its speed."""
        more = np.zeros(len(self.duration))
        known: dict[tuple[Any, ...], list[float]] = {}
        for each in self.transfers:
            key = each[:3]
            if key not in known:
                known[key] = self._slowed(each, slow, factor)
            more[list(each.events)] = known[key]
        return np.maximum(more, 0.0)

    def _slowed(self, each: Transfer, slow: Element, factor: float) -> list[float]:
        if each.op == "send":
            a, b = each.members
            return [each.size / self.cluster.speed(a, b, slow, factor) - each.size / self.cluster.speed(a, b, None, 1)]
        usual = transfer_seconds(self.cluster, each.members, each.op, each.size)
        now = transfer_seconds(self.cluster, each.members, each.op, each.size, slow, factor)
        return [b - a for a, b in zip(usual, now, strict=True)]
