"""The agents as targets for Prometheus' discovery over HTTP (http_sd)."""

from __future__ import annotations

from collections.abc import Iterable

from laggard.collector.web.documents import ScrapeTargets
from laggard.wire.nodes import NodeRow


def scrape_targets(nodes: Iterable[NodeRow]) -> tuple[ScrapeTargets, ...]:
    """One entry for each scheme: Prometheus takes addresses without a scheme, and the scheme as a label."""
    by_scheme: dict[str, list[str]] = {}
    for row in nodes:
        scheme, _, address = row.url.partition("://")
        by_scheme.setdefault(scheme, []).append(address)
    return tuple(
        ScrapeTargets(tuple(addresses), {} if scheme == "http" else {"__scheme__": scheme})
        for scheme, addresses in by_scheme.items()
    )
