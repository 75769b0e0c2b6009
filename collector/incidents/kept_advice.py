"""The advice for one run, as it is kept. Values alone."""

from __future__ import annotations

from typing import NamedTuple

from laggard.collector.jobs.key import JobKey
from laggard.recommend.outcome.values import RunOutcomes, SeenRun
from laggard.wire.digest import Digest


class RunAdvice(RunOutcomes, frozen=True, kw_only=True):
    """The outcomes of a run with the run as it was then: its digest, the findings of its nodes as (code, node), and the
    nodes whose checks answered."""

    digest: Digest
    findings: tuple[tuple[str, str], ...] = ()
    judged_nodes: tuple[str, ...] = ()

    @property
    def key(self) -> JobKey:
        return JobKey(self.owner, self.job_id)

    @property
    def seen(self) -> SeenRun:
        return SeenRun(self.digest, frozenset(self.findings), frozenset(self.judged_nodes))


DEFAULT_LIMIT = 100
MAX_LIMIT = 1024
"""The most runs in one answer."""


class AdviceQuery(NamedTuple):
    """The runs that are wanted. `since`: of which something was advised then or later. `until`: of which
    nothing was advised later."""

    owner: int | None = None
    job_id: str | None = None
    since: float | None = None
    limit: int = DEFAULT_LIMIT
    script: str | None = None
    world_size: int | None = None
    until: float | None = None


def advice_query_for(job: str | None) -> AdviceQuery:
    """All runs of the job with that key or name; of every user where the name alone is given."""
    key = JobKey.parse(job) if job else None
    return AdviceQuery(job_id=job) if key is None else AdviceQuery(key.owner, key.job_id)
