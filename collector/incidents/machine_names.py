"""The machine that a name stands for: told by its GPUs' UUIDs, over new names, new images and single new GPUs. No
clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from laggard.collector.incidents.fault import NodeName, NodeSight

SAME_SHARE = 0.5
"""The share of the GPUs, of the fewer of the two, from which on two sets are one machine: single GPUs are replaced, or
have fallen off the bus. laggard's choice."""

RENEW_SECONDS = 3600.0
"""The largest age of what is stored of a name that is seen."""

MAX_NAMES = 65_536
"""The most names that are remembered."""


class MachineNames:
    def __init__(self, known: Iterable[NodeName] = ()) -> None:
        self._by_node: dict[str, NodeName] = {}
        self._stored_at: dict[str, float] = {}
        for name in sorted(known, key=lambda it: it.seen_at):
            self._by_node[name.node] = name

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
            self._by_node[sight.node] = now
            if is_other or abs(wall - self._stored_at.get(sight.node, 0.0)) >= RENEW_SECONDS:
                self._stored_at[sight.node] = wall
                changed.append(now)
        return changed

    def _named(self, sight: NodeSight, was: NodeName | None, wall: float) -> NodeName:
        gpus = tuple(sorted(sight.gpus))
        if was is not None and (not gpus or not was.gpus or _is_same(was.gpus, gpus)):
            machine = was.machine or (gpus[0] if gpus else "")
            return structs.replace(was, machine=machine, gpus=gpus or was.gpus, seen_at=max(was.seen_at, wall))
        elsewhere = (it for it in self._by_node.values() if gpus and it.gpus and _is_same(it.gpus, gpus))
        found = max(elsewhere, key=lambda it: it.seen_at, default=None)
        return NodeName(sight.node, found.machine if found else gpus[0] if gpus else "", wall, wall, gpus)


def _is_same(some: Sequence[str], others: Sequence[str]) -> bool:
    shared = len(set(some) & set(others))
    return shared > 0 and shared >= SAME_SHARE * min(len(some), len(others))
