"""RING_SLOW, RING_FAILED, and slow or wrong computing, as the last ring found them in which this node took part: what
a ring says is about the node until another ring says otherwise, or it is too old.

Rings that root or the user laggard started count (`laggard ring`, and the gate's gang): they leave their result in
/run/laggard/rings, where nobody else can write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from laggard import wire
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import KERNEL, Fact, NotNegative, Probe, Thresholds
from laggard.wire.nodes import RingPairs

LAST_RING_PATH: Final = "/run/laggard/rings/last_ring.json"


class LastRing(msgspec.Struct, frozen=True):
    """`at`: when it ended, Unix time; `nodes`: how many were measured; `findings`: those that accuse this node.
    `pairs`: on the node that led the ring, where it measured pairs."""

    at: float
    nodes: int
    findings: tuple[Finding, ...]
    pairs: RingPairs | None = None


class RingThresholds(Thresholds, frozen=True):
    newest_seconds: NotNegative = 12 * 3600.0
    """The largest age of a ring's result that is told of."""

    critical_seconds: NotNegative = 3600.0
    """The age from which on its findings are warnings: what was drained for them comes back, to be measured again."""


def check(host: Host, thresholds: RingThresholds) -> Iterator[Finding | Fact]:
    try:
        ring = wire.decode(host.read_bytes(LAST_RING_PATH), LastRing)
    except NotFound:
        raise NotApplicable("no ring of root's or laggard's has measured this node since it started") from None
    except wire.WireError as error:
        raise Unknown(f"{LAST_RING_PATH} is damaged: {error}") from None
    age = host.time() - ring.at
    yield Fact("age_seconds", round(age, 1))
    yield Fact("nodes", ring.nodes)
    if not 0 <= age <= thresholds.newest_seconds:
        raise NotApplicable(f"the last ring is {age / 3600:.0f} hours old")
    if ring.pairs is not None:
        yield Fact("pairs", msgspec.to_builtins(ring.pairs))
    for found in ring.findings:
        severity = found.severity
        if severity is Severity.CRITICAL and age > thresholds.critical_seconds:
            severity = Severity.WARNING
        evidence = {**found.evidence, "seconds_ago": round(age)}
        yield msgspec.structs.replace(found, severity=severity, evidence=evidence)


PROBE: Final = Probe("ring", check, RingThresholds(), group=KERNEL)
