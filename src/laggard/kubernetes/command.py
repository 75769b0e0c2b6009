"""`laggard kubernetes controller`: tells Kubernetes which nodes are fit, by condition and, if asked to, by taint, and
serves /-/healthy and /metrics."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from prometheus_client import Metric

from laggard import __version__
from laggard.catalogue.exposition import daemon_families, exposition, metric_family
from laggard.catalogue.rank_metrics import BUILD_INFO
from laggard.kit.address import without_login
from laggard.kit.daemon import add_config_flag, add_listen_flag, add_log_flags, asked_about_settings, log_to_stderr
from laggard.kit.errors import UsageError
from laggard.kit.flags import add_collector
from laggard.kit.http_message import NO_PAGE, HttpError, Request, Response, bind, split_address, url_of
from laggard.kit.http_server import Server
from laggard.kit.service_manager import supervised
from laggard.kit.tls import client_context
from laggard.kit.web_config import load_web_config
from laggard.kubernetes.api_server import ApiServer, Exchange
from laggard.kubernetes.controller import Controller, Round
from laggard.kubernetes.settings import LISTEN_ADDRESS, ControllerSettings, load_settings

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
    yield metric_family("laggard_node_out", last.out.items())
    yield metric_family("laggard_controller_round_seconds", [] if last.seconds is None else [((), last.seconds)])
    yield from daemon_families(turned_away)


log = logging.getLogger("laggard.kubernetes")

_POD: Final = "the service account's files are in a pod alone, and this is none: a start would fail here"
_PATIENCE_ROUNDS: Final = 20
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", choices=("controller",), help="what to run: the controller, as one pod of the cluster")
    add_config_flag(parser)
    add_collector(parser, "the collector to ask, in place of the file's", None)
    add_listen_flag(parser, LISTEN_ADDRESS)
    add_log_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    """Runs until SIGTERM or SIGINT, then returns 0. Raises UsageError where it cannot start."""
    settings = load_settings(arguments.config, arguments.listen_address, arguments.web_config_file, arguments.collector)
    split_address(settings.listen_address)  # raises where it is none
    tls = load_web_config(settings.web_config_file)
    is_asked = arguments.check_config or arguments.dump_config
    if is_asked and _needs_a_pod(settings) and asked_about_settings(arguments, settings, [_POD]):
        return 0
    to_api, to_collector = _exchanges(settings)
    api = ApiServer(to_api, settings.api_server, settings.token_file)
    if asked_about_settings(arguments, settings):
        return 0
    controller = Controller(api, to_collector, settings)
    with bind(settings.listen_address) as listener:
        log_to_stderr(arguments.log_level, arguments.log_format)
        # Blocked before any thread starts, so that the signals wait for sigwait and interrupt no thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        patience = _PATIENCE_ROUNDS * (settings.interval_seconds + settings.timeout_seconds)
        web = Web(lambda: controller.last, patience, lambda: server.turned_away)
        server = Server(listener, web.handle, error_response, tls=tls)
        log.info("listening on %s", url_of(listener, tls))
        log.info("nodes as %s sees them; taints are %s", without_login(settings.collector), settings.taint)
        threading.Thread(target=_rounds, args=(controller, settings.interval_seconds), daemon=True).start()
        server.start()
        with supervised(url_of(listener, tls)):
            log.info("%s: stopping", signal.Signals(signal.sigwait(_STOP_SIGNALS)).name)
        server.stop()
    return 0


def _needs_a_pod(settings: ControllerSettings) -> bool:
    """Whether the settings are those of a pod, and this is none: nothing can be said of the kubelet's files."""
    return settings.ca_file == ControllerSettings().ca_file and not os.path.exists(settings.ca_file)


def _exchanges(settings: ControllerSettings) -> tuple[Exchange, Exchange]:
    """The exchanges with the API server, whose certificate is the cluster's, and with the collector."""
    try:
        to_api = Exchange(settings.timeout_seconds, ssl.create_default_context(cafile=settings.ca_file or None))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "it holds no certificate"
        raise UsageError(f"cannot read ca_file {settings.ca_file}: {reason}") from None
    return to_api, Exchange(settings.timeout_seconds, client_context)


def _rounds(controller: Controller, interval_seconds: float) -> None:
    pause = threading.Event()  # sleep() has been seen to fail while a clock was set, and would end all rounds
    while True:
        try:
            controller.round(time.monotonic())
        except Exception:  # one failed round must not be the last
            log.exception("a defect in laggard: this round was lost")
        pause.wait(interval_seconds)
