"""What a finding is based on, where that may be long over: lines of the kernel's log, and counters. A disk that is full
is full now; an Xid was logged once, and is found again for a day. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from laggard.model import Finding, Severity

_COUNTS: Final[Mapping[str, Sequence[str]]] = {
    "GPU_XID": ("count",),
    "RDMA_DRIVER_ERROR": ("count",),
    "PCIE_AER_ERRORS": ("total",),
    "RDMA_ERRORS_RISING": ("value",),
    "RDMA_LINK_FLAPPING": ("counters/link_downed", "hw_counters/link_downed", "carrier_down_count"),
}
"""The counts in the evidence of findings that look back, by code; of several the sum. They only rise until the next
boot, or until the driver is loaded anew."""

_KINDS: Final = ("xid", "sxid", "kind", "counter")
"""The names in the evidence of what tells two findings of one code and device apart."""

_MAX_NUMBER: Final = 2.0**63


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the finding `code` on `device` is based on: `at`, the Unix time of its last record, and `count`, how often
    it was counted. None: not known, or the finding is about what is true now."""

    code: str
    device: str
    kind: str = ""
    at: float | None = None
    count: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.code, self.device, self.kind


def evidence_of(finding: Finding) -> Evidence:
    told = finding.evidence
    return Evidence(
        finding.code,
        finding.device,
        next((f"{name} {told[name]}"[:64] for name in _KINDS if name in told), ""),
        _number(told.get("last_at")),
        _count(told, _COUNTS.get(finding.code, ())),
    )


def critical_evidence(findings: Sequence[Finding]) -> dict[int, Evidence]:
    """That of the critical findings, by their places."""
    return {place: evidence_of(it) for place, it in enumerate(findings) if it.severity is Severity.CRITICAL}


def _count(told: Mapping[str, Any], names: Sequence[str]) -> int | None:
    counts = [count for name in names if (count := _number(told.get(name))) is not None]
    return int(sum(counts)) if counts else None


def _number(value: Any) -> float | None:
    """`value` where it is a number that can be a time or a count; else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER
    return float(value) if is_number else None
