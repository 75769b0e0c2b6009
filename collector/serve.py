"""Binds, announces, serves and stops. The socket is bound before anything else runs: a busy port is a usage error."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from laggard.collector.app import make_app
from laggard.collector.gather import Gatherer
from laggard.collector.settings import CollectorSettings
from laggard.model import UsageError

log = logging.getLogger("laggard.collector")


def bind(address: str) -> socket.socket:
    """A listening socket on `HOST:PORT`, `:PORT` (every interface) or `[IPV6]:PORT`. Raises UsageError."""
    host, separator, port_text = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise UsageError(f"cannot read listen address {address!r}: write HOST:PORT, or :PORT for every interface")
    try:
        return _listen(host, int(port_text))
    except OSError as error:
        raise UsageError(_bind_complaint(address, error)) from None


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # compiled in, but switched off on this machine
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _bind_complaint(address: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use; stop what listens there or choose another with --web.listen-address"
    return f"cannot listen on {address}: {error.strerror or error}; choose another with --web.listen-address"


def serve(listener: socket.socket, gatherer: Gatherer, settings: CollectorSettings) -> None:
    """Gathers and serves until SIGTERM or SIGINT."""
    app = make_app(lambda: gatherer.picture, settings.interval_seconds, settings.max_drain_ratio)
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


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn dies of the signal that it was stopped with; a service that was asked to stop exits with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
