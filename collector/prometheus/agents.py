"""Asks the agents of suspects, and of a few peers, for what Prometheus does not hold: single steps, the collective that
a rank is in, and what is wrong with the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from laggard.collector.finding_places import NodeGpus, node_findings
from laggard.collector.jobs.job import Job, JobKey
from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape.targets import parse_target
from laggard.collector.scrape.validation import validate_ranks_answer, validate_report
from laggard.constants import AGENT_PORT
from laggard.errors import UsageError
from laggard.locate.job_timings import JobTimings
from laggard.locate.node_findings import NodeFindings
from laggard.wire import WireError
from laggard.wire.ranks import RanksDocument

TIMEOUT_SECONDS = 3.0
MAX_BODY_BYTES = 16 << 20


class FromAgents(NamedTuple):
    """The answers of the agents: how many of those asked answered, the findings by node, and the job's ranks there with
    their last steps; None where no agent has the job."""

    asked: int
    answered: int
    findings: Mapping[str, NodeFindings]
    timings: JobTimings | None


def agent_url(instance: str, node: str) -> str | None:
    """The URL at which the agent listens that Prometheus scraped as `instance`; None where that is no address."""
    for text in (instance, f"{node}:{AGENT_PORT}"):
        try:
            return parse_target(text).url
        except UsageError:
            continue
    return None


def ask_agents(urls: Mapping[str, str], key: JobKey, gpus: Mapping[int, str] | None = None) -> FromAgents:
    """`urls`: by node. `gpus`: the UUIDs by rank; where they are given, an agent whose ranks have others counts as
    none: a machine of another cluster may have the same address, and a job of the same name."""
    return asyncio.run(_ask_all(urls, key, gpus))


async def _ask_all(urls: Mapping[str, str], key: JobKey, gpus: Mapping[int, str] | None) -> FromAgents:
    paths = ("ranks", "report")
    asked = [fetch(f"{url}/api/v1/{path}", TIMEOUT_SECONDS, MAX_BODY_BYTES) for url in urls.values() for path in paths]
    answers = await asyncio.gather(*asked)
    windows, found, answered, now = JobWindows(), dict[str, NodeFindings](), 0, time.monotonic()
    for (node, url), ranks, report in zip(urls.items(), answers[0::2], answers[1::2], strict=True):
        if isinstance(ranks, FetchFailure):
            continue
        try:
            document, steps = validate_ranks_answer(ranks)
            if gpus is not None and not _has_gpus(document, key, gpus):
                continue
            windows.ingest(url, document, steps, now)
            answered += 1
            found[node] = NodeFindings() if isinstance(report, FetchFailure) else _findings(report)
        except WireError:  # what answers there is no agent, or one of another version
            continue
    job: Job | None = windows.jobs.get(key)
    timings = None if job is None else job.timings(key.job_id, set(urls.values()), found)
    return FromAgents(len(urls), answered, found, timings)


def _has_gpus(document: RanksDocument, key: JobKey, gpus: Mapping[int, str]) -> bool:
    """Whether the ranks of the job that the document tells of are on these GPUs."""
    mine = [row for row in document.ranks if (row.owner, row.job_id) == key and row.rank in gpus]
    return bool(mine) and all(row.gpu == gpus[row.rank] for row in mine)


def _findings(body: bytes) -> NodeFindings:
    report = validate_report(body)
    return node_findings(report.findings, NodeGpus.of(report.facts))
