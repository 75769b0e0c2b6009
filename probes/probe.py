"""What a probe is: a function from a Host and its thresholds to findings and facts.

It yields what it sees and returns. It raises NotApplicable where the thing it judges is provably absent, and Unknown
where it cannot tell; what it yielded before still counts. Deadlines, crashes and timing are the runner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from laggard.catalogue.findings import finding_type
from laggard.model import Finding, Fix, Severity

if TYPE_CHECKING:
    from laggard.probes.host.counter_history import SaveCounters
    from laggard.probes.host.host import Host
    from laggard.probes.nvml.model import Hang


class Fact(NamedTuple):
    """Something measured or read that is neither right nor wrong; goes to `facts` of the report."""

    name: str
    value: Any


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of a probe's settings: what a profile may change, `thresholds: {PROBE: {...}}`."""


class ProbeGroup(NamedTuple):
    """Probes of one group run one after the other in one process and share what their Host has asked: starting NVML
    costs more than all that is read from it. The deadline is the group's."""

    name: str
    deadline_seconds: float


class Probe(NamedTuple):
    """A probe's entry: it stands at the end of the probe's file, and the registry lists it."""

    name: str
    check: Callable[[Host, Any], Iterator[Finding | Fact | SaveCounters]]
    thresholds: Thresholds
    deadline_seconds: float = 2.0
    """A passive probe takes milliseconds; two seconds is a machine that swaps, or a kernel that does not answer."""

    group: ProbeGroup | None = None

    on_hang: Callable[[Hang], Finding] | None = None
    """What it means that the group's process hangs in a call that it had announced (see host/watchdog.py)."""


def finding(
    code: str,
    device: str,
    summary: str,
    *,
    evidence: Mapping[str, Any],
    fix: str,
    commands: Sequence[str] = (),
    severity: Severity | None = None,
) -> Finding:
    """A finding of the catalogue. `summary` continues the sentence that begins with the device; the severity is the
    catalogue's unless the probe knows better."""
    kind = finding_type(code)
    return Finding(
        code=code,
        severity=kind.severity if severity is None else severity,
        device=device,
        summary=summary,
        evidence=dict(evidence),
        fix=Fix(fix, tuple(commands)),
        doc=kind.doc,
    )
