"""What makes a step longer, or stop: additions to a program's durations, and who may be named for them. Pure."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laggard_bench.cluster import Cluster, Element, users
from laggard_bench.program import GPU, HOST, INPUT, Program, Times

MAX_CLASS = 4096
"""The most culprits that a truth lists one by one."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One slowness. `how`: gpu, host or input of `ranks`, or link of `element`. `magnitude`: the share by which a GPU
    takes longer, the seconds a step of a host or an input, or the factor by which an element is slower."""

    how: str
    ranks: tuple[int, ...] = ()
    element: Element | None = None
    magnitude: float = 0.0

    def added(self, program: Program) -> Times:
        """[N]: the seconds that each event takes longer."""
        if self.how == "link":
            assert self.element is not None
            return program.slowed(self.element, 1.0 + self.magnitude)
        mine = np.isin(program.owner, self.ranks)
        if self.how == "gpu":
            return np.where(mine & (program.kind == GPU), program.duration * self.magnitude, 0.0)
        more = np.zeros(len(program.duration))
        shares = {INPUT: 1.0} if self.how == "input" else {HOST: 0.5, INPUT: 0.3, GPU: 0.2}
        for kind, share in shares.items():
            of_kind = mine & (program.kind == kind)
            weight = np.where(of_kind, program.duration, 0.0)
            whole = np.bincount(program.owner, weight, int(program.owner.max()) + 1)[program.owner]
            more += np.divide(share * self.magnitude * weight, whole, out=np.zeros_like(weight), where=whole > 0)
        return more


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that is wrong. `kind`: slow_compute, slow_host, slow_link, hang or death. `active`: by step, the share
    of the fault that acts. `stops`: by rank, the step in which it stops for good. `how`: of a hang or a death."""

    name: str
    kind: str
    parts: tuple[Part, ...] = ()
    active: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.zeros(0))
    shares: tuple[NDArray[np.float64], ...] = ()  # by part, where they act by turns
    stops: tuple[int, ...] = ()
    stop_step: int = -1
    how: str = ""
    ended: str = "killed"  # how a job that stands still ends: all are killed, or those that wait give up (timeout)
    optional: str = ""  # why nobody need name it

    def share(self, part: int, step: int) -> float:
        return float((self.shares[part] if self.shares else self.active)[step])


def same_ends(program: Program, element: Element) -> list[Element]:
    """The parts of the network that are slow in the very same collectives of the same ranks as this one, which is one
    of them: no recording tells them apart."""
    slots: dict[Element, set[tuple[int, int]]] = {}
    transfers = dict.fromkeys((it.members, it.op) for it in program.transfers)  # in the same order each time
    for number, (members, op) in enumerate(transfers):
        for used, places in users(program.cluster, members, "ring" if op == "send" else op).items():
            slots.setdefault(used, set()).update((number, place) for place in places)
    own = slots[element]
    return [other for other, theirs in slots.items() if theirs == own][:MAX_CLASS]


def stands_out(program: Program, element: Element) -> bool:
    """Whether a link that is always slow differs from others: a transfer alike in operation, size and extent does not
    use it, or some members of an exchange do not. Else it may be a network that is slower by design."""
    slow: set[tuple[Any, ...]] = set()
    other: set[tuple[Any, ...]] = set()
    for members, op, size in {(it.members, it.op, it.size) for it in program.transfers}:
        nodes = {program.cluster.node_of(rank) for rank in members}
        leaves = {program.cluster.leaf_of(node) for node in nodes}
        domains = {program.cluster.domain_of(rank) for rank in members}
        alike = (op, size, len(members), len(nodes), len(domains), len(leaves) > 1)
        places = users(program.cluster, members, "ring" if op == "send" else op).get(element, set())
        if places and len(places) < len(members) and op == "all_to_all":
            return True
        (slow if places else other).add(alike)
    return bool(slow & other)


def half_of_a_stage(ranks: Sequence[int], stages: Sequence[Sequence[int]]) -> bool:
    """Whether slow GPUs are half of the ranks that do the same work, or more: then nobody stands out."""
    mine = set(ranks)
    return any(2 * len(mine & set(stage)) >= len(stage) for stage in stages)


def culprit_of(cluster: Cluster, element: Element) -> dict[str, Any]:
    """An element as truth and answers name it."""
    if element.kind == "nic":
        return {"kind": "link", "ranks": [element.at[0]], "nodes": [cluster.name(cluster.node_of(element.at[0]))]}
    if element.kind in ("node", "nvlink"):
        return {"kind": "link", "ranks": cluster.ranks_of(element.at[0]), "nodes": [cluster.name(element.at[0])]}
    if element.kind == "link":
        names = [cluster.name(node) for node in element.at]
        return {"kind": "link", "ranks": [], "nodes": names, "between": names}
    nodes = [node for node in range(cluster.nodes) if cluster.leaf_of(node) == element.at[0]]
    return {"kind": "link", "ranks": [], "nodes": [cluster.name(node) for node in nodes], "switch": element.at[0]}


def machine(cluster: Cluster, ranks: tuple[int, ...], kind: str) -> dict[str, Any]:
    nodes = sorted({cluster.node_of(rank) for rank in ranks})
    return {"kind": kind, "ranks": sorted(ranks), "nodes": [cluster.name(node) for node in nodes]}
