"""The second look at suspects: what their agents hold of single steps, states and findings is laid beside what
Prometheus' averages say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import structs

from laggard.collector.jobs.job import JobKey
from laggard.collector.prometheus.agents import FromAgents, agent_url, ask_agents
from laggard.collector.prometheus.answer import Labels
from laggard.locate.explanation import explained
from laggard.locate.job_timings import RankInfo, RankState, build_timings
from laggard.locate.node_findings import NodeFindings
from laggard.locate.verdict import locate
from laggard.model import Culprit, Location, Note, Verdict
from laggard.text.words import counted

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
