"""The charts of each report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laggard.recommend.scaling import ALARM_RATIO
from laggard.reports.documents import CampaignDocument, PortabilityDocument, ScalingDocument
from laggard.reports.svg import Chart, Series
from laggard.reports.table import Table

Points = list[tuple[float, float]]


def campaign_charts(table: Table, document: CampaignDocument) -> list[Chart]:
    """Returns a chart a platform: speed over accumulation, a line a stage, with a ring around each outlier."""
    platforms: dict[str, dict[str, Points]] = {}
    for row in (row.values() for row in table.rows):
        if isinstance(row["samples_per_second"], (int, float)):
            series = platforms.setdefault(str(row["platform"]), {}).setdefault(f"stage {row['stage']}", [])
            series.append(_point(row))
    outliers: dict[str, Points] = {}
    for outlier in document.outliers:
        outliers.setdefault(str(outlier.row["platform"]), []).append(_point(outlier.row))
    return [
        Chart(platform, "accumulated micro-steps", "samples/s", _series(own), tuple(outliers.get(platform, ())))
        for platform, own in platforms.items()
    ]


def portability_charts(table: Table, document: PortabilityDocument) -> list[Chart]:
    """Returns one chart: the value of each configuration, the most portable first, and its efficiencies."""
    series: dict[str, Points] = {}
    for place, row in enumerate(document.portability, 1):
        if row.value is not None:
            series.setdefault("portability", []).append((place, row.value))
        for platform, efficiency in row.efficiencies.items():
            series.setdefault(platform, []).append((place, efficiency))
    return [Chart("Performance portability", "configuration, by rank", "efficiency", _series(series))]


def scaling_charts(table: Table, document: ScalingDocument) -> list[Chart]:
    """Returns the scaling factors over the nodes, and Z-gain where micro-batches are given."""
    factors: dict[str, Points] = {}
    gains: dict[str, Points] = {}
    for row in document.scaling:
        if row.scaling_factor is not None:
            factors.setdefault(row.group or "scaling factor", []).append((row.nodes, row.scaling_factor))
        if row.z_gain is not None:
            gains.setdefault(row.group or "Z-gain", []).append((row.nodes, max(0.0, row.z_gain)))
    charts = [Chart("Throughput per GPU, to the fewest nodes", "nodes", "factor", _series(factors), (), ALARM_RATIO)]
    return charts + ([Chart("What ZeRO adds to the micro-batch", "nodes", "share", _series(gains))] if gains else [])


def _point(row: dict[str, Any]) -> tuple[float, float]:
    return float(row["grad_accum"]), float(row["samples_per_second"])


def _series(points: dict[str, Points]) -> tuple[Series, ...]:
    return tuple(Series(name, tuple(own)) for name, own in _in_order(points))


def _in_order(points: dict[str, Points]) -> Sequence[tuple[str, Points]]:
    return sorted(points.items())
