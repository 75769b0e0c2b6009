"""The traffic that RDMA ports sent and received since the last snapshot: facts that help to explain findings, not
judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.probe import Fact

TRAFFIC_COUNTERS: Final[Mapping[str, tuple[str, int]]] = {
    # In words of four bytes, for any number of lanes (InfiniBand Architecture Specification 16.1.3.5, PortXmitData).
    "counters/port_xmit_data": ("sent_bytes_per_second", 4),
    "counters/port_rcv_data": ("received_bytes_per_second", 4),
    # rxe, RDMA in software, has these instead.
    "hw_counters/sent_pkts": ("sent_packets_per_second", 1),
    "hw_counters/rcvd_pkts": ("received_packets_per_second", 1),
}
"""Counters of traffic: the name of their rate in the facts, and how many units one count is."""


def traffic_rates(ports: Iterable[tuple[str, Mapping[str, int]]], history: CounterHistory) -> Iterator[Fact]:
    """Yields one fact with the rates of the ports that have a snapshot. `ports`: each port's name and its counters."""
    rates = {port: rate for port, counters in ports if (rate := _rates(port, counters, history))}
    if rates:
        yield Fact("traffic", rates)


def _rates(port: str, counters: Mapping[str, int], history: CounterHistory) -> dict[str, float]:
    increases = {name: history.increase(f"{port} {name}", value) for name, value in counters.items()}
    return {
        TRAFFIC_COUNTERS[name][0]: round(increase.count * TRAFFIC_COUNTERS[name][1] / increase.seconds, 1)
        for name, increase in increases.items()
        if increase
    }
