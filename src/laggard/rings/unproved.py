"""A ring whose nodes had no secret: anybody who reached its port could have taken part, and said anything. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from laggard.model import Finding, Severity, Verdict
from laggard.rings.document import Ring

_TEXT: Final = (
    "without a token anybody who reaches node 0 could have taken part, so that what is found is a warning (give "
    "--token-file)"
)


def without_token(ring: Ring, acts: bool) -> Ring:
    """`acts`: the answer lets jobs start or takes nodes out of service, or the nodes met by torchrun's store, in which
    everybody can write. Then nothing that was found is critical."""
    ring = structs.replace(ring, authenticated=False)
    if not acts or ring.verdict is not Verdict.FAIL:
        return ring
    unknown = "; ".join(filter(None, (_TEXT, ring.unknown)))
    findings = tuple(map(_lowered, ring.findings))
    return structs.replace(ring, verdict=Verdict.UNKNOWN, findings=findings, unknown=unknown)


def _lowered(found: Finding) -> Finding:
    return structs.replace(found, severity=Severity.WARNING) if found.severity is Severity.CRITICAL else found
