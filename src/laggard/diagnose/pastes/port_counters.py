"""The formats `perfquery`, `ethtool -S`, `ibdiagnet` and `mlxlink`: counters and error rates of a port that are too
high.

ibqueryerrors' output is read too. Thresholds of InfiniBand's counters: those of ibcheckerrors (infiniband-diags).
Ethernet's counters grow over the whole uptime, so that what drops or is damaged counts from a share of the packets on.

Sources: infiniband-diags (src/perfquery.c, src/ibqueryerrors.c), the kernel's
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; ibutils2
(ibdiag/src/ibdiag_fabric_errs.cpp), NVIDIA's UFM manual; mstflint (mlxlink), NVIDIA's MFT manual, "mlxlink utility".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.diagnose.pastes.section import Lack, Section, parts_of, paste_format
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding


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
COUNTER_RULES: Final[tuple[CounterRule, ...]] = (
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
_COMPILED: Final = tuple((re.compile(rule.name), rule) for rule in COUNTER_RULES)
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


_IB_HEAD: Final = re.compile(
    r"^# Port (?:extended )?counters: (.{1,80})$|^[^\S\n]+GUID (0x[0-9a-f]+ port \d+|\S+ port \d+):.*\[\w+ == \d+",
    re.MULTILINE,
)
_IB_FIELD: Final = re.compile(r"^(\w{4,40}):\.{2,}(\d{1,20})\s*$", re.MULTILINE)
_QUERIED: Final = re.compile(r"\[(\w{4,40}) == (\d{1,20})")
_NIC_HEAD: Final = re.compile(r"^(?:NIC|Standard) (?:statistics|stats for \S+):?\s*$", re.MULTILINE)
_NIC_FIELD: Final = re.compile(r"^[^\S\n]+([\w.]{3,60}): (\d{1,20})\s*$", re.MULTILINE)
_DEVICE: Final = re.compile(r"\bethtool (?:-\S+ |--\S+ )*([\w.-]+)")


def read_infiniband(section: Section) -> Iterator[Finding | Fact | Lack]:
    for head, part in parts_of(_IB_HEAD, section.text):
        pattern = _IB_FIELD if head[1] else _QUERIED
        counters = {name: int(value) for name, value in pattern.findall(part)}
        device = _infiniband_name(head[1] or f"GUID {head[2]}")
        yield Fact("counters", len(counters))
        if not counters:
            yield Lack("no counter is in it: run perfquery LID PORT")
        yield from judge_counters(device, counters, ("ibqueryerrors", "mlxlink -d DEVICE -c", "perfquery -R LID PORT"))


def _infiniband_name(words: str) -> str:
    return re.sub(r"^Lid (\d+) port (\d+).*", r"LID \1 port \2", words)


def read_nic(section: Section) -> Iterator[Finding | Fact | Lack]:
    named = _DEVICE.search(section.command)
    device = named[1] if named else "the NIC"
    counters = {name: int(value) for name, value in _NIC_FIELD.findall(section.text)}
    yield Fact("counters", len(counters))
    if not counters:
        yield Lack("no counter is in it: run ethtool -S DEV")
    yield from judge_counters(device, counters, ("ethtool -S DEV", "mlxlink -d DEVICE -m -c", "ethtool -m DEV"))


PERFQUERY: Final = paste_format("perfquery", _IB_HEAD, read_infiniband)
ETHTOOL_COUNTERS: Final = paste_format("ethtool -S", _NIC_HEAD, read_nic)


_IBDIAGNET_HEAD: Final = re.compile(
    r"^-I- (?:Discover\w*|Using port|Fabric Discover|Stage\s)|^Running version\s+: \"IBDIAG", re.MULTILINE
)
_LINE: Final = re.compile(r"^-([EW])- (.{1,400})$", re.MULTILINE)
_PORT: Final = re.compile(r"\b[HSR]/\"?[^\"\n]{1,120}?\"?/P\d+(?:/\d+)*|\b[\w.;:-]+(?:/[\w.-]+)?/P\d+\b")
_CLOSING: Final = re.compile(r"finished with|Check finished|see file|can find", re.IGNORECASE)
IBDIAGNET_RULES: Final[tuple[tuple[str, re.Pattern[str], Severity, str], ...]] = (
    ("RDMA_RATE_LOW",
        re.compile(r"[Uu]nexpected (?:actual )?(?:link )?(?:speed|width)|[Ll]ow (?:speed|width)|link (?:speed|width)"),
        Severity.CRITICAL, "Reseat or swap the cable of this link, then its transceivers, then the switch's port."),
    ("RDMA_LINK_FLAPPING", re.compile(r"link_downed|link_error_recovery|LinkDowned|LinkErrorRecovery"),
        Severity.WARNING, "Clean or replace the cable and its transceivers; look at the switch's port."),
    ("RDMA_ERRORS_RISING",
        re.compile(r"symbol_err|BER\b|_error|_errors|discard|integrity|overrun|SymbolErr|PortRcv", re.IGNORECASE),
        Severity.WARNING,
        "Clean or replace the cable and its transceivers; then reset the counters and look again: ibdiagnet -pc."),
    ("RDMA_PORT_DOWN",
        re.compile(r"\bINIT\b|not ACTIVE|[Mm]aster [Ss]ubnet [Mm]anager|[Nn]ot found master|link.{0,40}\bdown\b"),
        Severity.CRITICAL, "See that one subnet manager runs (sminfo), and that it reaches this port."),
)  # fmt: skip


def read_ibdiagnet(section: Section) -> Iterator[Finding | Fact | Lack]:
    found: dict[tuple[str, str], list[str]] = {}
    others: list[str] = []
    lines = [match for match in _LINE.finditer(section.text) if not _CLOSING.search(match[2])][:4096]
    for match in lines:
        row = next((row for row in IBDIAGNET_RULES if row[1].search(match[2])), None)
        if row is None:
            others += [match[2]] if match[1] == "E" else []
            continue
        found.setdefault((row[0], " and ".join(_PORT.findall(match[2])[:2]) or "the fabric"), []).append(match[2])
    yield Fact("errors_and_warnings", len(lines))
    for (code, device), texts in found.items():
        yield _ibdiagnet_finding(code, device, texts)
    if others:
        yield Lack(f"{len(others)} errors are of kinds that are not judged here, the first: {others[0][:160]}")


def _ibdiagnet_finding(code: str, device: str, texts: list[str]) -> Finding:
    _, _, severity, fix = next(row for row in IBDIAGNET_RULES if row[0] == code)
    said = texts[0].partition(" - ")[2] or texts[0]
    return finding(
        code,
        device,
        f"has a fault, ibdiagnet says: {said[:200]}",
        severity=severity,
        evidence={"times": len(texts), "line": texts[0], "last_line": texts[-1] if len(texts) > 1 else None},
        fix=fix,
        commands=("ibqueryerrors", "mlxlink -d DEVICE -m -c"),
    )


IBDIAGNET: Final = paste_format("ibdiagnet", _IBDIAGNET_HEAD, read_ibdiagnet)


_MLXLINK_HEAD: Final = re.compile(r"^Operational Info\s*\n-+\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^([A-Z][\w /\[\]().-]{2,50}?)\s*: (.*?)\s*$", re.MULTILINE)
_MLXLINK_DEVICE: Final = re.compile(r"\bmlxlink\b.*? (?:-d|--device) ?(\S+)(?:.*? (?:-p|--port) ?(\S+))?")
_SPEEDS: Final = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
_SPEED: Final = re.compile(r"\b(?:SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_UNUSED: Final = re.compile(r"unplugged|no cable|closed? by command|disabled by command", re.IGNORECASE)
_NOTHING: Final = re.compile(r"no issue|^N/A$|^$", re.IGNORECASE)
MAX_ERROR_RATE: Final = 1e-12
"""The largest bit error rate that is left after correction of a good link: InfiniBand's specification."""
MAX_LINK_DOWNS: Final = 5
_RATES: Final = ("Effective Physical BER", "Symbol BER")
_FIX: Final = (
    "Clean and reseat the cable and its transceivers; where that does not help, swap the cable, then the transceiver, "
    "then the switch's port."
)


def read_mlxlink(section: Section) -> Iterator[Finding | Fact | Lack]:
    named = _MLXLINK_DEVICE.search(section.command)
    device = " port ".join(filter(None, named.groups())) if named else "the link"
    for _, part in parts_of(_MLXLINK_HEAD, section.text):
        fields = dict(_FIELD.findall(part))
        shown = {name: fields.get(name) for name in ("State", "Physical state", "Speed", "Width", "Recommendation")}
        yield Fact("link", shown)
        if "Recommendation" not in fields and fields.get("State") != "Active":
            yield Lack("no recommendation of the firmware is in it: run mlxlink -d DEVICE -m -c")
        yield from _judge(device, fields, {name: value for name, value in shown.items() if value})


def _judge(device: str, fields: Mapping[str, str], shown: Mapping[str, str]) -> Iterator[Finding]:
    advice = fields.get("Recommendation", "")
    if fields.get("State", "Active") != "Active":
        summary = f"is {fields['State']}" + ("" if _NOTHING.search(advice) else f": {advice}")
        severity = Severity.WARNING if _UNUSED.search(advice) else Severity.CRITICAL
        yield _mlxlink_finding("RDMA_PORT_DOWN", device, summary, severity, shown, fields)
        return
    if not _NOTHING.search(advice):
        summary = f"is active, and its firmware says: {advice}"
        yield _mlxlink_finding("RDMA_ERRORS_RISING", device, summary, Severity.WARNING, shown, fields)
    high = [f"{name} {fields[name]}" for name in _RATES if _number(fields.get(name, "")) > MAX_ERROR_RATE]
    if high:
        summary = f"has too many bit errors, after correction too: {', '.join(high)}"
        yield _mlxlink_finding("RDMA_ERRORS_RISING", device, summary, Severity.WARNING, shown, fields)
    downs = _number(fields.get("Link Down Counter", ""))
    if downs >= MAX_LINK_DOWNS:
        summary = f"lost its link {downs:.0f} times"
        yield _mlxlink_finding("RDMA_LINK_FLAPPING", device, summary, Severity.WARNING, shown, fields)
    if slower := _slower(fields):
        yield _mlxlink_finding("RDMA_RATE_LOW", device, slower, Severity.WARNING, shown, fields)


def _slower(fields: Mapping[str, str]) -> str:
    """Returns in words that the link is slower than the port and its cable can do; empty: it is not."""
    now = _SPEED.search(fields.get("Speed", ""))
    can = [set(_SPEED.findall(fields.get(f"{what} Speed", ""))) for what in ("Enabled Link", "Supported Cable")]
    both = can[0] & can[1]
    best = max(both, key=_SPEEDS.index, default="")
    if now and best and _SPEEDS.index(now[0]) < _SPEEDS.index(best):
        return f"runs at {now[0]}, the port and its cable can do {best}"
    return "runs on one lane" if now and fields.get("Width") == "1x" else ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _mlxlink_finding(
    code: str, device: str, summary: str, severity: Severity, shown: Mapping[str, str], fields: Mapping[str, str]
) -> Finding:
    evidence = {name.lower().replace(" ", "_"): value for name, value in shown.items()}
    downs = fields.get("Link Down Counter")
    return finding(
        code,
        device,
        summary,
        severity=severity,
        evidence={**evidence, "link_downs": downs, "status_opcode": fields.get("Status Opcode")},
        fix=_FIX,
        commands=("mlxlink -d DEVICE -m -c -e", "ibstat"),
    )


MLXLINK: Final = paste_format("mlxlink", _MLXLINK_HEAD, read_mlxlink)
