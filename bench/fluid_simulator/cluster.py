"""A cluster: machines, their GPUs and adapters, leaf switches, and what a byte passes between two ranks. Pure."""

import dataclasses
from typing import NamedTuple

Adapter = tuple[int, int]
"""A machine, and which of its adapters."""


class Resource(NamedTuple):
    """A thing that flows of bytes share. `kind` and `at`: `out` and `in` are an adapter's two ways, at (machine,
    adapter); `path` is one way between two machines on one rail, at (lower machine, higher machine, adapter, 1:
    upwards); `up` and `down` are a leaf switch's uplinks, at (leaf,)."""

    kind: str
    at: tuple[int, ...]


def adapter_ways(adapter: Adapter) -> tuple[Resource, Resource]:
    return Resource("out", adapter), Resource("in", adapter)


def uplinks(leaf: int) -> tuple[Resource, Resource]:
    return Resource("up", (leaf,)), Resource("down", (leaf,))


@dataclasses.dataclass(frozen=True)
class Cluster:
    """`adapter_rate` and `nvlink_rate`: bytes a second, one way. `oversubscription`: of the leaves' uplinks.
    `names`: of the machines. Ranks are numbered machine by machine."""

    machines: int
    gpus: int
    adapters: int
    adapter_rate: float
    nvlink_rate: float
    leaf_machines: int
    oversubscription: float
    names: tuple[str, ...]

    @property
    def world(self) -> int:
        return self.machines * self.gpus

    def machine(self, rank: int) -> int:
        return rank // self.gpus

    def adapter(self, rank: int) -> Adapter:
        """The adapter of the rank; several GPUs may share one."""
        return rank // self.gpus, (rank % self.gpus) * self.adapters // self.gpus

    def leaf(self, machine: int) -> int:
        return machine // self.leaf_machines

    def name(self, rank: int) -> str:
        """The name of the rank's machine."""
        return self.names[self.machine(rank)]

    def names_of(self, ranks: list[int]) -> list[str]:
        """The names of these ranks' machines, each once, in order."""
        return sorted({self.name(rank) for rank in ranks})

    def ranks_of(self, machine: int) -> list[int]:
        return list(range(machine * self.gpus, (machine + 1) * self.gpus))

    def ranks_at(self, adapter: Adapter) -> list[int]:
        return [rank for rank in range(self.world) if self.adapter(rank) == adapter]

    def machines_at(self, leaf: int) -> list[int]:
        return [machine for machine in range(self.machines) if self.leaf(machine) == leaf]

    def way(self, sender: int, receiver: int) -> list[Resource]:
        """The resources that a byte passes from one rank to one of another machine: both adapters first, then the
        network."""
        a, b = self.machine(sender), self.machine(receiver)
        out, rail = self.adapter(sender), self.adapter(sender)[1]
        found = [Resource("out", out), Resource("in", self.adapter(receiver)), self._path(a, b, rail)]
        if self.leaf(a) != self.leaf(b):
            found += [Resource("up", (self.leaf(a),)), Resource("down", (self.leaf(b),))]
        return found

    def _path(self, a: int, b: int, rail: int) -> Resource:
        return Resource("path", (min(a, b), max(a, b), rail, int(a < b)))

    def paths(self, low: int, high: int) -> list[Resource]:
        """All ways between two machines, in both directions."""
        return [Resource("path", (low, high, rail, up)) for rail in range(self.adapters) for up in (1, 0)]
