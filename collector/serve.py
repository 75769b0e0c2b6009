"""Announces, serves and stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from laggard.collector.scrape_loop import Gatherer
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import make_app
from laggard.http.listen import url_of

log = logging.getLogger("laggard.collector")


def serve(listener: socket.socket, gatherer: Gatherer, settings: CollectorSettings) -> None:
    """Gathers and serves until SIGTERM or SIGINT."""
    app = make_app(
        lambda: gatherer.picture,
        gatherer.fresh,
        gatherer.recording,
        settings.interval_seconds,
        settings.max_drain_ratio,
    )
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=512,
        timeout_graceful_shutdown=1,
    )
    asyncio.run(_serve(_Server(config), listener, gatherer))


async def _serve(server: uvicorn.Server, listener: socket.socket, gatherer: Gatherer) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, server)
    gathering = asyncio.create_task(gatherer.run())
    try:
        log.info("listening on %s", url_of(listener))
        await server.serve(sockets=[listener])
    finally:
        gathering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gathering


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn dies of the signal that it was stopped with; a service that was asked to stop exits with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
