"""The controller's endpoints: /-/healthy and /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from prometheus_client import Metric

from laggard import __version__
from laggard.catalogue.exposition import daemon_families, exposition, metric_family
from laggard.catalogue.rank_metrics import BUILD_INFO
from laggard.http.message import HttpError, Request, Response
from laggard.http.security_headers import NO_PAGE
from laggard.kubernetes.controller import Round

_TEXT: Final = "text/plain; charset=utf-8"


class Web:
    """`last` gives the last round. It is healthy while one was completed in the last `patience_seconds`, from its own
    start on. `turned_away`: how many connections were so far."""

    def __init__(
        self, last: Callable[[], Round], patience_seconds: float, turned_away: Callable[[], int] = lambda: 0
    ) -> None:
        self._last = last
        self._patience_seconds = patience_seconds
        self._started_at = time.time()
        self._turned_away = turned_away

    def handle(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return error_response(HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"))
        if request.path == "/metrics":
            body, content_type = exposition(_families(self._last(), self._turned_away()), request.accept)
            return Response(HTTPStatus.OK, content_type, body, NO_PAGE)
        if request.path in ("/-/healthy", "/-/ready"):
            return self._healthy()
        return error_response(HttpError(HTTPStatus.NOT_FOUND, "nothing here; there is /metrics, /-/healthy, /-/ready"))

    def _healthy(self) -> Response:
        last = self._last()
        if time.time() - max(last.completed_at, self._started_at) < self._patience_seconds:
            return _text(HTTPStatus.OK, "healthy")
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"no round is completed: {last.failure or 'it takes too long'}")


def error_response(error: HttpError) -> Response:
    response = _text(error.status, str(error))
    return response._replace(headers=response.headers + error.headers)


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, _TEXT, f"{text}\n".encode(), NO_PAGE)


def _families(last: Round, turned_away: int) -> Iterator[Metric]:
    values = {
        "laggard_controller_last_round_timestamp_seconds": last.completed_at,
        "laggard_controller_unhealthy_nodes": last.unhealthy,
        "laggard_controller_tainted_nodes": last.tainted,
        "laggard_controller_held_back": bool(last.held_back),
        "laggard_controller_misnamed_agents": last.misnamed,
    }
    yield metric_family(BUILD_INFO.name, [((__version__,), 1.0)])
    for name, value in values.items():
        yield metric_family(name, [((), float(value))])
    yield metric_family("laggard_controller_round_seconds", [] if last.seconds is None else [((), last.seconds)])
    yield from daemon_families(turned_away)
