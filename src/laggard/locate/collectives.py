"""The collectives of a recorded job as arrays: who was in which, when it began there and when it was over. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.constants import OPS

SEND, RECV = OPS.index("send"), OPS.index("recv")

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]


class ProcessGroup(NamedTuple):
    """A process group. `ranks` are its members as declared; empty where they were not."""

    name: str
    role: str
    ranks: tuple[int, ...]


_TYPES: Final = {
    "column": np.int32, "step": np.int64, "group": np.int32, "op": np.int8, "seq": np.int64, "size": np.int64,
    "peer": np.int32, "start": np.float64, "end": np.float64, "waited": np.float64,
}  # fmt: skip
"""The types of what a record of Collectives has, in the order in which from_records() takes them."""


@dataclasses.dataclass(frozen=True)
class Collectives:
    """C records of collectives, sends and receives, each by one rank. Times in seconds on that rank's own clock."""

    column: NDArray[np.int32]  # [C]: the rank's column in JobTimings
    step: Numbers  # [C]: -1 where unknown
    group: NDArray[np.int32]  # [C]: its place in `groups`
    op: NDArray[np.int8]  # [C]: its place in constants.OPS, -1 where unknown
    seq: Numbers  # [C]: -1 where unknown
    size: Numbers  # [C]: bytes, -1 where unknown
    peer: NDArray[np.int32]  # [C]: of sends and receives, the other side's rank number; -1
    start: Times  # [C]
    end: Times  # [C]: nan where it never finished
    waited: Times  # [C]: how long the caller was blocked until the end; nan: from the start on
    groups: tuple[ProcessGroup, ...]
    numbered_by_group: bool = False
    """True: `seq` counts all collectives of a group, as torch does; False: those of a group and operation."""

    @classmethod
    def from_records(cls, records: Iterable[tuple[float, ...]], groups: Iterable[ProcessGroup]) -> Collectives:
        """`records`: at least one, each with the numbers from `column` to `waited`."""
        columns = zip(_TYPES.items(), zip(*records, strict=True), strict=True)
        arrays: dict[str, Any] = {name: np.array(numbers, kind) for (name, kind), numbers in columns}
        return cls(**arrays, groups=tuple(groups))

    def ends(self, ranks: Numbers) -> tuple[Numbers, Numbers]:
        """[C] each: the ranks that send and that receive, of messages. `ranks` [R]: those of the columns."""
        own, peer, sends = ranks[self.column], self.peer.astype(np.int64), self.op == SEND
        return np.where(sends, own, peer), np.where(sends, peer, own)

    def lanes(self, ranks: Numbers) -> Numbers:
        """[C]: the same number for what is numbered together: the collectives of a group and operation, and the
        messages from one rank to another. Those of groups come first."""
        source, target = (ends + 1 for ends in self.ends(ranks))  # 0: any rank
        ops, width = len(OPS) + 1, 1 + int(max(source.max(initial=0), target.max(initial=0)))
        of_pair = len(self.groups) * ops + source * width + target
        of_group = self.group.astype(np.int64) * ops + self.op + 1
        return np.where(self.is_message, of_pair, of_group)

    @property
    def is_message(self) -> NDArray[np.bool_]:
        """[C]"""
        return np.isin(self.op, (SEND, RECV))


# What each rank's device has yet to finish of what its host launched, in the order of the launches, as values.
#
# A host launches far ahead of its device, so that ranks of a job that stands still have launched different amounts, and
# none of them is at fault for that. What counts is the first thing that each device has not finished, and who has yet
# to come to it.

NEEDS_ALL = frozenset(OPS.index(op) for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"))
"""The operations (places in OPS) that no member finishes before all have come."""


class Lane(NamedTuple):
    """What operations are numbered in: a group's collectives, or one direction of a pair (then `group` is -1). `source`
    and `target` are ranks, -1 for collectives."""

    group: int
    source: int = -1
    target: int = -1


class Operation(NamedTuple):
    """A collective, or a send with its receive. The numbers of a lane ascend in the order of the launches."""

    lane: Lane
    number: int


class Launched(NamedTuple):
    """An operation that a rank launched and that its device has not finished. `position`: its place among all that the
    rank launched; what was launched as one has one place. `op`: its place in OPS, -1 where it is not known. `begun`:
    whether the device began it, None where nothing tells."""

    operation: Operation
    position: int
    op: int
    begun: bool | None


@dataclasses.dataclass(frozen=True)
class DeviceQueue:
    """One rank's. `open` is in the order of the launches, as far as they have one (`ordered`). `last_numbers`: of each
    lane, the last number that was launched. `unknown`: the lanes of which nothing is known, `is_unknown`: whether
    nothing is known at all, `knows_messages`: whether sends and receives are known. `newest_done`: the last position
    that is finished, -1 where none is. `finished`: of each group, the last number of NEEDS_ALL that is. `has_other`:
    whether it has something to finish that cannot be compared with what others launched. `still_seconds`: for how long
    nothing had changed when it was written down, None where that is not known."""

    open: tuple[Launched, ...] = ()
    ordered: bool = True
    last_numbers: Mapping[Lane, int] = dataclasses.field(default_factory=dict)
    unknown: frozenset[Lane] = frozenset()
    is_unknown: bool = False
    knows_messages: bool = True
    newest_done: int = -1
    finished: Mapping[Lane, int] = dataclasses.field(default_factory=dict)
    has_other: bool = False
    still_seconds: float | None = None

    def knows(self, lane: Lane) -> bool:
        return not self.is_unknown and lane not in self.unknown and (lane.group >= 0 or self.knows_messages)

    @cached_property
    def by_operation(self) -> Mapping[Operation, Launched]:
        return {each.operation: each for each in self.open}

    @cached_property
    def heads(self) -> Mapping[Lane, int]:
        """The first number of each lane that is not finished."""
        found: dict[Lane, int] = {}
        for each in self.open:
            lane, number = each.operation
            found[lane] = min(number, found.get(lane, number))
        return found

    @cached_property
    def first(self) -> tuple[Launched, ...]:
        """What its device stands at: the first of what it has not finished, with all that was launched as one with it.
        Without an order, the first of each lane."""
        if not self.ordered:
            return tuple(each for each in self.open if self.heads[each.operation.lane] == each.operation.number)
        least = min((each.position for each in self.open), default=0)
        return tuple(each for each in self.open if each.position == least)


@dataclasses.dataclass(frozen=True)
class DeviceQueues:
    """Those of a job. `by_rank` has the ranks that are seen."""

    groups: tuple[ProcessGroup, ...]
    by_rank: Mapping[int, DeviceQueue]

    def members(self, operation: Operation) -> Sequence[int]:
        """The ranks that have to come to it."""
        lane = operation.lane
        return self.groups[lane.group].ranks if lane.group >= 0 else (lane.source, lane.target)
