"""The switch that makes a daemon send its metrics: what is needed for that is loaded only where they are sent."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric

from laggard.otlp.settings import Destination


@contextlib.contextmanager
def sending(
    destination: Destination | None,
    service: str,
    instance: str,
    families: Callable[[], Iterable[Metric]],
    exports: Counter[str],
) -> Iterator[None]:
    """Sends what `families` makes to `destination` while it lasts, and `exports` counts; nothing where there is none.
    `service` and `instance` are what Prometheus calls job and instance."""
    if destination is None:
        yield
        return
    from laggard.otlp.exporter import OtlpExporter

    exporter = OtlpExporter(destination, service, instance, families, exports)
    exporter.start()
    try:
        yield
    finally:
        exporter.stop()
