"""`laggard collector metrics list`: every metric that laggard serves, from the catalogue."""

from __future__ import annotations

import argparse
import sys

import msgspec

from laggard import wire
from laggard.catalogue.metrics import METRICS
from laggard.catalogue.rank_metrics import Metric
from laggard.kit.parts import Line
from laggard.kit.terminal import show

METRICS_SCHEMA = "laggard.metrics/1"


class MetricRow(msgspec.Struct, frozen=True):
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class MetricsDocument(msgspec.Struct, frozen=True):
    metrics: tuple[MetricRow, ...]
    schema: str = METRICS_SCHEMA


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list",), help="list: all metrics with their labels")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: laggard.metrics/1")


def main(arguments: argparse.Namespace) -> int:
    if arguments.format == "json":
        rows = tuple(MetricRow(metric.name, metric.kind, metric.labels, metric.help) for metric in METRICS)
        sys.stdout.write(wire.encode(MetricsDocument(rows)).decode() + "\n")
        sys.stdout.flush()
    else:
        head = Line(f"{len(METRICS)} metrics; rank metrics are the agents', the collector has its own.")
        show([head, *(line for metric in METRICS for line in _lines(metric))])
    return 0


def _lines(metric: Metric) -> tuple[Line, Line]:
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    return Line(f"{metric.name}{labels}  {metric.kind}", "name"), Line(f"    {metric.help}", indent=4)
