"""The catalogue's metrics in Prometheus' text formats, for the agent and the collector. A training process, which may
not import prometheus_client, writes its own metrics in trainer_hooks/output/http_export.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from laggard.catalogue.metrics import PROCESS_METRICS, metric
from laggard.catalogue.rank_metrics import Labels
from laggard.kit.words import visible


def metric_family(name: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """Returns the catalogue's metric `name` with its samples: label values, in the catalogue's order, and the sample's
    value."""
    described = metric(name)
    family_type = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    # prometheus_client takes `_total` off a counter's name, and puts it back.
    family = family_type(described.name, described.help, labels=described.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def daemon_families(turned_away: int) -> Iterator[Metric]:
    """Yields what a daemon says of itself: PROCESS_METRICS, and how many connections it has turned away."""
    names = {metric.name.removesuffix("_total") for metric in PROCESS_METRICS}
    yield from (family for family in ProcessCollector(registry=None).collect() if family.name in names)
    yield metric_family("laggard_connections_turned_away_total", [((), float(turned_away))])


def exposition(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Returns the body and its content type, in the format that the Accept header `accept` asks for. Label values may
    come from other machines, and people read this on terminals: see visible()."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(map(_printable, families)))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a header without sense counts as none
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def _printable(family: Metric) -> Metric:
    family.samples = [
        sample
        if all(map(str.isprintable, sample.labels.values()))
        else sample._replace(labels={name: visible(value) for name, value in sample.labels.items()})
        for sample in family.samples
    ]
    return family


class _Families(Collector):
    """prometheus_client collects from such an object. It lives for one scrape, so that a rank, job or finding that is
    gone leaves no series behind."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
