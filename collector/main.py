"""`laggard collector`: scrapes the agents, names the culprit, shows it. Its server and its loop run until a signal
stops them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import glob
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import uvicorn

from laggard.collector.discovery import Discovery, DnsName, Place, SlurmPartition, TargetFiles
from laggard.collector.evaluators import QUERY_SECONDS, Evaluator
from laggard.collector.memory import give_back, look_rarely
from laggard.collector.prometheus.client import Login, Prometheus
from laggard.collector.prometheus.watch import PrometheusWatch
from laggard.collector.scrape.connections import MAX_KEPT, MAX_SILENT
from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.settings import LISTEN_ADDRESS, CollectorSettings, incidents_writer, load_settings, read_url
from laggard.collector.shared_verdicts import Place as EvaluatorPlace
from laggard.collector.targets import LOCAL_AGENT, parse_targets
from laggard.collector.tenants import Admission
from laggard.collector.web.acceptor import MAX_PENDING, Acceptor, after_handshake
from laggard.collector.web.app import make_app
from laggard.collector.web.connections import MAX_WAITING, bounded, kept_places
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.signed_requests import stacks_tokens
from laggard.kit.daemon import add_config_flag, add_listen_flag, add_log_flags, asked_about_settings, log_to_stderr
from laggard.kit.errors import UsageError
from laggard.kit.flags import duration
from laggard.kit.http_message import bind, split_address, url_of
from laggard.kit.secret_files import read_token_file
from laggard.kit.service_manager import supervised
from laggard.kit.tls import client_context
from laggard.kit.tls_server import ServerTls
from laggard.kit.web_config import load_web_config
from laggard.locate.verdict import locate

log = logging.getLogger("laggard.collector")

_PENDING_SHARE = 8
"""The part of all file descriptors, one of so many, that connections may have which wait for a place, at most."""

_OTHER_FILES = 64


def serve(
    listener: socket.socket,
    scrape_loop: ScrapeLoop,
    settings: CollectorSettings,
    tls: ServerTls | None = None,
) -> None:
    """Scrapes and serves until SIGTERM or SIGINT. `tls`: where given, it serves nothing else."""
    look_rarely()
    give_back()
    log.info("listening on %s", url_of(listener, tls))
    room = _room(settings.max_connections, settings.concurrency)
    scrape_loop.connections.most = room.kept
    protocol = bounded(room.clients, settings.max_connections_per_address)
    metrics = CollectorMetrics.made(scrape_loop, settings, protocol.table.ended)
    config = uvicorn.Config(
        make_app(scrape_loop, settings, metrics),
        http=after_handshake(protocol, tls) if tls else protocol,  # type: ignore[arg-type]  # all that makes one will do
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # uvicorn would take a client's word, X-Forwarded-For, for its address
        timeout_graceful_shutdown=1,
    )
    with supervised(url_of(listener, tls)):
        asyncio.run(_serve(_Server(config, protocol.table.note_refused, room.pending), listener, scrape_loop))


class _Room(NamedTuple):
    """How many connections there are file descriptors for: of clients, of those that wait for a place, and kept to
    agents while nothing is asked over them."""

    clients: int
    pending: int
    kept: int


def _room(max_connections: int, concurrency: int) -> _Room:
    """Takes as many descriptors as it may. What is scarce the clients have before kept connections."""
    clients = max_connections + kept_places(max_connections)
    others = concurrency + MAX_WAITING + _OTHER_FILES
    found = _take_descriptors(clients + others + MAX_PENDING + MAX_SILENT + MAX_KEPT)
    pending = max(1, min(MAX_PENDING, found // _PENDING_SHARE))
    left = found - others - pending
    affordable = max(1, min(max_connections, left * max_connections // clients))
    if affordable < max_connections:
        log.warning("at most %d connections, since there are %d file descriptors (ulimit -n)", affordable, found)
    return _Room(affordable, pending, max(0, min(MAX_KEPT, left - clients - MAX_SILENT)))


def _take_descriptors(wanted: int) -> int:
    """Raises the number of file descriptors to so many where it is lower, as far as it may. Returns how many there
    are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < more:
        with contextlib.suppress(OSError, ValueError):  # as a service it may not, and has what its unit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    return soft


async def _serve(server: uvicorn.Server, listener: socket.socket, scrape_loop: ScrapeLoop) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, server)
    scraping = asyncio.create_task(scrape_loop.run())
    try:
        await server.serve(sockets=[listener])
    finally:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping
        scrape_loop.incidents.close()


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn ends itself by the signal that stopped it; a service that was asked to stop exits with 0. `note_refused`:
    as of an Acceptor, which accepts in the place of asyncio's server."""

    def __init__(self, config: uvicorn.Config, note_refused: Callable[[int, str], None], max_pending: int) -> None:
        super().__init__(config)
        self._note_refused, self._max_pending = note_refused, max_pending
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self._acceptors = [
            Acceptor(each, self._make_protocol, self._note_refused, self._max_pending) for each in sockets or ()
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        await super().shutdown(sockets)

    def _make_protocol(self) -> asyncio.Protocol:
        make = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def configure(parser: argparse.ArgumentParser) -> None:
    add_config_flag(parser)
    parser.add_argument(
        "--target",
        dest="targets",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help=f"an agent to scrape, as HOST, HOST:PORT or URL; repeatable (default: {LOCAL_AGENT})",
    )
    add_listen_flag(parser, LISTEN_ADDRESS)
    parser.add_argument(
        "--interval",
        type=duration(0.001, 86400),
        metavar="TIME",
        help="from the start of one round of scrapes to the next (default: 5s)",
    )
    add_log_flags(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises UsageError where it cannot start."""
    settings = load_settings(
        arguments.config, arguments.targets, arguments.listen_address, arguments.interval, arguments.web_config_file
    )
    discovery = _discovery(settings)
    split_address(settings.listen_address)  # raises where it is none
    tls = load_web_config(settings.web_config_file)
    client_context()  # raises where what it shows agents cannot be read
    _check_tenants(settings, tls)
    _check_tokens(settings)
    watch = _watch(settings)
    if asked_about_settings(arguments, settings, [*_unwise(settings)]):
        return 0
    _take_password(settings)
    with bind(settings.listen_address) as listener:
        log_to_stderr(arguments.log_level, arguments.log_format)
        tokens = stacks_tokens(settings)
        sent = tokens.sent if tokens else None
        serve(listener, ScrapeLoop(discovery, settings, locate, watch, sent), settings, tls)
    return 0


def _take_password(settings: CollectorSettings) -> None:
    """Has libpq find the password of incidents_database_file, whoever connects: no text of a URL has it then."""
    path = settings.incidents_database_file
    if path and (password := read_url(path, "incidents_database_file").password):
        os.environ["PGPASSWORD"] = password


def _check_tenants(settings: CollectorSettings, tls: ServerTls | None) -> None:
    """Raises UsageError where users could not be told apart as the settings say."""
    if Admission(settings).needs_certificates and not (tls and tls.verifies_clients):
        raise UsageError(
            "tenant_certificates and certificate:NAME need clients' certificates: give client_ca_file and "
            "client_auth_type in the file of web_config_file"
        )


def _check_tokens(settings: CollectorSettings) -> None:
    """Raises UsageError where a secret cannot be read, or is for every user to read."""
    for name in ("ring_token_file", "confirm_token_file", "stacks_token_file"):
        if path := getattr(settings, name):
            read_token_file(path, name)


def _unwise(settings: CollectorSettings) -> Iterator[str]:
    """A line for each thing that may be as it is meant, and more likely is not."""
    for pattern in settings.target_files:
        if not glob.glob(pattern):
            yield f"target_files: no file is {pattern} now, so it tells of no agent until there is one"
    if settings.target_slurm and not os.access(settings.sinfo, os.X_OK):
        yield f"sinfo: there is no program {settings.sinfo}, so target_slurm finds no agent until there is one"
    if settings.max_drain_ratio > 0.5:  # no majority is left to compare with
        yield f"max_drain_ratio is {settings.max_drain_ratio:g}: a fault of the checks may drain most nodes at once"


def _discovery(settings: CollectorSettings) -> Discovery:
    """Raises UsageError where a target or name cannot be read; a file of targets may be missing yet."""
    places: list[Place] = [*map(DnsName, settings.target_names), *map(TargetFiles, settings.target_files)]
    places += [SlurmPartition(text, settings.sinfo) for text in settings.target_slurm]
    listed = parse_targets(settings.targets)
    return Discovery(listed, places, settings.max_targets, settings.forget_after_seconds)


def _watch(settings: CollectorSettings) -> PrometheusWatch | Evaluator | None:
    if not settings.prometheus:
        return None
    login = Login(
        settings.prometheus_bearer_token_file, settings.prometheus_basic_auth_file, settings.prometheus_headers_file
    )
    limit = QUERY_SECONDS if settings.evaluators else None
    prometheus = Prometheus(settings.prometheus, login, settings.prometheus_cluster, limit)
    seconds = settings.prometheus_interval_seconds
    if not settings.evaluators:
        return PrometheusWatch(prometheus, seconds)
    name = incidents_writer(settings, os.environ)
    place = EvaluatorPlace(settings.incidents_database, settings.evaluators, name)
    return Evaluator(prometheus, place, seconds, settings.max_jobs)
