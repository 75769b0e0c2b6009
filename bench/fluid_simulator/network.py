"""The network as fluid: flows share what they pass by max-min fairness, and shares change as flows come and go.

A flow gets no less than any other that is held up at the same place, unless it is held up elsewhere (Bertsekas and
Gallager, Data Networks, 1992, section 6.5.2). TCP and the congestion control of RoCE come near to that over tens of
milliseconds; what is shorter is not modelled.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from fluid_simulator.agenda import Agenda
from fluid_simulator.cluster import Cluster, Resource

Uses = Sequence[tuple[Resource, float]]
"""The resources that a flow passes, and how often: an adapter several times, where a ring's edges share it."""
SLOWEST_RATE = 1.0
"""Bytes a second at and below which a flow counts as standing still."""


class Owner(Protocol):
    """Somebody who wants to know when a flow ended."""

    def part_ended(self, now: float) -> None: ...


class Flow:
    """`left`: bytes, as of the time `since`; `rate`: bytes a second. `version` counts the changes of its rate."""

    __slots__ = ("alive", "left", "number", "owner", "rate", "since", "uses", "version")

    def __init__(self, number: int, owner: Owner, size: float, uses: Uses, now: float) -> None:
        self.number, self.owner, self.left, self.uses, self.since = number, owner, size, uses, now
        self.rate, self.version, self.alive = 0.0, 0, True


def max_min(
    flows: Sequence[Flow], users: Mapping[Resource, Iterable[int]], capacity: Callable[[Resource], float]
) -> dict[int, float]:
    """The fair rates of flows, by their numbers. `users`: the numbers of the flows that pass a resource."""
    if len(flows) == 1:
        return {flows[0].number: min(capacity(resource) / times for resource, times in flows[0].uses)}
    left, demand = _demands(flows, capacity)
    rates: dict[int, float] = {}
    waiting = {flow.number: flow for flow in flows}
    while waiting:
        tightest, rate = _tightest(left, demand)
        if tightest is None:
            break
        for number in [number for number in users[tightest] if number in waiting]:
            rates[number] = rate
            for resource, times in waiting.pop(number).uses:
                left[resource] = max(0.0, left[resource] - rate * times)
                demand[resource] -= times
    return rates


def _demands(
    flows: Sequence[Flow], capacity: Callable[[Resource], float]
) -> tuple[dict[Resource, float], dict[Resource, float]]:
    """Returns the capacity of each resource, and how often flows pass it."""
    left: dict[Resource, float] = {}
    demand: dict[Resource, float] = {}
    for flow in flows:
        for resource, times in flow.uses:
            if resource not in left:
                left[resource] = capacity(resource)
                demand[resource] = 0
            demand[resource] += times
    return left, demand


def _tightest(left: Mapping[Resource, float], demand: Mapping[Resource, float]) -> tuple[Resource | None, float]:
    """The resource that gives each of its flows least, and that rate."""
    least, found = float("inf"), None
    for resource, times in demand.items():
        if times > 0:
            rate = left[resource] / times
            if rate < least - 1e-9:
                least, found = rate, resource
    return found, least


class Network:
    """`factors`: by resource, the share of its rate that a fault leaves. `others`: the share of all adapters and
    uplinks that other jobs leave."""

    def __init__(self, agenda: Agenda, cluster: Cluster) -> None:
        self.agenda, self.cluster = agenda, cluster
        self.factors: dict[Resource, float] = {}
        self.others = 1.0
        self._flows: dict[Resource, dict[int, Flow]] = {}
        self._oversubscribed = cluster.oversubscription > 1.01

    def capacity(self, resource: Resource) -> float:
        """Bytes a second."""
        cluster, factor = self.cluster, self.factors.get(resource, 1.0)
        if resource.kind in ("out", "in"):
            return cluster.adapter_rate * factor * self.others
        if resource.kind == "path":
            return cluster.adapter_rate * factor
        whole = cluster.leaf_machines * cluster.adapters * cluster.adapter_rate
        return whole / cluster.oversubscription * factor * self.others

    def _may_bind(self, resource: Resource) -> bool:
        """Whether the resource can hold a flow up at all; else it is left out, to be quick."""
        kind = resource.kind
        return kind in ("out", "in") or resource in self.factors or (kind in ("up", "down") and self._oversubscribed)

    def add(self, owner: Owner, size: float, uses: Uses, now: float) -> None:
        """Lets a flow of so many bytes begin; its owner is told when it ended."""
        binding = [(resource, times) for resource, times in uses if self._may_bind(resource)]
        flow = Flow(self.agenda.number(), owner, size, binding, now)
        for resource, _ in flow.uses:
            self._flows.setdefault(resource, {})[flow.number] = flow
        self._share(self._connected(flow), now)

    def share_anew(self, now: float) -> None:
        """Shares everything anew, as factors changed."""
        every: dict[int, Flow] = {}
        for flows in self._flows.values():
            every.update(flows)
        self._share_each(every, now)

    def _share_each(self, flows: dict[int, Flow], now: float) -> None:
        """Shares anew among these, and all that share anything with them."""
        done: set[int] = set()
        for number, flow in flows.items():
            if number not in done:
                connected = self._connected(flow)
                done.update(connected)
                self._share(connected, now)

    def _connected(self, first: Flow) -> dict[int, Flow]:
        """The flows that share something with this one, or with such that do."""
        found, todo, seen = {first.number: first}, [first], set()
        while todo:
            for resource, _ in todo.pop().uses:
                if resource in seen:
                    continue
                seen.add(resource)
                for number, flow in self._flows[resource].items():
                    if number not in found:
                        found[number] = flow
                        todo.append(flow)
        return found

    def _share(self, connected: dict[int, Flow], now: float) -> None:
        flows = list(connected.values())
        for flow in flows:
            flow.left -= flow.rate * (now - flow.since)
            flow.since = now
        rates = max_min(flows, self._flows, self.capacity)
        for flow in flows:
            rate = rates.get(flow.number, self.cluster.adapter_rate)
            if rate == flow.rate and flow.version:
                continue
            flow.rate = rate
            flow.version += 1
            if rate > SLOWEST_RATE:
                self.agenda.at(now + max(flow.left, 0.0) / rate, self._ended, (flow, flow.version))

    def _ended(self, what: tuple[Flow, int]) -> None:
        flow, version = what
        if not flow.alive or flow.version != version:
            return
        flow.alive = False
        for resource, _ in flow.uses:
            del self._flows[resource][flow.number]
        touched: dict[int, Flow] = {}
        for resource, _ in flow.uses:
            touched.update(self._flows[resource])
        now = self.agenda.now
        self._share_each(touched, now)
        flow.owner.part_ended(now)
