"""The format `ibdiagnet`: its errors and warnings about links, counters and the subnet manager.

Source: ibutils2 (ibdiag/src/ibdiag_fabric_errs.cpp), NVIDIA's UFM manual.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from laggard.diagnose.pastes.paste_format import Lack, paste_format
from laggard.diagnose.pastes.section import Section
from laggard.model import Finding, Severity
from laggard.probes.probe import Fact, finding

_HEAD: Final = re.compile(
    r"^-I- (?:Discover\w*|Using port|Fabric Discover|Stage\s)|^Running version\s+: \"IBDIAG", re.MULTILINE
)
_LINE: Final = re.compile(r"^-([EW])- (.{1,400})$", re.MULTILINE)
_PORT: Final = re.compile(r"\b[HSR]/\"?[^\"\n]{1,120}?\"?/P\d+(?:/\d+)*|\b[\w.;:-]+(?:/[\w.-]+)?/P\d+\b")
_CLOSING: Final = re.compile(r"finished with|Check finished|see file|can find", re.IGNORECASE)
RULES: Final[tuple[tuple[str, re.Pattern[str], Severity, str], ...]] = (
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


def read(section: Section) -> Iterator[Finding | Fact | Lack]:
    found: dict[tuple[str, str], list[str]] = {}
    others: list[str] = []
    lines = [match for match in _LINE.finditer(section.text) if not _CLOSING.search(match[2])][:4096]
    for match in lines:
        row = next((row for row in RULES if row[1].search(match[2])), None)
        if row is None:
            others += [match[2]] if match[1] == "E" else []
            continue
        found.setdefault((row[0], " and ".join(_PORT.findall(match[2])[:2]) or "the fabric"), []).append(match[2])
    yield Fact("errors_and_warnings", len(lines))
    for (code, device), texts in found.items():
        yield _finding(code, device, texts)
    if others:
        yield Lack(f"{len(others)} errors are of kinds that are not judged here, the first: {others[0][:160]}")


def _finding(code: str, device: str, texts: list[str]) -> Finding:
    _, _, severity, fix = next(row for row in RULES if row[0] == code)
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


IBDIAGNET: Final = paste_format("ibdiagnet", _HEAD, read)
