"""What was advised of one run, as it is kept. Values alone."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from laggard.collector.jobs.job import JobKey
from laggard.recommend.outcome.values import Advised, SeenRun
from laggard.wire.digest import Digest


class RunAdvice(Struct, frozen=True, kw_only=True):
    """What was advised of a run, which began at `started_at` (Unix seconds; 0: not known), what became of it, and the
    run as it was then: its digest, the findings of its nodes as (code, node), and the nodes whose checks answered."""

    owner: int
    job_id: str
    started_at: float
    made_at: float
    digest: Digest
    findings: tuple[tuple[str, str], ...] = ()
    judged_nodes: tuple[str, ...] = ()
    advised: tuple[Advised, ...] = ()

    @property
    def key(self) -> JobKey:
        return JobKey(self.owner, self.job_id)

    @property
    def seen(self) -> SeenRun:
        return SeenRun(self.digest, frozenset(self.findings), frozenset(self.judged_nodes))


class AdviceQuery(NamedTuple):
    """The runs that are wanted. `since`: of which something was advised then or later. `until`: of which
    nothing was advised later."""

    owner: int | None = None
    job_id: str | None = None
    since: float | None = None
    limit: int = 100
    script: str | None = None
    world_size: int | None = None
    until: float | None = None
