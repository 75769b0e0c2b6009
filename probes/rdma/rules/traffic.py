"""How much an RDMA port sent and received since the last look: nothing to judge, much to explain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.probe import Fact

FLOWS: Final[Mapping[str, tuple[str, int]]] = {
    # In words of four bytes, whatever the lanes (InfiniBand Architecture Specification 16.1.3.5, PortXmitData).
    "counters/port_xmit_data": ("sent_bytes_per_second", 4),
    "counters/port_rcv_data": ("received_bytes_per_second", 4),
    # What rxe, RDMA in software, counts in their place.
    "hw_counters/sent_pkts": ("sent_packets_per_second", 1),
    "hw_counters/rcvd_pkts": ("received_packets_per_second", 1),
}
"""Counters that grow with traffic: what their increase is, and how much one count stands for."""


def traffic(ports: Iterable[tuple[str, Mapping[str, int]]], history: CounterHistory) -> Iterator[Fact]:
    """`ports`: a port's name with its counters. One fact, of the ports that were seen before."""
    rates = {port: rate for port, flows in ports if (rate := _rates(port, flows, history))}
    if rates:
        yield Fact("traffic", rates)


def _rates(port: str, flows: Mapping[str, int], history: CounterHistory) -> dict[str, float]:
    grown = {name: history.increase(f"{port} {name}", value) for name, value in flows.items()}
    return {
        FLOWS[name][0]: round(increase.count * FLOWS[name][1] / increase.seconds, 1)
        for name, increase in grown.items()
        if increase
    }
