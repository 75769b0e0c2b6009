"""An incident: one culprit of one job, from the first verdict that names it to the last. Values alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, structs

from laggard.collector.jobs.key import JobKey
from laggard.model import Culprit, CulpritStack
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


class Incident(Struct, frozen=True):
    """Moments are Unix seconds on the collector's clock. `id` is the millisecond in which it was opened, moved on where
    it was taken. `opened_as` and `culprit` are the culprit as it was named first and last, with evidence, findings and
    advice; `findings` are all that it ever had. `closed_because` is one of REASONS, `part_of` the incident that it
    became part of. `gaps`: how often verdicts left it out for a while. `progressed_at`: when the job last got on, by
    its node's clock. `confirmation`: the newest measurement of its node, as a suspect, since it was opened.

    `lost_gpu_hours`: what it took of its job's time while it was watched; a rank's hour is one. Culprits of a job share
    its time, so that no hour is counted twice. `returned`: it came back."""

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
