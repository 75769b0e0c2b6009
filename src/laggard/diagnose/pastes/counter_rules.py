"""What counters of ports tell, as rows of a table: which counter, from what value on, is a finding of what. Pure.

Thresholds of InfiniBand's counters: those of ibcheckerrors (infiniband-diags). Ethernet's counters grow over the whole
uptime, so that what drops or is damaged counts from a share of the packets on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.probe import finding


class CounterRule(NamedTuple):
    name: str
    """A regular expression for the counter's whole name."""
    code: str
    meaning: str
    least: int
    """The value from which on it is a finding."""
    least_share: float = 0.0
    """The share of the received packets from which on it is one, where their number is known."""


_DAMAGED: Final = "bits are damaged on the way: cable, transceiver or plug"
_FULL: Final = "packets are dropped for want of buffers: congestion, or no pause where it is needed"
RULES: Final[tuple[CounterRule, ...]] = (
    CounterRule("SymbolErrorCounter(?:Extended)?", "RDMA_ERRORS_RISING", _DAMAGED, 10),
    CounterRule("LinkErrorRecoveryCounter(?:Extended)?", "RDMA_LINK_FLAPPING", "the link had to recover", 10),
    CounterRule("LinkDownedCounter(?:Extended)?", "RDMA_LINK_FLAPPING", "the link went down", 10),
    CounterRule("PortRcvErrors(?:Extended)?", "RDMA_ERRORS_RISING", _DAMAGED, 10),
    CounterRule("LocalLinkIntegrityErrors(?:Extended)?", "RDMA_ERRORS_RISING", _DAMAGED, 10),
    CounterRule("ExcessiveBufferOverrunErrors(?:Extended)?", "RDMA_ERRORS_RISING", "flow control failed", 10),
    CounterRule("PortRcvRemotePhysicalErrors(?:Extended)?", "RDMA_ERRORS_RISING", "another link damages bits", 100),
    CounterRule("PortXmitDiscards(?:Extended)?", "RDMA_ERRORS_RISING", _FULL, 100),
    CounterRule(r"(?:port[._])?rx_(?:crc|fcs)_err\w*(?:\.nic)?|rx_crc_errors_phy", "RDMA_ERRORS_RISING", _DAMAGED, 100,
        1e-7),
    CounterRule(r"rx_(?:pcs_)?symbol_err_phy", "RDMA_ERRORS_RISING", _DAMAGED, 1000, 1e-7),
    CounterRule(r"[rt]x_discards_phy", "RDMA_ERRORS_RISING", _FULL, 1000, 1e-5),
    CounterRule(r"rx_out_of_buffer|rx_missed_errors|rx_no_dma_resources", "RDMA_ERRORS_RISING", _FULL, 1000, 1e-4),
    CounterRule(r"[rt]x_prio\d_discards", "RDMA_ERRORS_RISING", _FULL, 1000, 1e-5),
    CounterRule(r"[rt]x_pause_storm_\w+_events", "RDMA_ERRORS_RISING", "a storm of pause frames", 1),
    CounterRule(r"link_down_events_phy", "RDMA_LINK_FLAPPING", "the link went down", 3),
    CounterRule(r"module_(?:bad_shorted|bus_stuck|high_temp)", "RDMA_ERRORS_RISING", "the transceiver is faulty", 1),
    CounterRule(r"[rt]x_pci_signal_integrity", "PCIE_AER_ERRORS", "bits are damaged in the PCIe slot", 100),
    CounterRule(r"outbound_pci_stalled_(?:rd|wr)", "PCIE_LINK_DEGRADED", "percent of its time the NIC waits for PCIe",
        10),
    CounterRule(r"outbound_pci_buffer_overflow", "PCIE_LINK_DEGRADED", "packets were lost, PCIe was too slow", 1000),
)  # fmt: skip
_COMPILED: Final = tuple((re.compile(rule.name), rule) for rule in RULES)
_MAX_TOLD: Final = 4
_LANE: Final = re.compile(r"rx_err_lane_(\d+)_phy")
_MIN_LANE_SHARE: Final = 0.9
_FIXES: Final = {
    "RDMA_ERRORS_RISING": "Clean or replace the cable and its transceivers where bits are damaged; where packets are "
    "dropped, check priority flow control and ECN on both ends. Reset the counters, and see which grow.",
    "RDMA_LINK_FLAPPING": "Clean or replace the cable and its transceivers; look at the switch's port.",
    "PCIE_AER_ERRORS": "Reseat the card or its riser; then have the slot or the card replaced.",
    "PCIE_LINK_DEGRADED": "Check the NIC's PCIe link (LnkSta), its MaxReadReq, and the IOMMU's mode.",
}


def judge_counters(device: str, counters: Mapping[str, int], commands: tuple[str, ...]) -> Iterator[Finding]:
    """Yields one finding for each code, with the counters that are too high."""
    packets = counters.get("rx_packets") or counters.get("rx_packets_phy") or 0
    found: dict[str, list[tuple[str, int, str]]] = {}
    for name, value in counters.items():
        rule = next((rule for pattern, rule in _COMPILED if pattern.fullmatch(name)), None)
        if rule and value >= rule.least and value >= rule.least_share * packets:
            found.setdefault(rule.code, []).append((name, value, rule.meaning))
    lane = _bad_lane(counters)
    for code, rows in found.items():
        told = ", ".join(f"{name} {value}" for name, value, _ in rows[:_MAX_TOLD])
        yield finding(
            code,
            device,
            f"counts {told}: {rows[0][2]}",
            severity=Severity.WARNING,
            evidence={**{name: value for name, value, _ in rows[:16]}, "most_errors_on": lane},
            fix=_FIXES[code],
            commands=commands,
        )


def _bad_lane(counters: Mapping[str, int]) -> str | None:
    """Returns the lane that has nearly all errors of the lanes; None where none stands out."""
    lanes = {match[1]: value for name, value in counters.items() if (match := _LANE.fullmatch(name))}
    worst = max(lanes, key=lambda lane: lanes[lane], default=None)
    if worst is None or len(lanes) < 2 or lanes[worst] < _MIN_LANE_SHARE * sum(lanes.values()) or not lanes[worst]:
        return None
    return f"lane {worst}"
