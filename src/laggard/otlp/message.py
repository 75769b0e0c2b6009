"""Metrics as prometheus_client has them, in the words of OTLP. Pure.

As OpenTelemetry's specification maps Prometheus' metrics (specs/otel/compatibility/prometheus_and_openmetrics): names
stay as they are, a counter is a cumulative, monotonic Sum, a gauge a Gauge, and the type stands in the metadata. When a
counter began is not said: a rank's counters began with the rank, which the daemon does not know. A series that is gone
gets one more point, without a value, as a scrape that misses it gives: else it would seem to last for some minutes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import Metric

from laggard.errors import UsageError

MAX_POINTS: Final = 50_000
"""The most points in one message. It has some megabytes then; OpenTelemetry's Collector takes 20 MiB by default."""

_CUMULATIVE: Final = 2  # AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_NO_VALUE: Final = 1  # DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


class Described(NamedTuple):
    """The description that all points of a metric share. `kind` is Prometheus' type."""

    name: str
    kind: str
    help: str


class Series(NamedTuple):
    metric: Described
    labels: tuple[tuple[str, str], ...]


class Message(NamedTuple):
    """An ExportMetricsServiceRequest, the series that have a value in it, and how many it had no room for."""

    body: bytes
    series: frozenset[Series]
    left_out: int


def load() -> Any:
    """Returns the module of the protocol's messages. Raises UsageError where the extra is not installed."""
    try:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    except ImportError:
        raise UsageError("otlp_endpoint needs opentelemetry-proto: pip install 'laggard[otlp]'") from None
    return metrics_service_pb2


def message_of(
    families: Iterable[Metric],
    before: frozenset[Series],
    resource: Mapping[str, str],
    version: str,
    at_nanoseconds: int,
) -> Message:
    """`before`: the series of the last message that arrived; `resource`: who says it; `at_nanoseconds`: when, Unix
    time."""
    found = dict(_series(families))
    values = dict(itertools.islice(found.items(), MAX_POINTS))
    room = MAX_POINTS - len(values)
    gone = dict.fromkeys(itertools.islice((series for series in before if series not in found), room))
    request = load().ExportMetricsServiceRequest()
    sender = request.resource_metrics.add()
    for key, value in resource.items():
        _set(sender.resource.attributes, key, value)
    scope = sender.scope_metrics.add()
    scope.scope.name, scope.scope.version = "laggard", version
    points: dict[Described, list[tuple[Series, float | None]]] = {}
    for series, number in {**values, **gone}.items():
        points.setdefault(series.metric, []).append((series, number))
    for described, listed in points.items():
        _add(scope.metrics.add(), described, listed, at_nanoseconds)
    return Message(request.SerializeToString(), frozenset(values), len(found) - len(values))


def _series(families: Iterable[Metric]) -> Iterator[tuple[Series, float]]:
    for family in families:
        for sample in family.samples:
            # As for Prometheus, an empty label is none.
            labels = tuple((key, value) for key, value in sample.labels.items() if value)
            yield Series(Described(sample.name, family.type, family.documentation), labels), sample.value


def _add(metric: Any, described: Described, listed: list[tuple[Series, float | None]], at_nanoseconds: int) -> None:
    metric.name, metric.description = described.name, described.help
    _set(metric.metadata, "prometheus.type", described.kind)
    if described.kind == "counter":
        metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, _CUMULATIVE
    points = metric.sum.data_points if described.kind == "counter" else metric.gauge.data_points
    for series, value in listed:
        point = points.add()
        point.time_unix_nano = at_nanoseconds
        if value is None:
            point.flags = _NO_VALUE
        else:
            point.as_double = value
        for key, text in series.labels:
            _set(point.attributes, key, text)


def _set(attributes: Any, key: str, value: str) -> None:
    attribute = attributes.add()
    attribute.key = key
    # A job's name may have what is no character: protobuf takes none of those.
    attribute.value.string_value = value.encode(errors="replace").decode()
