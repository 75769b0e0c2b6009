"""Writes docs/metrics.md from the catalogue, and from the files in which it is served.

.venv/bin/python scripts/metrics_docs.py > docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from laggard.catalogue.metrics import METRICS, PROCESS_METRICS
from laggard.catalogue.rank_metrics import BUILD_INFO, RANK_METRICS, Metric

REPOSITORY = Path(__file__).resolve().parents[1]


class Exporter(NamedTuple):
    """Who serves metrics: the file that makes them, and at which address."""

    title: str
    file: str
    where: str


EXPORTERS = (
    Exporter("Agent", "agent/web/routes.py", "`http://NODE:19400/metrics`, of each node"),
    Exporter("Collector", "collector/web/metrics.py", "`http://COLLECTOR:19401/metrics`"),
    Exporter("Kubernetes controller", "src/laggard/kubernetes/command.py", "`http://CONTROLLER:19402/metrics`"),
)

HEAD = (Path(__file__).parent / "heads" / "metrics.md").read_text(encoding="utf-8")


def page() -> str:
    """The whole page."""
    sections = [_section(each.title, f"{each.where}.", _served(each)) for each in EXPORTERS]
    ranks = _section(
        "Ranks",
        "The agent serves these for each rank of its node. With `LAGGARD_EXPORT` each rank serves its own, as "
        "[hooks.md](hooks.md#environment-variables) says.",
        RANK_METRICS,
    )
    return "\n".join([HEAD, sections[0], ranks, *sections[1:]])


def left_out() -> set[str]:
    """The names of metrics that no exporter serves: there should be none."""
    served = {metric.name for exporter in EXPORTERS for metric in _served(exporter)}
    return {metric.name for metric in METRICS} - served - {metric.name for metric in RANK_METRICS}


def _served(exporter: Exporter) -> list[Metric]:
    """The metrics that an exporter's file names, in the catalogue's order."""
    text = (REPOSITORY / exporter.file).read_text(encoding="utf-8")
    names = {metric.name for metric in METRICS if f'"{metric.name}"' in text}
    if "daemon_families(" in text:  # what each daemon says of itself
        names |= {"laggard_connections_turned_away_total", *(metric.name for metric in PROCESS_METRICS)}
    names |= {BUILD_INFO.name} if "BUILD_INFO" in text else set()
    return [metric for metric in METRICS if metric.name in names]


def _section(title: str, where: str, metrics: Iterable[Metric]) -> str:
    rows = [_row(metric) for metric in metrics]
    return "\n".join(
        (
            f"## {title}\n",
            f"{where}\n",
            "| metric | type | unit | labels | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        )
    )


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {unit(metric.name)} | {labels} | {metric.help} |"


def unit(name: str) -> str:
    """The unit, which Prometheus' naming puts into the name."""
    base = name.removesuffix("_total")
    if base.endswith("_timestamp_seconds"):
        return "s, Unix time"
    return next(
        (word for end, word in (("_seconds", "s"), ("_bytes", "bytes"), ("_ratio", "ratio")) if base.endswith(end)), ""
    )


if __name__ == "__main__":
    print(page(), end="")
