"""Megatron's layouts of ranks: which groups there are, and where each rank stands in them. Pure."""

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from fluid_simulator.cluster import Cluster
from fluid_simulator.groups import Group
from fluid_simulator.job import Memberships


class Layout(NamedTuple):
    """The sizes of tensor, context, pipeline, data and expert parallelism."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int


LAYOUTS = {
    8: ((2, 1, 2, 2, 1), (2, 1, 1, 4, 1), (1, 1, 4, 2, 1), (1, 1, 1, 8, 4)),
    16: (
        (4, 1, 2, 2, 1),
        (2, 1, 2, 4, 1),
        (2, 1, 4, 2, 1),
        (1, 1, 2, 8, 4),
        (2, 2, 1, 4, 1),
        (8, 1, 1, 2, 1),
        (1, 1, 4, 4, 1),
    ),
    32: (
        (4, 1, 2, 4, 1),
        (2, 1, 4, 4, 1),
        (8, 1, 2, 2, 1),
        (4, 1, 4, 2, 1),
        (1, 1, 2, 16, 8),
        (2, 2, 2, 4, 1),
        (4, 2, 1, 4, 1),
        (1, 1, 4, 8, 4),
    ),
    64: (
        (8, 1, 2, 4, 1),
        (4, 1, 4, 4, 1),
        (8, 1, 4, 2, 1),
        (2, 1, 4, 8, 4),
        (4, 2, 2, 4, 1),
        (1, 1, 4, 16, 8),
        (8, 2, 1, 4, 1),
        (2, 1, 8, 4, 1),
    ),
    128: (
        (8, 1, 4, 4, 1),
        (4, 1, 4, 8, 1),
        (8, 1, 2, 8, 1),
        (2, 1, 4, 16, 8),
        (8, 2, 2, 4, 1),
        (4, 1, 8, 4, 1),
    ),
    256: ((8, 1, 4, 8, 1), (8, 1, 8, 4, 1), (4, 1, 8, 8, 1), (8, 1, 2, 16, 1)),
    512: ((8, 1, 8, 8, 1), (8, 1, 4, 16, 1)),
}
"""The layouts, by the number of ranks: TP within a machine, stages and replicas across, as Megatron's users have
them."""


def layouts(ranks: int) -> list[Layout]:
    return [Layout(*sizes) for sizes in LAYOUTS[ranks]]


@dataclasses.dataclass
class Places:
    """The places of ranks: tensor fastest, then context, data, and the pipeline's stage, as Megatron orders them."""

    layout: Layout
    cluster: Cluster
    groups: list[Group]
    memberships: list[Memberships]

    @property
    def stages(self) -> list[int]:
        return [rank // self._per_stage for rank in range(self.cluster.world)]

    @property
    def replica(self) -> list[int]:
        """Which batch each rank works on, by rank."""
        inner = self.layout.tp * self.layout.cp
        return [rank // inner % self.layout.dp for rank in range(self.cluster.world)]

    @property
    def positions(self) -> list[dict[str, int]]:
        """The positions by rank, as recorded: in groups of more than one rank, and in that of the data."""
        return [dict(self._position(rank)) for rank in range(self.cluster.world)]

    @property
    def _per_stage(self) -> int:
        return self.layout.tp * self.layout.cp * self.layout.dp

    def _position(self, rank: int) -> Iterator[tuple[str, int]]:
        layout, stride = self.layout, 1
        for name, size in (("tp", layout.tp), ("cp", layout.cp), ("dp", layout.dp), ("pp", layout.pp)):
            if size > 1 or name == "dp":
                yield name, rank // stride % size
            stride *= size

    def rank(self, tensor: int, context: int, data: int, stage: int) -> int:
        return tensor + self.layout.tp * (context + self.layout.cp * (data + self.layout.dp * stage))

    def add_groups(self, algorithm: str) -> None:
        """Makes all groups. `algorithm`: of the data groups' all-reduces."""
        for stage in range(self.layout.pp):
            self._inner_groups(stage)
            for tensor in range(self.layout.tp):
                self._data_groups(stage, tensor, algorithm)
        if self.layout.pp > 1:
            for data, context, tensor in product(*map(range, (self.layout.dp, self.layout.cp, self.layout.tp))):
                self._add("pp", (self.rank(tensor, context, data, stage) for stage in range(self.layout.pp)))

    def _inner_groups(self, stage: int) -> None:
        layout = self.layout
        for data in range(layout.dp):
            for context in range(layout.cp) if layout.tp > 1 else ():
                self._add("tp", (self.rank(tensor, context, data, stage) for tensor in range(layout.tp)))
            for tensor in range(layout.tp) if layout.cp > 1 else ():
                self._add("cp", (self.rank(tensor, context, data, stage) for context in range(layout.cp)))

    def _data_groups(self, stage: int, tensor: int, algorithm: str) -> None:
        layout = self.layout
        if layout.dp * layout.cp > 1:
            ranks = [
                self.rank(tensor, context, data, stage) for data, context in product(range(layout.dp), range(layout.cp))
            ]
            self._add("dp", ranks, algorithm)
        for first in range(0, layout.dp, layout.ep) if layout.ep > 1 else ():
            self._add("ep", (self.rank(tensor, 0, data, stage) for data in range(first, first + layout.ep)))

    def _add(self, kind: str, ranks: Iterable[int], algorithm: str = "ring") -> None:
        role = "other" if kind == "cp" else kind
        group = Group(len(self.groups), role, list(ranks), self.cluster, algorithm, kind)
        self.groups.append(group)
        for rank in group.ranks:
            setattr(self.memberships[rank], kind, group)
