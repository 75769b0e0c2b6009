"""Runs the HTTP server and the scrape loop until a signal stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator

import uvicorn

from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import make_app
from laggard.collector.web.connection_table import MAX_WAITING, kept_places
from laggard.collector.web.connections import bounded
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.tls_connections import after_handshake
from laggard.environment import node_name
from laggard.http.listen import url_of
from laggard.http.tls import ServerTls
from laggard.otlp.sending import sending
from laggard.otlp.settings import Destination
from laggard.service_manager import supervised

log = logging.getLogger("laggard.collector")

_BACKLOG = 64
"""Connections that are accepted at once, before the first of them is seen: beyond the limit for that moment."""

_MAX_UNACCEPTED = 1024
"""Connections that the kernel holds until they are accepted. Beyond them it drops the first packet of a connection, and
its client tries again a second later."""

_OTHER_FILES = 64


def serve(
    listener: socket.socket,
    scrape_loop: ScrapeLoop,
    settings: CollectorSettings,
    tls: ServerTls | None = None,
    send_to: Destination | None = None,
) -> None:
    """Scrapes and serves until SIGTERM or SIGINT. `tls`: where given, it serves nothing else. `send_to`: where the
    metrics are sent."""
    log.info("listening on %s", url_of(listener, tls))
    max_connections = _affordable(settings.max_connections, settings.concurrency)
    protocol = bounded(max_connections, settings.max_connections_per_address)
    metrics = CollectorMetrics(scrape_loop, settings.max_drain_ratio, protocol.table.ended)
    otlp = sending(send_to, "laggard-collector", _instance(listener), metrics.families, metrics.otlp_exports)
    config = uvicorn.Config(
        make_app(scrape_loop, settings, metrics),
        http=after_handshake(protocol, tls) if tls else protocol,  # type: ignore[arg-type]  # all that makes one will do
        backlog=_BACKLOG,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # uvicorn would take a client's word, X-Forwarded-For, for its address
        timeout_graceful_shutdown=1,
    )
    with otlp, supervised(url_of(listener, tls)):
        asyncio.run(_serve(_Server(config), listener, scrape_loop))


def _instance(listener: socket.socket) -> str:
    """The collector as `instance` has it where it is scraped."""
    return f"{node_name(os.environ)}:{listener.getsockname()[1]}"


def _affordable(max_connections: int, concurrency: int) -> int:
    """The number of connections that there are file descriptors for, beside those to the agents. Takes as many
    descriptors as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_connections
    others = concurrency + _BACKLOG + MAX_WAITING + _OTHER_FILES
    wanted = max_connections + kept_places(max_connections) + others
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return max_connections
    affordable = (soft - others) * max_connections // (wanted - others)
    if affordable < max_connections:
        log.warning("at most %d connections, since there are %d file descriptors (ulimit -n)", affordable, soft)
    return max(1, min(max_connections, affordable))


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
    """uvicorn ends itself by the signal that stopped it; a service that was asked to stop exits with 0."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_MAX_UNACCEPTED)  # asyncio has set it to what it accepts at once

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
