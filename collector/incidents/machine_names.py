"""The machine that a name stands for: told by its GPUs' UUIDs, over new names, new images and single new GPUs. No
clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import structs

from laggard.collector.incidents.fault import NodeName, NodeSight

SAME_SHARE = 0.5
"""The share of the GPUs, of the fewer of the two, from which on two sets are one machine: single GPUs are replaced, or
have fallen off the bus. laggard's choice."""

RENEW_SECONDS = 3600.0
"""The largest age of what is stored of a name that is seen."""

MAX_NAMES = 65_536
"""The most names that are remembered."""

MAX_NAMES_OF_GPU = 64
"""The most names, the newest, that are looked at where a GPU is seen under another one: no machine has had more, and
agents that all tell of one GPU are not compared each with each."""


class MachineNames:
    def __init__(self, known: Iterable[NodeName] = ()) -> None:
        self._by_node: dict[str, NodeName] = {}
        self._stored_at: dict[str, float] = {}
        self._nodes_of_gpu: dict[str, dict[str, None]] = {}  # the names in the order in which they came
        for name in sorted(known, key=lambda it: it.seen_at):
            self._take(name)

    def machine(self, node: str) -> str:
        """The machine that has the name; empty where its GPUs are not known."""
        found = self._by_node.get(node)
        return found.machine if found else ""

    def observe(self, sights: Sequence[NodeSight], wall: float) -> list[NodeName]:
        """Takes one round in. Returns what is to be stored."""
        changed = []
        for sight in sights:
            was = self._by_node.get(sight.node)
            now = self._named(sight, was, wall)
            is_other = was is None or (was.machine, was.gpus) != (now.machine, now.gpus)
            if is_other and was is None and len(self._by_node) >= MAX_NAMES:
                continue
            self._take(now)
            if is_other or abs(wall - self._stored_at.get(sight.node, 0.0)) >= RENEW_SECONDS:
                self._stored_at[sight.node] = wall
                changed.append(now)
        return changed

    def _take(self, name: NodeName) -> None:
        was = self._by_node.get(name.node)
        self._by_node[name.node] = name
        before = was.gpus if was else ()
        if before == name.gpus:
            return
        for gpu in dict.fromkeys(before):
            nodes = self._nodes_of_gpu[gpu]
            del nodes[name.node]
            if not nodes:
                del self._nodes_of_gpu[gpu]
        for gpu in dict.fromkeys(name.gpus):
            self._nodes_of_gpu.setdefault(gpu, {})[name.node] = None

    def _elsewhere(self, gpus: Sequence[str]) -> NodeName | None:
        """The name under which a machine with these GPUs was seen last; None where there is none."""
        nodes = {node for gpu in gpus for node in islice(reversed(self._nodes_of_gpu.get(gpu, {})), MAX_NAMES_OF_GPU)}
        found = [it for node in nodes if _is_same((it := self._by_node[node]).gpus, gpus)]
        return max(found, key=lambda it: (it.seen_at, it.node), default=None)

    def _named(self, sight: NodeSight, was: NodeName | None, wall: float) -> NodeName:
        gpus = tuple(sorted(sight.gpus))
        if was is not None and (not gpus or not was.gpus or _is_same(was.gpus, gpus)):
            machine = was.machine or (gpus[0] if gpus else "")
            return structs.replace(was, machine=machine, gpus=gpus or was.gpus, seen_at=max(was.seen_at, wall))
        found = self._elsewhere(gpus)
        return NodeName(sight.node, found.machine if found else gpus[0] if gpus else "", wall, wall, gpus)


def _is_same(some: Sequence[str], others: Sequence[str]) -> bool:
    shared = len(set(some) & set(others))
    return shared > 0 and shared >= SAME_SHARE * min(len(some), len(others))
