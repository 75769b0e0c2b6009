"""The transports that a ring's NCCL really used, put together from all ranks, and its findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from laggard.model import Finding
from laggard.nccl.log.model import count_channels
from laggard.nccl.transport import Transport
from laggard.probes.nccl.model.job import HardwareFacts
from laggard.probes.nccl.rules.rank_findings import judge_rank_transports
from laggard.rings.messages import Observed

NAME = "ring"
"""Findings are about `job ring`."""


class TransportUsed(NamedTuple):
    facts: dict[str, Any]
    findings: tuple[Finding, ...]
    unknown: str


def judge_transport_used(observed: Mapping[int, Observed]) -> TransportUsed:
    """Judges the ranks' reports. A report that cannot be read counts as none."""
    transports, unread = [], []
    for rank, each in sorted(observed.items()):
        try:
            transports.append(Transport.from_json(each.transport)._replace(rank=rank))
        except ValueError:
            unread.append(rank)
    judgement = judge_rank_transports(NAME, transports, HardwareFacts(rdma=_any_rdma(observed.values())))
    gaps = [judgement.gaps, f"{len(unread)} ranks' reports of NCCL cannot be read" if unread else ""]
    return TransportUsed(_facts(transports), judgement.findings, "; ".join(filter(None, gaps)))


def _any_rdma(observed: Iterable[Observed]) -> bool | None:
    seen = {each.rdma for each in observed}
    return True if True in seen else None if None in seen or not seen else False


def _facts(transports: list[Transport]) -> dict[str, Any]:
    networks = Counter(each.process.network for each in transports if each.process.network)
    connections = [connection for each in transports for connection in each.process.connections]
    variables = {name: value for each in transports for name, value in each.variables}
    return {
        "networks": sorted(networks),
        "channels": dict(count_channels(connections)),
        "gpudirect": any(connection.gdr for connection in connections) if connections else None,
        "variables": dict(sorted(variables.items())),
    }
