"""Whether a daemon sends its metrics at all: what is needed for that is loaded only then."""

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
    """While it lasts, what `families` makes is sent to `destination`, and `exports` counts; nothing where there is
    none. `service` and `instance` are what Prometheus calls job and instance."""
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
