"""The second look at suspects: what their agents hold of single steps, states and findings is laid beside what
Prometheus' averages say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from laggard.collector.jobs.job import Job
from laggard.collector.jobs.window import JobWindows
from laggard.collector.node_findings import NodeGpus, node_findings
from laggard.collector.prometheus.client import Labels
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape.validation import validate_ranks_answer, validate_report
from laggard.collector.targets import parse_target
from laggard.kit.constants import AGENT_PORT
from laggard.kit.errors import UsageError
from laggard.kit.words import counted
from laggard.locate.explanation import explained
from laggard.locate.job_timings import JobTimings, NodeFindings, RankInfo, RankState, build_timings
from laggard.locate.verdict import locate
from laggard.model import Culprit, JobKey, Location, Note, Verdict
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


MAX_AGENTS = 8
PEER_AGENTS = 3


def with_agents(
    culprits: Sequence[Culprit],
    key: JobKey,
    known: Mapping[int, Labels],
    stored: Mapping[str, NodeFindings] = MappingProxyType({}),
    sure_of_place: bool = True,
) -> tuple[tuple[Culprit, ...], tuple[Note, ...]]:
    """The culprits with what their agents add, and a note on how many of those told. `known`: who each rank is, by
    laggard_rank_info. `stored`: what the store has of findings, by node: it counts where no agent told. Where several
    clusters may have machines of these addresses, `sure_of_place` is false: then the GPUs say whose an agent is."""
    gpus = None if sure_of_place else {rank: info.gpu for rank, info in known.items() if info.gpu}
    asked = known if gpus is None else {rank: known[rank] for rank in gpus}
    urls = _agents_to_ask(culprits, asked)
    told = ask_agents(urls, key, gpus) if urls else FromAgents(0, 0, {}, None)
    exact = locate(told.timings) if told.timings is not None else None
    text = f"{told.answered} of {counted(told.asked, 'agent')} of suspects and peers told of single steps"
    better = [_compared(culprit, exact) for culprit in culprits]
    if asked is not known and len(asked) < len(known):
        text += "; of a cluster among several, only agents whose GPUs are known are asked"
    return advised(better, {**stored, **told.findings}), (Note("agents_asked", text),)


def advised(culprits: Sequence[Culprit], found: Mapping[str, NodeFindings]) -> tuple[Culprit, ...]:
    """The culprits with what to do, and with the findings that explain them. `found`: by node."""
    state = RankState("unknown", None, None, None)
    machines = {place: RankInfo(node, None, state) for place, node in enumerate(found)}
    timings = build_timings(None, len(machines), machines, {}, found)
    return tuple(explained(culprit, timings) for culprit in culprits)


def _compared(culprit: Culprit, exact: Location | None) -> Culprit:
    """The culprit by what the agents hold of single steps: confirmed with their evidence, or less sure."""
    if exact is None:
        return culprit
    same = next((it for it in exact.culprits if not set(it.ranks).isdisjoint(culprit.ranks)), None)
    if same is not None:
        agrees = f"the agents' {'single steps' if same.kind.startswith('slow') else 'states'} say the same"
        changes = {name: getattr(same, name) for name in ("kind", "phase", "group", "stopped", "end")}
        sure = round(max(culprit.confidence, min(same.confidence, 0.95)), 2)
        evidence = (*same.evidence, *culprit.evidence, agrees)
        return structs.replace(culprit, confidence=sure, evidence=evidence, **changes)
    if exact.verdict is Verdict.OK:
        denied = "the single steps that its agent holds do not show it: it may be over"
        return structs.replace(less_sure(culprit, 0.5), evidence=(*culprit.evidence, denied))
    return culprit


def _agents_to_ask(culprits: Sequence[Culprit], known: Mapping[int, Labels]) -> dict[str, str]:
    """The URLs of the suspects' agents and of a few peers', by node."""
    urls: dict[str, str] = {}
    suspects = [rank for culprit in culprits for rank in culprit.ranks if rank in known]
    others = sorted(known)[:: max(1, len(known) // (8 * (PEER_AGENTS + MAX_AGENTS)))]
    for ranks, most in ((suspects, MAX_AGENTS), (others, PEER_AGENTS)):
        full = len(urls) + most
        for rank in ranks:
            info = known[rank]
            if len(urls) < full and info.hostname not in urls and (url := agent_url(info.instance, info.hostname)):
                urls[info.hostname] = url
    return urls


def less_sure(culprit: Culprit, share: float) -> Culprit:
    return structs.replace(culprit, confidence=round(culprit.confidence * share, 2))
