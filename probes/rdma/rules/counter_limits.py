"""The increase that the error counters of an RDMA port may have in a period.

The limits are those of NVSentinel's monitor of NIC counters where it has one. Its fatal counters are critical here if
they count faults of the link itself, and warnings if a peer that died can raise them. 120 symbol errors an hour are the
bit error rate that InfiniBand allows a link (10^-12). Amazon's EFA and Broadcom's NICs (bnxt_re) have other names than
ConnectX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.probes.host.counter_history import CounterHistory
from laggard.probes.probe import Fact

HOUR: Final = 3600.0


class CounterLimit(NamedTuple):
    """An increase by more than `most` in `period` seconds is a finding."""

    most: float
    period: float
    critical: bool
    meaning: str


LIMITS: Final[Mapping[str, CounterLimit]] = {
    "counters/symbol_error": CounterLimit(120, HOUR, True, "bits arrive damaged: cable, transceiver"),
    "counters/local_link_integrity_errors": CounterLimit(0, 1, True, "the link was on the verge of failing"),
    "counters/excessive_buffer_overrun_errors": CounterLimit(0, 1, True, "buffers overran for many packets in a row"),
    "counters/link_error_recovery": CounterLimit(5, 60, False, "the link had to be trained anew"),
    "counters/port_rcv_errors": CounterLimit(10, 1, False, "damaged packets arrive"),
    "counters/port_xmit_discards": CounterLimit(
        100, 1, False, "packets are thrown away, as the link is down or congested"
    ),
    "hw_counters/local_ack_timeout_err": CounterLimit(1, 1, False, "packets are lost: no answer came"),
    "hw_counters/rnr_nak_retry_err": CounterLimit(0, 1, False, "a peer was not ready to receive until retries ran out"),
    "hw_counters/packet_seq_err": CounterLimit(10, 1, False, "packets are lost on the way to peers"),
    "hw_counters/implied_nak_seq_err": CounterLimit(10, 1, False, "answers are lost on the way back"),
    "hw_counters/out_of_sequence": CounterLimit(100, 1, False, "packets arrive out of order, or are lost before here"),
    "hw_counters/retrans_timeout_events": CounterLimit(10, 1, False, "EFA: packets are lost, and sent again"),
    "hw_counters/unresponsive_remote_events": CounterLimit(1, 1, False, "EFA: a peer gave no answer"),
    "hw_counters/impaired_remote_conn_events": CounterLimit(10, 1, False, "EFA: connections to peers are impaired"),
    "hw_counters/to_retransmits": CounterLimit(1, 1, False, "packets are lost: no answer came"),
    "hw_counters/seq_err_naks_rcvd": CounterLimit(10, 1, False, "packets are lost on the way to peers"),
    "hw_counters/roce_slow_restart": CounterLimit(10, 1, False, "senders start slowly again after loss"),
}
SATURATED: Final = {  # highest values: PortCounters attribute, InfiniBand Architecture Specification 16.1.3.5
    "counters/symbol_error": 0xFFFF,
    "counters/link_error_recovery": 0xFF,
    "counters/link_downed": 0xFF,
    "counters/port_rcv_errors": 0xFFFF,
    "counters/port_xmit_discards": 0xFFFF,
    "counters/local_link_integrity_errors": 0xF,
    "counters/excessive_buffer_overrun_errors": 0xF,
}


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
