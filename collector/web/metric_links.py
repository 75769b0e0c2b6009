"""Links to the same facts in a site's Prometheus and Grafana: an expression, or one of laggard's dashboards, over the
time in question. Pure."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import urlencode

from laggard.collector.prometheus.queries import OWN_SECONDS, PHASE_SECONDS, Job, selector
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.documents import Link, LinksDocument
from laggard.model import JobKey

RANGE_SECONDS: Final = 3600.0
"""The last hour, or the last one in which a job that has ended got on."""

_BUSIEST: Final = 10


class MetricLinks:
    """`ended_at`: Unix seconds, of what is over."""

    def __init__(self, settings: CollectorSettings, ended_at: float | None = None) -> None:
        self._prometheus = settings.prometheus_page.rstrip("/")
        self._grafana = settings.grafana_page.rstrip("/")
        self._ended_at = ended_at

    def of_job(self, key: JobKey) -> LinksDocument:
        """Its busiest ranks, by own seconds a second; and its dashboard."""
        own = f"topk({_BUSIEST}, rate({selector(OWN_SECONDS, _job(key))}[5m]))"
        return self._document(("Busiest ranks", own), ("laggard-job", _variables(key)))

    def of_rank(self, key: JobKey, rank: int) -> LinksDocument:
        """The links to what a rank spends its time in."""
        of_rank = selector(PHASE_SECONDS, _job(key), ("rank=", str(rank)))
        phases = f"sum by (phase) (rate({of_rank}[5m]))"
        return self._document((f"Phases of rank {rank}", phases), ("laggard-job", _variables(key)))

    def of_node(self, address: str) -> LinksDocument:
        """`address`: the agent's, under which Prometheus knows it where it asks this collector for its targets."""
        verdicts = selector("laggard_probe_verdict", None, ("instance=", address))
        return self._document(("Verdicts of its checks", verdicts), ("laggard-node", {"var-instance": address}))

    def _document(self, graph: tuple[str, str], dashboard: tuple[str, dict[str, str]]) -> LinksDocument:
        links = []
        if self._prometheus:
            links.append(Link(f"{graph[0]} in Prometheus", f"{self._prometheus}/graph?{self._graph(graph[1])}"))
        if self._grafana:
            uid, variables = dashboard
            query = urlencode({**variables, **self._range()})
            links.append(Link("Dashboard in Grafana", f"{self._grafana}/d/{uid}?{query}"))
        return LinksDocument(tuple(links))

    def _graph(self, expr: str) -> str:
        asked = {"g0.expr": expr, "g0.tab": "0", "g0.range_input": f"{RANGE_SECONDS:.0f}s"}
        if self._ended_at is not None:
            asked["g0.end_input"] = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._ended_at))
        return urlencode(asked)

    def _range(self) -> dict[str, str]:
        if self._ended_at is None:
            return {"from": f"now-{RANGE_SECONDS:.0f}s", "to": "now"}
        return {"from": f"{1000 * (self._ended_at - RANGE_SECONDS):.0f}", "to": f"{1000 * self._ended_at:.0f}"}


def _job(key: JobKey) -> Job:
    return Job(key.job_id, str(key.owner))


def _variables(key: JobKey) -> dict[str, str]:
    return {"var-job_id": key.job_id, "var-user": str(key.owner)}
