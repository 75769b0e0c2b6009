"""Sends and receives between two ranks.

A send whose bytes fit a buffer may end before its receive is there (eager); any other begins when both are ready.
"""

from __future__ import annotations

from fluid_simulator.fabric import Fabric
from fluid_simulator.operations import Operation

EAGER_BYTES = 8e6
"""The size below which a send may be eager: NCCL buffers NCCL_BUFFSIZE, 4 MiB by default, a channel."""
RECEIVED_SECONDS = 2e-6
"""The time by which a receive ends later than its send."""


class Transfers:
    """Those that have not ended, so that sender and receiver find each other."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.open: dict[tuple[int, int, int], Transfer] = {}

    def join(self, sender: int, receiver: int, number: int, size: float) -> Transfer:
        key = (sender, receiver, number)
        found = self.open.get(key)
        if found is None:
            found = self.open[key] = Transfer(self, key, size)
        return found


class Transfer:
    __slots__ = ("arrived", "eager", "key", "receive", "registry", "send", "size", "started")

    def __init__(self, registry: Transfers, key: tuple[int, int, int], size: float) -> None:
        self.registry, self.key, self.size = registry, key, size
        self.send: Operation | None = None
        self.receive: Operation | None = None
        self.started = self.arrived = False
        self.eager = registry.fabric.settings.eager and size < EAGER_BYTES

    def arrive(self, part: Operation) -> None:
        if part.op == "send":
            self.send = part
        else:
            self.receive = part
        agenda = self.registry.fabric.agenda
        if self.eager and self.send is not None and not self.started:
            self.started = True
            agenda.at(max(_ready(self.send), agenda.now), self._begin, None)
        elif not self.eager and self.send is not None and self.receive is not None:
            agenda.at(max(_ready(self.send), _ready(self.receive), agenda.now), self._begin, None)
        elif self.eager and self.arrived and part.op == "recv":
            agenda.at(max(_ready(part), agenda.now), self._received, None)

    def part_ended(self, now: float) -> None:
        self.registry.fabric.agenda.at(now, self._end, None)

    def _begin(self, _: None) -> None:
        fabric, (sender, receiver, _number) = self.registry.fabric, self.key
        cluster, now, latency = fabric.cluster, fabric.agenda.now, fabric.settings.latency
        noise = fabric.pair_noise(sender, receiver)
        if cluster.machine(sender) == cluster.machine(receiver):
            rate = cluster.nvlink_rate * fabric.nvlink_factor((sender, receiver))
            fabric.agenda.at(now + latency + self.size / rate * noise, self._end, None)
            return
        uses = [(resource, 1) for resource in cluster.way(sender, receiver)]
        fabric.network.add(self, self.size * noise + latency * cluster.adapter_rate, uses, now)

    def _end(self, _: None) -> None:
        assert self.send is not None
        agenda = self.registry.fabric.agenda
        now = agenda.now
        if self.eager:
            self.arrived = True
            self.send.finish(now)
            if self.receive is not None:
                agenda.at(max(now, _ready(self.receive)), self._received, None)
            return
        assert self.receive is not None
        self.registry.open.pop(self.key, None)
        self.receive.finish(now + RECEIVED_SECONDS)
        self.send.finish(now)

    def _received(self, _: None) -> None:
        assert self.receive is not None
        if not self.receive.done:
            self.receive.finish(self.registry.fabric.agenda.now + RECEIVED_SECONDS)


def _ready(part: Operation) -> float:
    assert part.ready is not None
    return part.ready
