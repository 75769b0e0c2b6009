"""Runs the HTTP server and the scrape loop until a signal stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from laggard.collector.scrape_loop import ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import make_app
from laggard.http.listen import url_of

log = logging.getLogger("laggard.collector")


def serve(listener: socket.socket, scrape_loop: ScrapeLoop, settings: CollectorSettings) -> None:
    """Scrapes and serves until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        make_app(scrape_loop, settings),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=512,
        timeout_graceful_shutdown=1,
    )
    asyncio.run(_serve(_Server(config), listener, scrape_loop))


async def _serve(server: uvicorn.Server, listener: socket.socket, scrape_loop: ScrapeLoop) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, server)
    scraping = asyncio.create_task(scrape_loop.run())
    try:
        log.info("listening on %s", url_of(listener))
        await server.serve(sockets=[listener])
    finally:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn ends itself by the signal that stopped it; a service that was asked to stop exits with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
