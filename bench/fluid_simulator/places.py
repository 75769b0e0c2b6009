"""Places where a network can be slow, and the transfers that show it: so a truth knows whom no recording tells
apart."""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from fluid_simulator.cluster import Cluster, Resource
from fluid_simulator.job import Drawn


class Place(NamedTuple):
    """`kind` and `at`: `nic`, an adapter, at (machine, adapter); `node`, all adapters of a machine, at (machine,);
    `pair`, the ways between two machines, at (lower, higher); `leaf`, a switch's uplinks, at (leaf,); `v`, a GPU's
    NVLink, at (rank,)."""

    kind: str
    at: tuple[int, ...]

    def __str__(self) -> str:
        return str((self.kind, *self.at))


class Traffic:
    """The transfers of a job, by where they pass. `kinds`: of each transfer, what it can be compared with; `between`:
    those between machines."""

    def __init__(self) -> None:
        self.kinds: dict[Hashable, Hashable] = {}
        self.between: set[Hashable] = set()
        self._at: dict[Place, set[Hashable]] = {}

    def at(self, place: Place) -> set[Hashable]:
        """The transfers that pass the place."""
        return self._at[place]

    @property
    def places(self) -> list[Place]:
        """All places that transfers pass, in one order."""
        return sorted(self._at, key=str)

    def same(self, place: Place) -> list[Place]:
        """The other places that the very same transfers pass."""
        return [other for other in self.places if other != place and self.at(other) == self.at(place)]

    def stands_out(self, place: Place) -> bool:
        """Whether of some kind of transfer that passes it there is another that does not: else all are slow alike."""
        passing = self.at(place)
        kinds = {self.kinds[transfer] for transfer in passing}
        return any(self.kinds[transfer] in kinds for transfer in self.kinds if transfer not in passing)

    def add(self, transfer: Hashable, kind: Hashable) -> None:
        self.kinds[transfer] = kind

    def within_machine(self, transfer: Hashable, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._pass(transfer, Place("v", (rank,)))

    def between_machines(self, transfer: Hashable, resources: Iterable[Resource]) -> None:
        self.between.add(transfer)
        for resource in resources:
            for place in _places_of(resource):
                self._pass(transfer, place)

    def _pass(self, transfer: Hashable, place: Place) -> None:
        self._at.setdefault(place, set()).add(transfer)


def _places_of(resource: Resource) -> tuple[Place, ...]:
    if resource.kind in ("out", "in"):
        return Place("nic", resource.at), Place("node", resource.at[:1])
    if resource.kind == "path":
        return (Place("pair", resource.at[:2]),)
    return (Place("leaf", resource.at),)


def traffic_of(drawn: Drawn, collectives: Iterable[tuple[int, str, str]], pairs: Iterable[tuple[int, int]]) -> Traffic:
    """The traffic of a run. `collectives`: group, channels and operation of those that are large enough to matter;
    `pairs`: of senders and receivers."""
    found = Traffic()
    for index, channels, op in sorted(collectives):
        group = drawn.groups[index]
        key = (group.index, op)
        found.add(key, (group.role, group.name[:2], op, group.within_machine))
        if group.within_machine:
            found.within_machine(key, group.ranks)
        else:
            passed = (resource for channel in group.channels(channels) for resource, _ in channel.uses)
            found.between_machines(key, passed)
    for pair in pairs:
        _add_pair(found, drawn, *pair)
    return found


def _add_pair(found: Traffic, drawn: Drawn, sender: int, receiver: int) -> None:
    cluster, stages = drawn.cluster, drawn.memberships[sender].pp
    key = ("pair", sender, receiver)
    within = cluster.machine(sender) == cluster.machine(receiver)
    found.add(key, ("pair", within, stages is not None and receiver in stages.ranks))
    if within:
        found.within_machine(key, (sender, receiver))
    else:
        found.between_machines(key, cluster.way(sender, receiver))


def entry_of(cluster: Cluster, place: Place) -> dict[str, Any]:
    """The place as truths and answers name it."""
    names, first = cluster.names, place.at[0]
    if place.kind == "nic":
        return _link(cluster.ranks_at((first, place.at[1])), [names[first]])
    if place.kind == "node":
        return _link(cluster.ranks_of(first), [names[first]])
    if place.kind == "pair":
        ends = [names[machine] for machine in place.at]
        return _link([], ends) | {"between": list(ends)}
    if place.kind == "leaf":
        return _link([], [names[machine] for machine in cluster.machines_at(first)]) | {"switch": first}
    return _link([first], [cluster.name(first)])


def _link(ranks: list[int], nodes: list[str]) -> dict[str, Any]:
    return {"kind": "link", "ranks": ranks, "nodes": nodes}
