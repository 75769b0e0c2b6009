"""Holds what every rank does in one step, as items with what each depends on; orders them so that arrays can run them.

An item is a piece of one rank's work: computing, a wait, or this rank's part in a joint (a collective, or a send with
its recv). A joint begins when all of its members are ready, takes its transfer, and ends for all of them. A buffered
message is a joint of one: it leaves when its sender is ready, and its recv waits for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.layout import Group, Layout
from simulator.network import transfer

INPUT, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(5)
PHASES = ("input", "forward", "backward", "optimizer", None)  # OTHER: between the spans, told by no record
MAX_PREDECESSORS = 3
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Record(NamedTuple):
    """What an item's record says of it. `issue` is the item of the main stream after which the call was made (None: it
    is this item's own predecessor there), `wait` the item in which the caller waited for it (None: in the call),
    `flight` that of a buffered send's message, after which a device's part in it is done."""

    group: Group
    op: str
    seq: int
    size: int
    peer: int | None
    issue: int | None
    wait: int | None
    flight: int | None = None


@dataclass
class Item:
    rank: int
    phase: int
    micro: int
    seconds: float
    predecessors: list[int]
    joint: int | None = None
    on_cpu: bool = False
    on_main: bool = True
    computes: bool = False
    message: bool = False  # the flight of a buffered message
    in_span: bool = True
    block: str = ""  # what it computes: expert, evaluation, logging, checkpoint; empty: the rest
    record: Record | None = None
    number: int = -1  # its place in its rank's programme


@dataclass
class Joint:
    group: Group
    op: str
    size: int
    members: list[int] = field(default_factory=list)  # items


@dataclass
class Handle:
    """An operation in flight on another stream."""

    item: int


class Builder:
    """Builds the items of one step, rank by rank. What one rank calls in a group meets what the others call there in
    the same order."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.items: list[Item] = []
        self.joints: list[Joint] = []
        self.main: dict[int, int] = {}  # rank: its last item on the main stream
        self._streams: dict[tuple[int, Any], int] = {}  # rank, stream: its last item there
        self._joint_of: dict[tuple[Any, ...], int] = {}
        self._calls: dict[tuple[Any, ...], int] = {}
        self._flights: dict[tuple[Any, ...], int] = {}

    def _add(self, item: Item) -> int:
        item.number = len(self.items)
        self.items.append(item)
        if item.on_main:
            self.main[item.rank] = len(self.items) - 1
        return len(self.items) - 1

    def _after_main(self, rank: int) -> list[int]:
        return [self.main[rank]] if rank in self.main else []

    def compute(
        self,
        rank: int,
        phase: int,
        seconds: float,
        micro: int = 0,
        *,
        on_cpu: bool = False,
        block: str = "",
    ) -> int:
        return self._add(
            Item(rank, phase, micro, seconds, self._after_main(rank), on_cpu=on_cpu, computes=True, block=block)
        )

    def _count(self, *key: Any) -> int:
        number = self._calls.get(key, 0)
        self._calls[key] = number + 1
        return number

    def _meet(self, key: tuple[Any, ...], group: Group, op: str, size: int, item: int) -> None:
        number = self._joint_of.get(key)
        if number is None:
            number = self._joint_of[key] = len(self.joints)
            self.joints.append(Joint(group, op, size))
        joint = self.joints[number]
        if (joint.op, joint.size) != (op, size):
            raise ValueError(f"{group.name}: {op} of {size} bytes meets {joint.op} of {joint.size}")
        joint.members.append(item)
        self.items[item].joint = number

    def collective(
        self,
        rank: int,
        group: Group,
        op: str,
        size: float,
        phase: int,
        micro: int = 0,
        *,
        stream: str | None = None,
        in_span: bool = True,
    ) -> Handle | None:
        """Adds the rank's part in a collective: on the main stream, or beside it on `stream`; then it returns the
        handle to wait for."""
        if len(group.ranks) == 1:
            return None
        main = self._after_main(rank)
        before = main if stream is None else main + self._last(rank, stream)
        seq = self._count("seq", rank, group, op)
        record = Record(group, op, seq, int(size), None, None if stream is None else self.main.get(rank, -1), None)
        item = self._add(Item(rank, phase, micro, 0.0, before, on_main=stream is None, in_span=in_span, record=record))
        self._meet((group, self._count("order", rank, group)), group, op, int(size), item)
        if stream is None:
            return None
        self._streams[rank, stream] = item
        return Handle(item)

    def _last(self, rank: int, stream: Any) -> list[int]:
        return [self._streams[rank, stream]] if (rank, stream) in self._streams else []

    def wait(
        self, rank: int, handles: list[Handle | None], phase: int, micro: int = 0, *, in_span: bool = True
    ) -> None:
        """The main stream stands still until each has ended, one after the other."""
        for handle in handles:
            if handle is None:
                continue
            item = self._add(Item(rank, phase, micro, 0.0, [*self._after_main(rank), handle.item], in_span=in_span))
            record = self.items[handle.item].record
            assert record is not None
            self.items[handle.item].record = record._replace(wait=item)

    def pass_on(self, rank: int, peer: int, op: str, size: float, micro: int, *, blocking: bool) -> Handle | None:
        """Adds a send to `peer` or a recv from it, which meets the peer's: it ends for both once both came and the data
        has passed. Not blocking: it stands beside the main stream, and the handle is to be waited for."""
        ends = (rank, peer) if op == "send" else (peer, rank)
        group = self.layout.group(rank, "pp")
        seq = self._count("pair", rank, op, ends)
        main = self._after_main(rank)
        before = main if blocking else main + self._last(rank, (op, peer))
        record = Record(group, op, seq, int(size), peer, None if blocking else self.main.get(rank, -1), None)
        item = self._add(Item(rank, OTHER, micro, 0.0, before, on_main=blocking, in_span=False, record=record))
        self._meet(("pair", ends, seq), Group("pair", ends), "send", int(size), item)
        if blocking:
            return None
        self._streams[rank, (op, peer)] = item
        return Handle(item)

    def send_buffered(self, rank: int, peer: int, size: float, micro: int, copying: float) -> None:
        """Adds a send that ends once the data is copied; the message then flies by itself."""
        seq = self._count("pair", rank, "send", (rank, peer))
        group = self.layout.group(rank, "pp")
        record = Record(group, "send", seq, int(size), peer, None, None)
        before = self._after_main(rank)
        item = self._add(Item(rank, OTHER, micro, copying, before, in_span=False, record=record))
        flight = self._add(Item(rank, OTHER, micro, 0.0, [item], on_main=False, message=True, in_span=False))
        self._meet(("flight", rank, peer, seq), Group("pair", (rank, peer)), "send", int(size), flight)
        self.items[item].record = record._replace(flight=flight)
        self._flights[rank, peer, seq] = flight

    def receive_buffered(self, rank: int, peer: int, size: float, micro: int) -> None:
        seq = self._count("pair", rank, "recv", (peer, rank))
        record = Record(self.layout.group(rank, "pp"), "recv", seq, int(size), peer, None, None)
        # The flight's item is not there before its sender's programme is built: `finish` puts it in.
        item = self._add(Item(rank, OTHER, micro, 0.0, self._after_main(rank), in_span=False, record=record))
        self._calls["recv", peer, rank, seq] = item

    def finish(self) -> Programme:
        """Orders the items. Raises ValueError where a joint lacks a member or where ranks wait for one another."""
        for (kind, *rest), item in [(key, value) for key, value in self._calls.items() if key[0] == "recv"]:
            assert kind == "recv"
            self.items[item].predecessors.append(self._flights[tuple(rest)])  # type: ignore[index]
        for joint in self.joints:
            expected = 1 if self.items[joint.members[0]].message else len(joint.group.ranks)
            if len(joint.members) != expected:
                raise ValueError(
                    f"{joint.op} in {joint.group.name}: {len(joint.members)} of {expected} members call it"
                )
        return order(self)


class Programme:
    """A step's items in the order in which arrays can run them: level by level, each level a slice.

    `levels` are (first, middle, last): items first to middle compute or wait, middle to last are members of joints,
    each joint's side by side; `starts` are the joints' first members within the slice, `numbers` the joints' numbers
    and `counts` their members. `before` is (items, MAX_PREDECESSORS), of indices into [items, the ranks' entries,
    -inf].
    """

    def __init__(self, layout: Layout, items: list[Item], joints: list[Joint], levels: list[Level], main: Ints) -> None:
        self.layout = layout
        self.items = items
        self.joints = joints
        self.levels = levels
        self.exits = main  # (ranks,), each rank's last item on the main stream
        self.rank = np.array([item.rank for item in items])
        self.phase = np.array([item.phase for item in items])
        self.seconds = np.array([item.seconds for item in items])
        self.computes = np.array([item.computes for item in items])
        self.on_cpu = np.array([item.on_cpu for item in items])
        self.micro = np.array([item.micro for item in items])
        self.block = np.array([item.block for item in items])
        count, ranks = len(items), layout.world_size
        self.before = np.full((count, MAX_PREDECESSORS), count + ranks)
        for index, item in enumerate(items):
            self.before[index, : len(item.predecessors)] = item.predecessors
            if not item.predecessors:
                self.before[index, 0] = count + item.rank
        transfers = [transfer(layout, joint.op, joint.group.ranks, joint.size) for joint in joints]
        self.latency, self.inside, self.between = (
            np.array([one[part] for one in transfers]) if transfers else np.zeros(0) for part in range(3)
        )


class Level(NamedTuple):
    first: int
    middle: int
    last: int
    starts: Ints
    numbers: Ints
    counts: Ints


def order(built: Builder) -> Programme:
    """Renumbers the items by level (Kahn's algorithm, a joint counting as one)."""
    items, joints = built.items, built.joints
    units: list[list[int]] = [list(joint.members) for joint in joints]
    unit_of = [-1] * len(items)
    for number, members in enumerate(units):
        for item in members:
            unit_of[item] = number
    for index in range(len(items)):
        if unit_of[index] < 0:
            unit_of[index] = len(units)
            units.append([index])
    lacking = [0] * len(units)
    followers: list[list[int]] = [[] for _ in units]
    for index, item in enumerate(items):
        for other in item.predecessors:
            lacking[unit_of[index]] += 1
            followers[unit_of[other]].append(unit_of[index])
    level = [0] * len(units)
    ready = deque(unit for unit, count in enumerate(lacking) if not count)
    done = 0
    while ready:
        unit = ready.popleft()
        done += 1
        for follower in followers[unit]:
            level[follower] = max(level[follower], level[unit] + 1)
            lacking[follower] -= 1
            if not lacking[follower]:
                ready.append(follower)
    if done < len(units):
        raise ValueError(f"the ranks wait for one another: {len(units) - done} of {len(units)} operations never begin")
    return renumber(built, units, level)


def renumber(built: Builder, units: list[list[int]], level: list[int]) -> Programme:
    joints = len(built.joints)
    sequence: list[int] = []
    levels: list[Level] = []
    by_level: dict[int, tuple[list[int], list[int]]] = {}
    for unit, height in enumerate(level):
        by_level.setdefault(height, ([], []))[unit < joints].append(unit)
    for height in sorted(by_level):
        single, joint = by_level[height]
        first = len(sequence)
        sequence += [units[unit][0] for unit in single]
        middle, starts = len(sequence), []
        for unit in joint:
            starts.append(len(sequence) - middle)
            sequence += units[unit]
        counts = [len(units[unit]) for unit in joint]
        levels.append(Level(first, middle, len(sequence), np.array(starts), np.array(joint), np.array(counts)))
    new = {old: index for index, old in enumerate(sequence)}
    for item in built.items:
        item.predecessors = [new[other] for other in item.predecessors]
        if item.record is not None:
            issue, wait, flight = item.record.issue, item.record.wait, item.record.flight
            item.record = item.record._replace(
                issue=issue if issue is None or issue < 0 else new[issue],
                wait=None if wait is None else new[wait],
                flight=None if flight is None else new[flight],
            )
    for joint_ in built.joints:
        joint_.members = [new[member] for member in joint_.members]
    main = np.array([new[built.main[rank]] for rank in range(built.layout.world_size)])
    return Programme(built.layout, [built.items[old] for old in sequence], built.joints, levels, main)
