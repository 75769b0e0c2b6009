"""An incident of a job, a fault of a node, a digest of a run as it is kept, and a moment: values alone.

A machine is known by its GPUs: it keeps its history under another name, and another machine under its name has its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import Struct, structs

from laggard.model import Culprit, CulpritStack, Finding, JobKey, Severity
from laggard.wire.digest import Digest
from laggard.wire.exclusion import MAX_SECONDS, Confirmation

DEFAULT_LIMIT = 100
MAX_LIMIT = 500
"""The most incidents in one answer."""

_MAX_LINES = 16
_MAX_TEXT = 400
_MAX_RANKS = 1024

REASONS = {
    "recovered": "it was no longer named",
    "job_ended": "the job ended",
    "ended_while_down": "the job ended while no collector watched it",
    "job_gone": "no agent reports the job any more",
    "superseded": "it became part of another incident",
}
"""The reasons why an incident was closed, in words."""


WEEK_SECONDS = 7 * 86400.0
"""The time within which what was over and is there again has come back. A repair that holds for a week is taken for
one: laggard's choice."""


class Return(Struct, frozen=True):
    """The earlier ones of a fault that came back to the same machine: how many ended within the week before, and when
    the last of them did (Unix seconds)."""

    times: int
    ended_at: float


class Run(Struct, frozen=True):
    """A run of a job, as its rank files say it: an elastic restart raises the attempt; its first rank says once when it
    began (Unix seconds; None: it does not say). So no clock is read again to tell whether it is the same."""

    attempt: int = 0
    started_at: float | None = None


class Incident(Struct, frozen=True):
    """Moments are Unix seconds on the collector's clock. `id` is the millisecond in which it was opened, moved on where
    it was taken. `opened_as` and `culprit` are the culprit as it was named first and last, with evidence, findings and
    advice; `findings` are all that it ever had. `closed_because` is one of REASONS, `part_of` the incident that it
    became part of. `gaps`: how often verdicts left it out for a while. `progressed_at`: when the job last got on, by
    its node's clock. `confirmation`: the newest measurement of its node, as a suspect, since it was opened.

    `run`: the job's, None where it is not known. `lost_gpu_hours`: what it took of its job's time while it was watched;
    a rank's hour is one. Culprits of a job share its time, so that no hour is counted twice. `returned`: it came
    back."""

    id: int
    owner: int
    job_id: str
    what: str
    opened_at: float
    seen_at: float
    opened_as: Culprit
    culprit: Culprit
    findings: tuple[str, ...] = ()
    most_recoverable_ratio: float | None = None
    gaps: int = 0
    closed_at: float | None = None
    closed_because: str | None = None
    part_of: int | None = None
    progressed_at: float = 0.0
    confirmation: Confirmation | None = None
    lost_gpu_hours: float = 0.0
    returned: Return | None = None
    run: Run | None = None

    @property
    def key(self) -> JobKey:
        return JobKey(self.owner, self.job_id)


class HistoryState(Struct, frozen=True):
    """The state of the incidents' history: whether they outlive the collector. `state` is `on`, `off` (nobody asked for
    it, or the default folder is not there), `failed`, or `file` where a file was read. `reason` says what is wrong and
    what to do."""

    state: str
    reason: str = ""
    bytes: int = 0


class JobName(Struct, frozen=True):
    """The names by which people know a job. `script` is empty and `started_at` None of a job that is not held any
    more."""

    user: str
    script: str = ""
    started_at: float | None = None


class IncidentsDocument(Struct, frozen=True):
    """`laggard.incidents/1`: incidents, the newest first. `next`: pass it as `before` for those that follow; None where
    there are none. `open` is how many are open in all, whatever was asked for; `now` is when this was written. `jobs`:
    those of the incidents, by `owner:job_id`; empty where no collector was asked."""

    incidents: tuple[Incident, ...]
    next: int | None
    open: int
    now: float
    history: HistoryState
    jobs: dict[str, JobName] = {}
    schema: str = "laggard.incidents/1"


class IncidentQuery(NamedTuple):
    """The incidents that are wanted. `since`: those that were open then or later. `before`: those with a smaller id.
    `node`: those whose culprit is on it, or a link of it."""

    job_id: str | None = None
    owner: int | None = None
    since: float | None = None
    open_only: bool = False
    before: int | None = None
    limit: int = DEFAULT_LIMIT
    node: str | None = None

    def matches(self, incident: Incident) -> bool:
        return (
            self.job_id in (None, incident.job_id)
            and self.owner in (None, incident.owner)
            and (self.node is None or self.node in incident.culprit.machines)
            and (self.since is None or incident.closed_at is None or incident.closed_at >= self.since)
            and not (self.open_only and incident.closed_at is not None)
            and (self.before is None or incident.id < self.before)
        )


def query_for(job: str | None) -> IncidentQuery:
    """All incidents of the job with that key or name; of every user where the name alone is given."""
    key = JobKey.parse(job) if job else None
    return IncidentQuery(job) if key is None else IncidentQuery(key.job_id, key.owner)


def with_confirmation(incident: Incident, confirmations: Iterable[Confirmation]) -> Incident:
    """The incident with the newest measurement of one of its machines, from its begin until MAX_SECONDS after its end:
    what was measured later is about another fault. `confirmations`: the oldest first."""
    last = math.inf if incident.closed_at is None else incident.closed_at + MAX_SECONDS
    machines = incident.culprit.machines
    own = [it for it in confirmations if it.node in machines and incident.opened_at <= it.at <= last]
    return structs.replace(incident, confirmation=own[-1]) if own else incident


def family(culprit: Culprit) -> str:
    """The family, which tells culprits at one place apart: a rank that is slow in another phase than before is the same
    one."""
    return culprit.kind if culprit.kind in ("slow_link", "hung", "dead", "corrupt") else "slow"


def bounded(culprit: Culprit) -> Culprit:
    """The culprit in a few kilobytes at most, whatever an agent reported."""
    return structs.replace(
        culprit,
        ranks=culprit.ranks[:_MAX_RANKS],
        evidence=tuple(line[:_MAX_TEXT] for line in culprit.evidence[:_MAX_LINES]),
        findings=culprit.findings[:_MAX_LINES],
        advice=culprit.advice[:_MAX_TEXT],
        stack=culprit.stack and _bounded_stack(culprit.stack),
    )


def _bounded_stack(stack: CulpritStack) -> CulpritStack:
    return structs.replace(
        stack,
        text=stack.text[:_MAX_TEXT],
        place=stack.place[:_MAX_TEXT],
        frames=tuple(frame[:_MAX_TEXT] for frame in stack.frames[:_MAX_LINES]),
        differing=min(stack.differing, _MAX_LINES),
        peer_frames=tuple(frame[:_MAX_TEXT] for frame in stack.peer_frames[:_MAX_LINES]),
    )


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


class MachineRows(NamedTuple):
    """The faults of one machine, the newest first, and the names that it had. Until `others_until` (Unix seconds; 0:
    never) another machine had its present name."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()
    others_until: float = 0.0


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


# A digest of a run as it is kept. Values alone.

LAST: Final = "last"
"""A run while it was healthy: its newest digest."""

FIRST: Final = "first"
"""A run's first hour."""


def of_incident(number: int) -> str:
    """A run as it was when the incident began."""
    return f"incident:{number}"


def incident_of(run: str) -> int | None:
    """The incident of such a run; None for others."""
    kind, _, number = run.partition(":")
    return int(number) if kind == "incident" and number.isascii() and number.isdecimal() else None


class KeptDigest(NamedTuple):
    """`run`: LAST, FIRST or of_incident(). There is one of each of a run, which began at `started_at` (Unix seconds; 0:
    not known)."""

    owner: int
    job_id: str
    run: str
    digest: Digest


class AskedDigest(NamedTuple):
    """The digest that is wanted: of the run itself, or with LAST of the last healthy other one of its script and
    size."""

    run: str
    owner: int
    job_id: str
    started_at: float
    script: str
    world_size: int


class Moment(NamedTuple):
    wall: float  # Unix seconds
    monotonic: float
