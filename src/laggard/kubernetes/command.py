"""`laggard kubernetes controller`: tells Kubernetes which nodes are fit, by condition and, if asked to, by taint."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import ssl
import threading
import time
from typing import Final

from laggard.address import without_login
from laggard.daemon import add_config_flag, add_listen_flag, add_log_flags, asked_about_settings, log_to_stderr
from laggard.errors import UsageError
from laggard.http.listen import bind, split_address, url_of
from laggard.http.server import Server
from laggard.http.tls import client_context
from laggard.kubernetes.api_server import ApiServer
from laggard.kubernetes.controller import Controller
from laggard.kubernetes.exchange import Exchange
from laggard.kubernetes.settings import LISTEN_ADDRESS, ControllerSettings, load_settings
from laggard.kubernetes.web import Web, error_response
from laggard.service_manager import supervised
from laggard.web_config import load_web_config

log = logging.getLogger("laggard.kubernetes")

_POD: Final = "the service account's files are in a pod alone, and this is none: a start would fail here"
_PATIENCE_ROUNDS: Final = 20
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", choices=("controller",), help="what to run: the controller, as one pod of the cluster")
    add_config_flag(parser)
    parser.add_argument("--collector", metavar="URL", help="the collector to ask, in place of the file's")
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
