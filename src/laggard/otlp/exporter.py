"""The thread that sends a daemon's metrics, again and again. A receiver that is away costs nothing but that thread's
time: what was not sent is not kept, since the next message has all counters' present values."""

from __future__ import annotations

import gzip
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import Metric

from laggard import __version__
from laggard.address import without_login
from laggard.errors import UsageError
from laggard.http.client import NoResponse, send
from laggard.otlp.message import Series, message_of
from laggard.otlp.settings import Destination, read_headers

log = logging.getLogger("laggard.otlp")

SENT: Final = "sent"
FAILED: Final = "failed"
TIMEOUT_SECONDS: Final = 10.0
_HEADERS: Final = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}


class OtlpExporter:
    """`service`: job as Prometheus calls it, `instance`: as there, HOST:PORT. `families` makes what /metrics shows.
    `exports` counts what became of each message."""

    def __init__(
        self,
        destination: Destination,
        service: str,
        instance: str,
        families: Callable[[], Iterable[Metric]],
        exports: Counter[str],
    ) -> None:
        self._destination = destination
        self._resource = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
        self._families = families
        self._exports = exports
        self._exports.update({SENT: 0, FAILED: 0})
        self._arrived: frozenset[Series] = frozenset()
        self._stopped = threading.Event()

    def start(self) -> None:
        log.info("metrics go to %s", without_login(self._destination.endpoint))
        threading.Thread(target=self._run, name="otlp", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def export(self) -> None:
        """Sends one message. Never raises: a failure is counted, and told in the log."""
        try:
            self._send()
            self._exports[SENT] += 1
        except (NoResponse, UsageError) as error:
            self._exports[FAILED] += 1
            log.warning("no metrics to %s: %s", without_login(self._destination.endpoint), error)
        except Exception:  # one failed message must not be the last
            self._exports[FAILED] += 1
            log.exception("a defect in laggard: metrics were not sent")

    def _send(self) -> None:
        message = message_of(self._families(), self._arrived, self._resource, __version__, time.time_ns())
        if message.left_out:
            log.warning("a message has no room for all metrics: %d series are left out", message.left_out)
        send(self._destination.endpoint, gzip.compress(message.body, 1), self._headers(), TIMEOUT_SECONDS)
        self._arrived = message.series

    def _headers(self) -> Mapping[str, str]:
        path = self._destination.headers_file
        return {**_HEADERS, **(read_headers(path) if path else {})}

    def _run(self) -> None:
        interval = self._destination.interval_seconds
        # A fleet that is started at once does not send at once.
        due = time.monotonic() + random.uniform(0.0, interval)
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            self.export()
            due = max(due + interval, time.monotonic())
