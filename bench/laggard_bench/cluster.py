"""A cluster: which rank is on which node, switch and rack, and how long a transfer takes between them. Pure."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

NVLINK_BYTES = 200e9
"""Bytes a second between two GPUs of one NVLink domain, in one direction, as a ring sees them (H100: 450 GB/s peak)."""
NIC_BYTES = 40e9
"""Bytes a second of one adapter: 400 Gb/s less its headers and what rings lose."""
NVLINK_SECONDS = 6e-6
NETWORK_SECONDS = 18e-6
"""The latency of one hop; the order of nccl-tests' small messages over InfiniBand."""


class Element(NamedTuple):
    """A part of the network that can be slow: `nic` of a rank, `node` (all its adapters), `link` between two nodes,
    `leaf` (a switch's uplinks), `nvlink` of a node. `at`: the rank, node, pair of nodes or leaf."""

    kind: str
    at: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """`node_of` and so on: by rank. `leaf_of`, `rack_of`: by node. `domain_of`: by rank, its NVLink domain."""

    world: int
    gpus_per_node: int
    nodes_per_leaf: int
    nodes_per_rack: int
    nodes_per_domain: int
    oversubscription: float
    first_name: int

    @property
    def nodes(self) -> int:
        return -(-self.world // self.gpus_per_node)

    def node_of(self, rank: int) -> int:
        return rank // self.gpus_per_node

    def domain_of(self, rank: int) -> int:
        return self.node_of(rank) // self.nodes_per_domain

    def leaf_of(self, node: int) -> int:
        return node // self.nodes_per_leaf

    def ranks_of(self, node: int) -> list[int]:
        return list(range(node * self.gpus_per_node, min((node + 1) * self.gpus_per_node, self.world)))

    def name(self, node: int) -> str:
        return f"gpu{self.first_name + node:04d}"

    def elements(self, a: int, b: int) -> Iterator[Element]:
        """The parts of the network between two ranks."""
        m, n = self.node_of(a), self.node_of(b)
        if self.domain_of(a) == self.domain_of(b):
            yield Element("nvlink", (m,))
            if m != n:
                yield Element("nvlink", (n,))
            return
        yield from (Element("nic", (a,)), Element("nic", (b,)), Element("node", (m,)), Element("node", (n,)))
        yield Element("link", (min(m, n), max(m, n)))
        for leaf in {self.leaf_of(m), self.leaf_of(n)} if self.leaf_of(m) != self.leaf_of(n) else ():
            yield Element("leaf", (leaf,))

    def speed(self, a: int, b: int, slow: Element | None, factor: float) -> float:
        """Bytes a second from rank `a` to `b`, where `slow` has 1/factor of its speed."""
        if self.domain_of(a) == self.domain_of(b):
            speed = NVLINK_BYTES
        else:
            across = self.leaf_of(self.node_of(a)) != self.leaf_of(self.node_of(b))
            speed = NIC_BYTES / (self.oversubscription if across else 1.0)
        return speed / factor if slow is not None and slow in self.elements(a, b) else speed

    def hop(self, a: int, b: int) -> float:
        return NVLINK_SECONDS if self.domain_of(a) == self.domain_of(b) else NETWORK_SECONDS


RING_FACTOR = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "broadcast": 1.0, "barrier": 0.0}
"""Bytes that cross each edge of a ring, over the size as nccl-tests counts it, for many ranks (nccl-tests'
PERFORMANCE.md)."""


def edges(members: Sequence[int]) -> list[tuple[int, int]]:
    """The edges of a ring over the members in their order."""
    return [(a, members[(i + 1) % len(members)]) for i, a in enumerate(members)] if len(members) > 1 else []


def ring_seconds(
    cluster: Cluster, members: Sequence[int], op: str, size: float, slow: Element | None, factor: float
) -> float:
    """How long a ring takes from the last arrival to its end: its slowest edge decides."""
    ring = edges(members)
    if not ring:
        return 2e-6
    bandwidth = min(cluster.speed(a, b, slow, factor) for a, b in ring)
    hops = [cluster.hop(a, b) for a, b in ring]
    latency = float(np.sqrt(sum(hops) * max(hops)))  # between a tree's and a ring's
    return RING_FACTOR[op] * size * (len(members) - 1) / len(members) / bandwidth + latency


def exchange_seconds(
    cluster: Cluster, members: Sequence[int], size: float, slow: Element | None, factor: float
) -> list[float]:
    """How long each member of an all_to_all takes from the last arrival: its own slowest pair decides. Its adapter
    carries all that leaves its domain, one peer after the other."""
    count = len(members)
    each = size / max(count, 1)
    times = []
    for a in members:
        outside = sum(each / cluster.speed(a, b, slow, factor) + cluster.hop(a, b) / count for b in members if b != a)
        times.append(outside + NVLINK_SECONDS)
    return times


def transfer_seconds(
    cluster: Cluster, members: Sequence[int], op: str, size: float, slow: Element | None = None, factor: float = 1.0
) -> list[float]:
    """Seconds for each member, from the moment at which all are there. `slow` has 1/`factor` of its speed."""
    if op == "all_to_all":
        return exchange_seconds(cluster, members, size, slow, factor)
    return [ring_seconds(cluster, members, op, size, slow, factor)] * len(members)


def users(cluster: Cluster, members: Sequence[int], op: str) -> dict[Element, set[int]]:
    """By part of the network: the members (their places) whose end shows that it is slow."""
    found: dict[Element, set[int]] = {}
    everybody = set(range(len(members)))
    if op == "all_to_all":
        place = {rank: i for i, rank in enumerate(members)}
        for a in members:
            for b in members:
                for element in cluster.elements(a, b) if a < b else ():
                    found.setdefault(element, set()).update((place[a], place[b]))
        return found
    for a, b in edges(members):
        for element in cluster.elements(a, b):
            found[element] = everybody
    return found
