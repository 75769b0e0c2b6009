"""Collectives: they begin when the last member is ready, and end for all when their bytes have gone.

Within a machine a collective takes its bytes over NVLink's rate; between machines it is flows of the network, one for
each channel, which moves over all of its edges at one rate. How many bytes cross an edge: nccl-tests' PERFORMANCE.md.
"""

from __future__ import annotations

import math

from fluid_simulator.fabric import Fabric
from fluid_simulator.groups import Group
from fluid_simulator.operations import Operation

SMALL_BYTES = 65536
"""The size below which a collective is latency, and takes nothing of the network."""
TREE_BYTES = 6e8
"""The size above which a ring is taken in place of trees. NCCL's choice depends on the cluster; this is its order."""
END_SKEW = 0.1
"""The share of the latency by which members' ends are apart, MEMBERS_APART of them by turns."""
MEMBERS_APART = 7


def algorithm(group: Group, op: str, size: float) -> str:
    """Returns which channels it takes: ring, tree or exchange."""
    if op == "all_to_all":
        return "exchange"
    return "tree" if op == "all_reduce" and group.algorithm == "tree" and size < TREE_BYTES else "ring"


def bytes_per_edge(op: str, members: int) -> float:
    """Bytes that cross each edge of a ring, over the collective's size."""
    return 2 * (members - 1) / members if op == "all_reduce" else (members - 1) / members


class Collectives:
    """Those that have not ended, so that members find one another."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.open: dict[tuple[int, str, int], Collective] = {}

    def join(self, group: Group, op: str, number: int, size: float) -> Collective:
        """The group's collective of that number. Of an all-to-all the fullest member decides how long it takes."""
        key = (group.index, op, number)
        found = self.open.get(key)
        if found is None:
            found = self.open[key] = Collective(self, group, op, size)
        elif size > found.size:
            found.size = size
        return found


class Collective:
    """`start`: when the last that came was ready; `parts`: its flows that have not ended."""

    __slots__ = ("group", "members", "op", "parts", "registry", "size", "start")

    def __init__(self, registry: Collectives, group: Group, op: str, size: float) -> None:
        self.registry, self.group, self.op, self.size = registry, group, op, size
        self.start, self.parts = 0.0, 0
        self.members: list[Operation] = []

    def arrive(self, part: Operation) -> None:
        self.members.append(part)
        assert part.ready is not None
        if part.ready > self.start:
            self.start = part.ready
        if len(self.members) == self.group.size:
            agenda = self.registry.fabric.agenda
            agenda.at(max(self.start, agenda.now), self._begin, None)

    def part_ended(self, now: float) -> None:
        self.parts -= 1
        if self.parts == 0:
            self.registry.fabric.agenda.at(now, self._end, None)

    def _begin(self, _: None) -> None:
        noise = self.registry.fabric.group_noise(self.group)
        if self.group.within_machine or self.size < SMALL_BYTES:
            self._by_itself(noise)
        else:
            self._over_the_network(noise)

    def _by_itself(self, noise: float) -> None:
        """Its time is known: nothing else can hold it up."""
        group, fabric = self.group, self.registry.fabric
        rate = fabric.cluster.nvlink_rate
        if fabric.nvlink_factors:
            rate *= fabric.nvlink_factor(group.ranks)
        hops = 1 if group.within_machine else 2 + math.log2(group.machines) * 2
        rate = rate if group.within_machine else fabric.cluster.adapter_rate
        seconds = fabric.settings.latency * hops + self.size * bytes_per_edge(self.op, group.size) / rate
        fabric.agenda.at(fabric.agenda.now + seconds * noise, self._end, None)

    def _over_the_network(self, noise: float) -> None:
        group, fabric = self.group, self.registry.fabric
        kind = algorithm(group, self.op, self.size)
        whole = {"exchange": 1.0, "tree": 2.0}.get(kind) or bytes_per_edge(self.op, group.size)
        channels = group.channels(kind)
        noise *= self._nvlink_decides(len(channels))
        self.parts = len(channels)
        hops = group.machines if kind == "ring" else 2 * math.log2(group.machines + 1)
        latency = fabric.settings.latency * hops * fabric.cluster.adapter_rate
        now = fabric.agenda.now
        for channel in channels:
            size = self.size * whole * channel.share * noise + latency
            fabric.network.add(self, size, channel.uses, now)

    def _nvlink_decides(self, channels: int) -> float:
        """Returns the factor by which it takes longer since a member's NVLink, which the same ring passes, is slower
        than all adapters."""
        group, fabric = self.group, self.registry.fabric
        if not fabric.nvlink_factors or group.size <= group.machines or self.op == "all_to_all":
            return 1.0
        nvlink = fabric.cluster.nvlink_rate * fabric.nvlink_factor(group.ranks)
        adapters = fabric.cluster.adapter_rate * channels
        return adapters / nvlink if nvlink <= adapters else 1.0

    def _end(self, _: None) -> None:
        now, apart = self.registry.fabric.agenda.now, self.registry.fabric.settings.latency
        for place, part in enumerate(self.members):
            part.finish(now + apart * END_SKEW * (place % MEMBERS_APART))
        self.registry.open.pop((self.group.index, self.op, self.members[0].number), None)
