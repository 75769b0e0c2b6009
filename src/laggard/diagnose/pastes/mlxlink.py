"""The format `mlxlink`: what a link's firmware says of it, and its bit error rates.

Sources: mstflint (mlxlink), NVIDIA's MFT manual, "mlxlink utility".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from laggard.diagnose.pastes.paste_format import Lack, paste_format
from laggard.diagnose.pastes.section import Section, parts_of
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(r"^Operational Info\s*\n-+\s*$", re.MULTILINE)
_FIELD: Final = re.compile(r"^([A-Z][\w /\[\]().-]{2,50}?)\s*: (.*?)\s*$", re.MULTILINE)
_DEVICE: Final = re.compile(r"\bmlxlink\b.*? (?:-d|--device) ?(\S+)(?:.*? (?:-p|--port) ?(\S+))?")
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


def read(section: Section) -> Iterator[Finding | Fact | Lack]:
    named = _DEVICE.search(section.command)
    device = " port ".join(filter(None, named.groups())) if named else "the link"
    for _, part in parts_of(_HEAD, section.text):
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
        yield _finding("RDMA_PORT_DOWN", device, summary, severity, shown, fields)
        return
    if not _NOTHING.search(advice):
        summary = f"is active, and its firmware says: {advice}"
        yield _finding("RDMA_ERRORS_RISING", device, summary, Severity.WARNING, shown, fields)
    high = [f"{name} {fields[name]}" for name in _RATES if _number(fields.get(name, "")) > MAX_ERROR_RATE]
    if high:
        summary = f"has too many bit errors, after correction too: {', '.join(high)}"
        yield _finding("RDMA_ERRORS_RISING", device, summary, Severity.WARNING, shown, fields)
    downs = _number(fields.get("Link Down Counter", ""))
    if downs >= MAX_LINK_DOWNS:
        summary = f"lost its link {downs:.0f} times"
        yield _finding("RDMA_LINK_FLAPPING", device, summary, Severity.WARNING, shown, fields)
    if slower := _slower(fields):
        yield _finding("RDMA_RATE_LOW", device, slower, Severity.WARNING, shown, fields)


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


def _finding(
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


MLXLINK: Final = paste_format("mlxlink", _HEAD, read)
