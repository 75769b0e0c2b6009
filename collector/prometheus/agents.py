"""Asks the agents of suspects, and of a few peers, for what Prometheus does not hold: single steps, the collective that
a rank is in, and what is wrong with the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from laggard.collector.jobs.job import Job, JobKey
from laggard.collector.jobs.window import JobWindows
from laggard.collector.locate.job_timings import JobTimings
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape.targets import parse_target
from laggard.collector.scrape.validation import validate_ranks, validate_report
from laggard.constants import AGENT_PORT
from laggard.errors import UsageError
from laggard.model import Severity
from laggard.wire import WireError

TIMEOUT_SECONDS = 3.0
MAX_BODY_BYTES = 16 << 20


class FromAgents(NamedTuple):
    """What the agents told: how many of those asked answered, the codes of findings by node, and the job's ranks
    there with their last steps; None where no agent has the job."""

    asked: int
    answered: int
    codes: Mapping[str, tuple[str, ...]]
    timings: JobTimings | None


def agent_url(instance: str, node: str) -> str | None:
    """Where the agent listens that Prometheus scraped as `instance`; None where that is no address."""
    for text in (instance, f"{node}:{AGENT_PORT}"):
        try:
            return parse_target(text).url
        except UsageError:
            continue
    return None


def ask_agents(urls: Mapping[str, str], key: JobKey) -> FromAgents:
    """`urls`: by node."""
    return asyncio.run(_ask_all(urls, key))


async def _ask_all(urls: Mapping[str, str], key: JobKey) -> FromAgents:
    paths = ("ranks", "report")
    asked = [fetch(f"{url}/api/v1/{path}", TIMEOUT_SECONDS, MAX_BODY_BYTES) for url in urls.values() for path in paths]
    answers = await asyncio.gather(*asked)
    windows, codes, answered, now = JobWindows(), dict[str, tuple[str, ...]](), 0, time.monotonic()
    for (node, url), ranks, report in zip(urls.items(), answers[0::2], answers[1::2], strict=True):
        if isinstance(ranks, FetchFailure):
            continue
        try:
            windows.ingest(url, validate_ranks(ranks), now)
            answered += 1
            codes[node] = () if isinstance(report, FetchFailure) else _codes(report)
        except WireError:  # what answers there is no agent, or one of another version
            continue
    job: Job | None = windows.jobs.get(key)
    timings = None if job is None else job.timings(key.job_id, set(urls.values()), codes)
    return FromAgents(len(urls), answered, codes, timings)


def _codes(report: bytes) -> tuple[str, ...]:
    findings = validate_report(report).findings
    return tuple(dict.fromkeys(it.code for it in findings if it.severity is not Severity.INFO))
