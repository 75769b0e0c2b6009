"""A fault of a node: one finding, from the first report that has it to the last. Values alone.

A machine is known by its GPUs: it keeps its history under another name, and another machine under its name has its own.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from laggard.collector.incidents.incident import Return
from laggard.model import Finding, Severity

FAULT_REASONS = {
    "repaired": "its check passed again",
    "cancelled": "the driver wrote later that it is over, with no repair",
    "replaced": "its name is another machine's now",
    "gone": "no agent has reported the machine for a week",
}
"""The reasons why a fault was closed, in words."""


class Fault(Struct, frozen=True):
    """Moments are Unix seconds on the collector's clock. `machine`: the machine by one of its GPUs' UUIDs, empty where
    they are not known; `gpu`: the UUID of the GPU that it is about, if of one; `detail` what tells it from others of
    its code there: an Xid's number. `severity` is the worst that it had. `probe`: the check that found it.
    `closed_because` is one of FAULT_REASONS."""

    id: int
    node: str
    machine: str
    code: str
    device: str
    severity: Severity
    summary: str
    probe: str
    opened_at: float
    seen_at: float
    gpu: str = ""
    detail: str = ""
    closed_at: float | None = None
    closed_because: str | None = None
    returned: Return | None = None

    @property
    def is_failure(self) -> bool:
        """Whether it counts as a failure of the machine: a job must not have got it. An error that only a line of the
        kernel's log tells of, and nothing confirms, is a warning; one that a later record took back is none."""
        return self.severity is Severity.CRITICAL and self.closed_because != "cancelled"


class NodeName(Struct, frozen=True):
    """A machine under a name: since when, and when it was last seen so (Unix seconds). `gpus`: its GPUs' UUIDs."""

    node: str
    machine: str
    since: float
    seen_at: float
    gpus: tuple[str, ...] = ()


MAX_REPORTED = 512
"""The most findings of one report that are looked at: as many as a report may have."""


class SeenFinding(NamedTuple):
    """`gpu` and `detail` as of a fault."""

    finding: Finding
    probe: str
    gpu: str = ""
    detail: str = ""


class NodeSight(NamedTuple):
    """One node's report in one round. `gpus`: the UUIDs of its GPUs. `telling`: the checks that could tell.
    `cancelled`: codes and details of findings that a later record of the node took back."""

    node: str
    gpus: frozenset[str]
    found: tuple[SeenFinding, ...]
    telling: frozenset[str]
    cancelled: frozenset[tuple[str, str]] = frozenset()
