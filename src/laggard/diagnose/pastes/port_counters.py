"""The formats `perfquery`, `ethtool -S`, `ibdiagnet` and `mlxlink`: counters and error rates of a port that are too
high.

ibqueryerrors' output is read too.

Sources: infiniband-diags (src/perfquery.c, src/ibqueryerrors.c), the kernel's
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; ibutils2
(ibdiag/src/ibdiag_fabric_errs.cpp), NVIDIA's UFM manual; mstflint (mlxlink), NVIDIA's MFT manual, "mlxlink utility".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.diagnose.pastes.section import Lack, Section, parts_of, paste_format
from laggard.diagnose.rules import Row, patterns, table
from laggard.model import Finding, Fix, Severity
from laggard.probes.probe import Fact

_P: Final = patterns("paste_forms", "port_counters_")

_TABLE: Final = table("counters")
_SAYS: Final = table("pastes").sections
COUNTER_RULES: Final = _TABLE.of("port_counter")
IBDIAGNET_RULES: Final = _TABLE.of("ibdiagnet")
_MAX_TOLD: Final = 4
_MIN_LANE_SHARE: Final = 0.9


def judge_counters(device: str, counters: Mapping[str, int], commands: tuple[str, ...]) -> Iterator[Finding]:
    """Yields one finding for each code, with the counters that are too high."""
    packets = counters.get("rx_packets") or counters.get("rx_packets_phy") or 0
    found: dict[str, list[tuple[str, int, Row]]] = {}
    for name, value in counters.items():
        rule = next((row for row in COUNTER_RULES if row.regex.fullmatch(name)), None)
        if rule and value >= max(int(rule.more["least"]), float(rule.more.get("share", 0)) * packets):
            found.setdefault(rule.code, []).append((name, value, rule))
    for rows in found.values():
        told = ", ".join(f"{name} {value}" for name, value, _ in rows[:_MAX_TOLD])
        first = rows[0][2]
        evidence = {**{name: value for name, value, _ in rows[:16]}, "most_errors_on": _bad_lane(counters)}
        row = first._replace(device=device, says=f"counts {told}: {first.says}", fix=Fix(first.fix.text, commands))
        yield row.found(evidence)


def _bad_lane(counters: Mapping[str, int]) -> str | None:
    """Returns the lane that has nearly all errors of the lanes; None where none stands out."""
    lanes = {match[1]: value for name, value in counters.items() if (match := _P["lane"].fullmatch(name))}
    worst = max(lanes, key=lambda lane: lanes[lane], default=None)
    if worst is None or len(lanes) < 2 or lanes[worst] < _MIN_LANE_SHARE * sum(lanes.values()) or not lanes[worst]:
        return None
    return f"lane {worst}"


def read_infiniband(section: Section) -> Iterator[Finding | Fact | Lack]:
    for head, part in parts_of(_P["ib_head"], section.text):
        pattern = _P["ib_field"] if head[1] else _P["queried"]
        counters = {name: int(value) for name, value in pattern.findall(part)}
        device = _infiniband_name(head[1] or f"GUID {head[2]}")
        yield Fact("counters", len(counters))
        if not counters:
            yield Lack("no counter is in it: run perfquery LID PORT")
        yield from judge_counters(device, counters, ("ibqueryerrors", "mlxlink -d DEVICE -c", "perfquery -R LID PORT"))


def _infiniband_name(words: str) -> str:
    return re.sub(r"^Lid (\d+) port (\d+).*", r"LID \1 port \2", words)


def read_nic(section: Section) -> Iterator[Finding | Fact | Lack]:
    named = _P["device"].search(section.command)
    device = named[1] if named else "the NIC"
    counters = {name: int(value) for name, value in _P["nic_field"].findall(section.text)}
    yield Fact("counters", len(counters))
    if not counters:
        yield Lack("no counter is in it: run ethtool -S DEV")
    yield from judge_counters(device, counters, ("ethtool -S DEV", "mlxlink -d DEVICE -m -c", "ethtool -m DEV"))


PERFQUERY: Final = paste_format("perfquery", _P["ib_head"], read_infiniband)
ETHTOOL_COUNTERS: Final = paste_format("ethtool -S", _P["nic_head"], read_nic)


def read_ibdiagnet(section: Section) -> Iterator[Finding | Fact | Lack]:
    found: dict[tuple[str, str], list[str]] = {}
    others: list[str] = []
    lines = [match for match in _P["line"].finditer(section.text) if not _P["closing"].search(match[2])][:4096]
    for match in lines:
        row = next((row for row in IBDIAGNET_RULES if row.regex.search(match[2])), None)
        if row is not None:
            device = " and ".join(_P["port"].findall(match[2])[:2]) or "the fabric"
            found.setdefault((row.code, device), []).append(match[2])
        elif match[1] == "E":
            others.append(match[2])
    yield Fact("errors_and_warnings", len(lines))
    for (code, device), texts in found.items():
        yield _ibdiagnet_finding(next(row for row in IBDIAGNET_RULES if row.code == code), device, texts)
    if others:
        yield Lack(f"{len(others)} errors are of kinds that are not judged here, the first: {others[0][:160]}")


def _ibdiagnet_finding(rule: Row, device: str, texts: list[str]) -> Finding:
    said = texts[0].partition(" - ")[2] or texts[0]
    evidence = {"times": len(texts), "line": texts[0], "last_line": texts[-1] if len(texts) > 1 else None}
    return rule._replace(device=device, says=f"has a fault, ibdiagnet says: {said[:200]}").found(evidence)


IBDIAGNET: Final = paste_format("ibdiagnet", _P["ibdiagnet_head"], read_ibdiagnet)


_SPEEDS: Final = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
MAX_ERROR_RATE: Final = 1e-12
"""The largest bit error rate that is left after correction of a good link: InfiniBand's specification."""
MAX_LINK_DOWNS: Final = 5
_RATES: Final = ("Effective Physical BER", "Symbol BER")


def read_mlxlink(section: Section) -> Iterator[Finding | Fact | Lack]:
    named = _P["mlxlink_device"].search(section.command)
    device = " port ".join(filter(None, named.groups())) if named else "the link"
    for _, part in parts_of(_P["mlxlink_head"], section.text):
        fields = dict(_P["field"].findall(part))
        shown = {name: fields.get(name) for name in ("State", "Physical state", "Speed", "Width", "Recommendation")}
        yield Fact("link", shown)
        if "Recommendation" not in fields and fields.get("State") != "Active":
            yield Lack("no recommendation of the firmware is in it: run mlxlink -d DEVICE -m -c")
        yield from _judge(device, fields, {name: value for name, value in shown.items() if value})


def _judge(device: str, fields: Mapping[str, str], shown: Mapping[str, str]) -> Iterator[Finding]:
    evidence: dict[str, str | None] = {name.lower().replace(" ", "_"): value for name, value in shown.items()}
    evidence |= {"link_downs": fields.get("Link Down Counter"), "status_opcode": fields.get("Status Opcode")}
    for kind, told, severity in _says(fields):
        yield _SAYS[f"mlxlink_{kind}"].found(evidence, severity, device=device, told=told)


def _says(fields: Mapping[str, str]) -> Iterator[tuple[str, str, Severity]]:
    """Yields what is wrong with a link: the kind, the words, and how severe it is."""
    advice = fields.get("Recommendation", "")
    if fields.get("State", "Active") != "Active":
        told = f"is {fields['State']}" + ("" if _P["nothing"].search(advice) else f": {advice}")
        yield "down", told, Severity.WARNING if _P["unused"].search(advice) else Severity.CRITICAL
        return
    if not _P["nothing"].search(advice):
        yield "errors", f"is active, and its firmware says: {advice}", Severity.WARNING
    if high := [f"{name} {fields[name]}" for name in _RATES if _number(fields.get(name, "")) > MAX_ERROR_RATE]:
        yield "errors", f"has too many bit errors, after correction too: {', '.join(high)}", Severity.WARNING
    if (downs := _number(fields.get("Link Down Counter", ""))) >= MAX_LINK_DOWNS:
        yield "flapping", f"lost its link {downs:.0f} times", Severity.WARNING
    if slower := _slower(fields):
        yield "slow", slower, Severity.WARNING


def _slower(fields: Mapping[str, str]) -> str:
    """Returns in words that the link is slower than the port and its cable can do; empty: it is not."""
    now = _P["speed"].search(fields.get("Speed", ""))
    can = [set(_P["speed"].findall(fields.get(f"{what} Speed", ""))) for what in ("Enabled Link", "Supported Cable")]
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


MLXLINK: Final = paste_format("mlxlink", _P["mlxlink_head"], read_mlxlink)
