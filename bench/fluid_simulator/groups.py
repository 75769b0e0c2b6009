"""Process groups, and over which channels their collectives go between machines. Pure."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

from fluid_simulator.cluster import Cluster, Resource
from fluid_simulator.network import Uses

NAMED_RANKS = 8
"""The largest group whose name has its ranks one by one."""


@dataclasses.dataclass(frozen=True)
class Channel:
    """`share`: which share of a collective's bytes it carries over each of its edges."""

    share: float
    uses: Uses


class Group:
    """`index` is its place among the job's groups; `role` as a recording has it; `algorithm`: ring or tree, of its
    all-reduces. `label`: how its name begins, its role where it is empty."""

    def __init__(
        self, index: int, role: str, ranks: Sequence[int], cluster: Cluster, algorithm: str = "ring", label: str = ""
    ) -> None:
        self.index, self.role, self.ranks, self.cluster, self.algorithm = index, role, list(ranks), cluster, algorithm
        self.size = len(self.ranks)
        self.name = f"{label or role}:{_listed(self.ranks)}"
        self.by_machine: dict[int, list[int]] = {}
        for rank in ranks:
            self.by_machine.setdefault(cluster.machine(rank), []).append(rank)
        self.machines = len(self.by_machine)
        self.within_machine = self.machines == 1
        self._channels: dict[str, list[Channel]] = {}

    def channels(self, kind: str) -> list[Channel]:
        """The channels between machines. `kind`: ring, tree or exchange (all-to-all)."""
        if kind not in self._channels:
            made = {"ring": self._ring, "tree": self._tree, "exchange": self._exchange}[kind]
            self._channels[kind] = made()
        return self._channels[kind]

    @cached_property
    def _members(self) -> list[list[int]]:
        return list(self.by_machine.values())

    @cached_property
    def _rails(self) -> list[int]:
        """A channel leaves each machine by the adapter of its j-th member there: each such j that has adapters of its
        own."""
        found: dict[tuple[int, ...], int] = {}
        for place in range(min(len(members) for members in self._members)):
            found.setdefault(tuple(self.cluster.adapter(members[place])[1] for members in self._members), place)
        return list(found.values())

    def _exchange(self) -> list[Channel]:
        """Members in the same place of their machines send one another their shares."""
        count = len(self._members)
        found = []
        for place in range(min(len(members) for members in self._members)):
            ranks = [members[place] for members in self._members]
            uses: dict[Resource, float] = {}
            for rank in ranks:
                for kind in ("out", "in"):
                    _count(uses, Resource(kind, self.cluster.adapter(rank)), 1)
            for a in ranks:
                for b in ranks:
                    for resource in self.cluster.way(a, b)[2:] if a != b else ():
                        _count(uses, resource, 1 / (count - 1))
            found.append(Channel((count - 1) / count, list(uses.items())))
        return found

    def _ring(self) -> list[Channel]:
        found = []
        for place in self._rails:
            ranks = [members[place] for members in self._members]
            uses: dict[Resource, float] = {}
            for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
                for resource in self.cluster.way(a, b):
                    _count(uses, resource, 1)
            found.append(Channel(1 / len(self._rails), list(uses.items())))
        return found

    def _tree(self) -> list[Channel]:
        """NCCL's double binary tree: each tree carries half, up and down each edge (Sanders et al., 2009)."""
        last = len(self._members) - 1
        found = []
        for mirrored in (False, True):
            for place in self._rails:
                uses: dict[Resource, float] = {}
                for child in range(1, last + 1):
                    a, b = child, (child - 1) // 2
                    a, b = (last - a, last - b) if mirrored else (a, b)
                    below, above = self._members[a][place], self._members[b][place]
                    for resource in self.cluster.way(below, above) + self.cluster.way(above, below):
                        _count(uses, resource, 0.5 if resource.kind in ("out", "in") else 1)
                found.append(Channel(0.5 / len(self._rails), list(uses.items())))
        return found


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) <= NAMED_RANKS:
        return ",".join(map(str, ranks))
    return f"{ranks[0]}-{ranks[-1]}/{ranks[1] - ranks[0]}"


def _count(uses: dict[Resource, float], resource: Resource, times: float) -> None:
    uses[resource] = uses.get(resource, 0) + times
