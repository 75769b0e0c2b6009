"""Runs the HTTP server and the scrape loop until a signal stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn

from laggard.collector import arenas, garbage
from laggard.collector.scrape.kept_connections import MAX_KEPT
from laggard.collector.scrape.slots import MAX_SILENT
from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.acceptor import MAX_PENDING, Acceptor
from laggard.collector.web.app import make_app
from laggard.collector.web.connection_table import MAX_WAITING, kept_places
from laggard.collector.web.connections import bounded
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.tls_connections import after_handshake
from laggard.http.listen import url_of
from laggard.http.tls import ServerTls
from laggard.service_manager import supervised

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
    garbage.look_rarely()
    arenas.give_back()
    log.info("listening on %s", url_of(listener, tls))
    max_connections = _affordable(settings.max_connections, settings.concurrency)
    scrape_loop.connections.most = _keepable(max_connections, settings.concurrency)
    protocol = bounded(max_connections, settings.max_connections_per_address)
    metrics = CollectorMetrics(
        scrape_loop,
        settings.max_drain_ratio,
        protocol.table.ended,
        exclude_seconds=settings.exclude_seconds,
    )
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
        asyncio.run(_serve(_Server(config, protocol.table.note_refused), listener, scrape_loop))


def _affordable(max_connections: int, concurrency: int) -> int:
    """The number of connections that there are file descriptors for, beside those to the agents. Takes as many
    descriptors as it may."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_connections
    others = concurrency + _max_pending(soft) + MAX_WAITING + _OTHER_FILES
    wanted = max_connections + kept_places(max_connections) + others
    soft = _take_descriptors(wanted)
    if soft >= wanted:
        return max_connections
    affordable = (soft - others) * max_connections // (wanted - others)
    if affordable < max_connections:
        log.warning("at most %d connections, since there are %d file descriptors (ulimit -n)", affordable, soft)
    return max(1, min(max_connections, affordable))


def _keepable(max_connections: int, concurrency: int) -> int:
    """The number of connections to agents that there are descriptors for while nothing is asked over them, beside all
    others. Takes as many descriptors as it may."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_KEPT
    asked = 2 * concurrency + MAX_SILENT
    others = asked + max_connections + kept_places(max_connections) + _max_pending(soft) + MAX_WAITING + _OTHER_FILES
    return max(0, min(MAX_KEPT, _take_descriptors(others + MAX_KEPT) - others))


def _take_descriptors(wanted: int) -> int:
    """Raises the number of file descriptors to so many where it is lower, as far as it may. Returns how many there
    are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < more:
        with contextlib.suppress(OSError, ValueError):  # as a service it may not, and has what its unit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    return soft


def _max_pending(descriptors: int) -> int:
    """The most connections that may wait for a place, where there are so many file descriptors."""
    unlimited = descriptors == resource.RLIM_INFINITY
    return MAX_PENDING if unlimited else max(1, min(MAX_PENDING, descriptors // _PENDING_SHARE))


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

    def __init__(self, config: uvicorn.Config, note_refused: Callable[[int, str], None]) -> None:
        super().__init__(config)
        self._note_refused = note_refused
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        most = _max_pending(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._acceptors = [Acceptor(each, self._make_protocol, self._note_refused, most) for each in sockets or ()]
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
