"""The documents of the collector's API beyond those in laggard.wire: the values behind its page and its findings."""

from __future__ import annotations

from msgspec import Struct

from laggard.collector.node_finding import NodeFinding
from laggard.model import Location, Note, Verdict


class JobLine(Struct, frozen=True):
    """A job that can be shown: pass `key` as `?job=`."""

    key: str
    job_id: str
    owner: int
    running: bool
    ranks: int
    verdict: Verdict


class SummaryDocument(Struct, frozen=True):
    """What the page shows first. `age_seconds`: since the agents last answered; null before they first did. `fleet`:
    how the nodes compare, a line each."""

    version: str
    age_seconds: float | None
    interval_seconds: float
    sentence: str
    evidence: tuple[str, ...]
    notes: tuple[str, ...]
    job: str | None
    jobs: tuple[JobLine, ...]
    location: Location
    fleet: tuple[str, ...] = ()
    schema: str = "laggard.summary/1"


class HeatRow(Struct, frozen=True):
    """A row of the heat map: one rank, or the ranks from `first` to `last` where several are folded into one row."""

    first: int
    last: int
    count: int
    node: str | None
    gpu: str | None
    state: str


class HeatDocument(Struct, frozen=True):
    """One job's window as R rows by S steps. `seconds`: of each phase and `waited`, [R][S], null where a rank has no
    row for the step. `median_seconds`: over all ranks, [S], of the same and of `own` (all phases) and `step`. Where
    several ranks are folded into one row, a cell shows the rank of them that stands out in `measure`, and `shown`
    [R][S] is that rank; else `shown` is null."""

    job: str | None
    measure: str
    ranks_seen: int
    steps: list[int]
    rows: tuple[HeatRow, ...]
    seconds: dict[str, list[list[float | None]]]
    median_seconds: dict[str, list[float | None]]
    shown: list[list[int]] | None
    schema: str = "laggard.heat/1"


class NodeFindingsDocument(Struct, frozen=True):
    """The findings of all nodes and of comparing them, worst first. `notes`: what could not be compared, and what holds
    for many nodes at once."""

    findings: tuple[NodeFinding, ...]
    notes: tuple[Note, ...] = ()
    schema: str = "laggard.node_findings/1"


class ScrapeTargets(Struct, frozen=True):
    """One entry of Prometheus' http_sd."""

    targets: tuple[str, ...]
    labels: dict[str, str]
