"""Runs a programme as CPUs and GPUs do: a CPU launches ahead of its GPU until its queue is full, and a GPU may stop.

The engine beside this one gives every item a time and knows no launch; this one plays events in order of time, so that
it can say at any moment what each rank has launched, what its device has begun, and what of it is done. That is what a
Flight Recorder's dump tells. A stopped GPU completes nothing any more, while its CPU and all others go on launching.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.programme import INPUT, Item, Programme

MAX_QUEUED = 1000
"""The kernels that a CPU launches ahead of its GPU, about as many as CUDA takes before a launch blocks."""

LAUNCH_SECONDS = 5e-6  # of one kernel, on the CPU
KERNEL_SECONDS = 150e-6  # of a computation's kernels, on average
MAX_KERNELS = 60  # of one item
MIN_TRANSFER_SECONDS = 20e-6


@dataclass(frozen=True)
class Stop:
    """A GPU that stops: `rank`, the step, the item of its programme, and where: a `share` of the item's time after its
    begin. `others_finish`: what it stops in is a collective that all others still finish."""

    rank: int
    step: int
    item: int
    share: float
    others_finish: bool = False


@dataclass(frozen=True)
class Trouble:
    """What goes wrong in a run. `silent_hosts`: by rank, the step and item that its CPU never launches. `swapped`: by
    rank, the step and two items that it launches in the other order. `mismatched`: the rank, step and item in which it
    calls something else. `slow`: by rank, how many times longer it computes. `synchronous`: each CPU waits for each
    collective, as with TORCH_NCCL_BLOCKING_WAIT. `waits_for_steps`: each CPU waits for the end of each step."""

    stops: tuple[Stop, ...] = ()
    silent_hosts: tuple[tuple[int, int, int], ...] = ()
    swapped: tuple[tuple[int, int, int, int], ...] = ()
    mismatched: tuple[int, int, int] | None = None
    slow: tuple[tuple[int, float], ...] = ()
    synchronous: bool = False
    waits_for_steps: bool = True
    queued: int = MAX_QUEUED


class Call(NamedTuple):
    """A collective, send or receive of one rank, with its place in the programme. Times in seconds, infinite: never."""

    item: Item
    step: int
    launched: float
    begun: float
    done: float


class Played(NamedTuple):
    """A run: each rank's calls in the order of their launches, when the last thing happened anywhere, and the ranks
    whose GPU or CPU really stopped, since they came as far as that."""

    calls: list[list[Call]]
    last: float
    stopped: frozenset[int]


def kernels(item: Item) -> int:
    """The number of kernels that the item is launched as."""
    if not item.computes:
        return 0 if item.joint is None else 1
    return 0 if item.on_cpu else max(1, min(MAX_KERNELS, int(item.seconds / KERNEL_SECONDS)))


@dataclass
class _Rank:
    """One rank's CPU: the nodes that it launches in order, the next of them, and until when it is busy."""

    order: list[int]
    next: int = 0
    free_at: float = 0.0
    queued: int = 0
    waits_for: int = -1  # a node, before which it launches nothing more
    stopped_at: float = float("inf")
    waking: bool = False
    silent: bool = False
    calls: list[int] = field(default_factory=list)


class Player:
    """Plays `steps` of a programme. A node is an item of a step: its number is `step * items + item`."""

    def __init__(self, programme: Programme, steps: int, trouble: Trouble) -> None:
        self.programme, self.steps, self.trouble = programme, steps, trouble
        self.items = programme.items
        self.count = len(self.items)
        self.slow = dict(trouble.slow)
        self.stop_of = {(stop.rank, stop.step * self.count + stop.item): stop for stop in trouble.stops}
        self.silent = {(rank, step * self.count + item) for rank, step, item in trouble.silent_hosts}
        self.ranks = [_Rank(order) for order in self._orders()]
        total = steps * self.count
        self.needs = [1] * total  # 1: its launch
        self.followers: dict[int, list[int]] = defaultdict(list)
        self._depend()
        self.launched = [float("inf")] * total
        self.begun = [float("inf")] * total
        self.done = [float("inf")] * total
        self.arrived: dict[int, list[int]] = defaultdict(list)  # joint: nodes
        self.reached: set[int] = set()
        self.lost: dict[int, int] = {}  # joint: the rank that does not finish it, where the others do
        self.events: list[tuple[float, int, str, int]] = []
        self.serial = 0
        self.now = 0.0

    def _orders(self) -> list[list[int]]:
        by_rank: list[list[int]] = [[] for _ in range(self.programme.layout.world_size)]
        for index in sorted(range(self.count), key=lambda index: self.items[index].number):
            by_rank[self.items[index].rank].append(index)
        orders = [[step * self.count + index for step in range(self.steps) for index in indices] for indices in by_rank]
        for rank, step, first, second in self.trouble.swapped:
            one, other = (orders[rank].index(step * self.count + item) for item in (first, second))
            orders[rank][one], orders[rank][other] = orders[rank][other], orders[rank][one]
        return orders

    def _depend(self) -> None:
        swapped = {step * self.count + item for _, step, *items in self.trouble.swapped for item in items}
        exits = self.programme.exits.tolist()
        for node in range(self.steps * self.count):
            step, index = divmod(node, self.count)
            item = self.items[index]
            before = [step * self.count + other for other in item.predecessors]
            if not before and step:
                before = [(step - 1) * self.count + exits[item.rank]]
            if node in swapped:
                before = []  # its CPU waits for each collective
            for other in before:
                self.followers[other].append(node)
            self.needs[node] += len(before)

    def play(self) -> Played:
        for rank in range(len(self.ranks)):
            self._push(0.0, "host", rank)
        while self.events:
            self.now, _, kind, number = heapq.heappop(self.events)
            {"host": self._launch, "done": self._finish, "joint": self._finish_joint, "stop": self._stop}[kind](number)
        calls = [[self._call(node) for node in rank.calls] for rank in self.ranks]
        return Played(calls, self.now, frozenset(self.reached))

    def _push(self, at: float, kind: str, number: int) -> None:
        self.serial += 1
        heapq.heappush(self.events, (at, self.serial, kind, number))

    def _call(self, node: int) -> Call:
        step, index = divmod(node, self.count)
        return Call(self.items[index], step, self.launched[node], self.begun[node], self.done[node])

    # The CPU

    def _launch(self, number: int) -> None:
        """The CPU launches what comes next, then it is busy for a while."""
        rank = self.ranks[number]
        rank.waking = False
        if rank.next >= len(rank.order) or rank.silent:
            return
        if rank.waits_for >= 0 and self.done[rank.waits_for] > self.now:
            return
        node = rank.order[rank.next]
        item = self.items[node % self.count]
        size = kernels(item)
        if rank.queued + size > self.trouble.queued and size:
            return
        if (number, node) in self.silent:
            rank.silent = True
            self.reached.add(number)
            return
        rank.next += 1
        rank.queued += size
        busy = LAUNCH_SECONDS * size + (item.seconds if item.on_cpu else 0.0)
        self.launched[node] = self.now
        if item.record is not None:
            rank.calls.append(node)
        if item.joint is not None and self.trouble.synchronous and item.on_main:
            rank.waits_for = node
        elif self.trouble.waits_for_steps and item.phase == INPUT and node >= self.count:
            previous = node // self.count - 1
            rank.waits_for = previous * self.count + int(self.programme.exits[number])
        self._met(node)
        self._wake(number, self.now + busy)

    def _wake(self, number: int, at: float) -> None:
        rank = self.ranks[number]
        if not rank.waking:
            rank.waking = True
            rank.free_at = max(at, rank.free_at)
            self._push(max(at, self.now), "host", number)

    # The device

    def _met(self, node: int) -> None:
        """One of the things that the node needs is there."""
        self.needs[node] -= 1
        if self.needs[node]:
            return
        item = self.items[node % self.count]
        rank = self.ranks[item.rank]
        if rank.stopped_at <= self.now:
            return
        self.begun[node] = self.now
        seconds = 0.0 if item.on_cpu else item.seconds * self.slow.get(item.rank, 1.0)
        stop = self.stop_of.get((item.rank, node))
        if item.joint is None:
            if stop is not None:
                self._push(self.now + stop.share * seconds, "stop", item.rank)
            self._push(self.now + seconds, "done", node)
            return
        joint = node // self.count * len(self.programme.joints) + item.joint
        self.arrived[joint].append(node)
        members = self.programme.joints[item.joint].members
        if stop is not None and not stop.others_finish and stop.share <= 0.0:
            self._push(self.now, "stop", item.rank)
        if len(self.arrived[joint]) == len(members) and not self._mismatched(node):
            took = self._transfer_seconds(item.joint)
            for each in self.arrived[joint]:
                its = self.stop_of.get((self.items[each % self.count].rank, each))
                if its is not None and (its.share > 0.0 or its.others_finish):
                    self._push(self.now + min(its.share, 1.0) * took, "stop", its.rank)
                    if its.others_finish:
                        self.lost[joint] = its.rank
            self._push(self.now + took, "joint", joint)

    def _mismatched(self, node: int) -> bool:
        if self.trouble.mismatched is None:
            return False
        _, step, item = self.trouble.mismatched
        same = self.items[item].joint == self.items[node % self.count].joint
        return same and node // self.count == step

    def _transfer_seconds(self, joint: int) -> float:
        there = self.programme
        seconds = there.latency[joint] + there.inside[joint] + there.between[joint]
        return max(float(seconds), MIN_TRANSFER_SECONDS)

    def _stop(self, number: int) -> None:
        self.ranks[number].stopped_at = self.now
        self.reached.add(number)

    def _finish_joint(self, joint: int) -> None:
        """All members finish; where one of them has stopped none does, unless the data had passed."""
        nodes = self.arrived[joint]
        stopped = [node for node in nodes if self._is_stopped(node)]
        lost = self.lost.get(joint)
        if any(self.items[node % self.count].rank != lost for node in stopped):
            return
        for node in nodes:
            if self.items[node % self.count].rank != lost:
                self._finish(node)

    def _is_stopped(self, node: int) -> bool:
        return self.ranks[self.items[node % self.count].rank].stopped_at <= self.now

    def _finish(self, node: int) -> None:
        item = self.items[node % self.count]
        rank = self.ranks[item.rank]
        if rank.stopped_at <= self.now:
            return
        self.done[node] = self.now
        rank.queued -= kernels(item)
        for follower in self.followers[node]:
            self._met(follower)
        self._wake(item.rank, max(self.now, rank.free_at))


def play(programme: Programme, steps: int, trouble: Trouble) -> Played:
    """Plays `steps` of the programme with what goes wrong in it."""
    return Player(programme, steps, trouble).play()


def collectives_of(programme: Programme, rank: int, role: str) -> Iterator[int]:
    """The items of a rank that are collectives, sends or receives in a group of `role`, in the programme's order."""
    found = [
        index
        for index, item in enumerate(programme.items)
        if item.rank == rank and item.joint is not None and item.record is not None and item.record.group.role == role
    ]
    yield from sorted(found, key=lambda index: programme.items[index].number)
