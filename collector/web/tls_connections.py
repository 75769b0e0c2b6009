"""TLS in front of the collector's connections.

asyncio makes a protocol only when a handshake has ended: connections that never end theirs would be in no table. Here a
connection has its place and its deadline from its begin, and the handshake comes after that.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from laggard.collector.web.connections import HEAD_SECONDS, BoundedProtocol
from laggard.http.tls import ServerTls, log_failure

log = logging.getLogger("laggard.collector")


def after_handshake(make: type[BoundedProtocol], tls: ServerTls) -> Callable[..., asyncio.Protocol]:
    """Returns a function that makes a protocol which does the handshake, and then is what `make` makes."""
    return lambda **named: _Handshake(make(**named), tls)


class _Handshake(asyncio.Protocol):
    """One connection until its handshake is done. `inner` has the place in the table, and takes over."""

    def __init__(self, inner: BoundedProtocol, tls: ServerTls) -> None:
        self._inner = inner
        self._tls = tls
        self._early = bytearray()  # came between the end of the handshake and the change of protocol
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._inner.admit(transport, lambda: self._begin(transport))

    def _begin(self, transport: asyncio.Transport) -> None:
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.leave()

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        try:
            secure = await asyncio.get_running_loop().start_tls(
                plain, self, self._tls.context, server_side=True, ssl_handshake_timeout=HEAD_SECONDS
            )
        except OSError as error:  # a wrong certificate, or a client that left
            if isinstance(error, ssl.SSLError):
                log_failure(error)
            # The frames of its traceback hold the handshake's buffers, and what waits for it holds the error: a circle
            # that would stay until Python happens to look for circles.
            error.__traceback__ = error.__context__ = None
            plain.abort()
            self._inner.leave()
            return
        if secure is None or secure.is_closing():
            self._inner.leave()
            return
        self._hand_over(secure)

    def _hand_over(self, secure: asyncio.Transport) -> None:
        if not self._tls.names_are_allowed(secure.get_extra_info("peercert")):
            log.warning("a client was refused: its certificate has none of client_allowed_sans")
            secure.abort()
            self._inner.leave()
            return
        secure.set_protocol(self._inner)
        self._inner.connection_made(secure)
        if self._early:
            self._inner.data_received(bytes(self._early))
