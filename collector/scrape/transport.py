"""A question to an agent goes over a transport: TCP, or TLS over it. Each tells who asks, on the event loop, what comes
of it; several questions may go over one, one after the other."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, Protocol, cast

from laggard.kit.address import ip_of


class Asker(Protocol):
    """The one who asks. `connected` and `not_connected`: one of them is called, once; then the others."""

    def connected(self, transport: Transport) -> None: ...

    def not_connected(self, error: Exception) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


_READ_BYTES: Final = 64 << 10
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""


class PlainTransport(asyncio.Protocol):
    """TCP. Connects once connect() is awaited; tells `asker` what comes of it."""

    _transport: asyncio.Transport  # once it is connected

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self._is_connected = self._is_over = False

    async def connect(self, host: str, port: int) -> None:
        loop, delay = asyncio.get_running_loop(), None if ip_of(host) else _SECOND_ADDRESS_SECONDS
        try:
            await loop.create_connection(lambda: self, host, port, happy_eyeballs_delay=delay)
        except (OSError, ValueError) as error:
            self.asker.not_connected(error)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def abort(self) -> None:
        self._is_over = True
        if self._is_connected:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_connected = cast("asyncio.Transport", transport), True
        if self._is_over:  # nobody waits for it any more
            self._transport.abort()
            return
        if hasattr(transport, "max_size"):  # asyncio's own: what it reads at once
            transport.max_size = _READ_BYTES
        self.asker.connected(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            self.asker.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self.asker.connection_lost(exc)


# A client's side of TLS over a TCP connection. asyncio's own holds 256 KiB for each connection, in which it reads:
# those to 4,096 agents, while they are kept, would take a GiB.

_FED_BYTES: Final = 8 << 10
"""The most that is decrypted at once: OpenSSL keeps the room for the most that it was ever given."""


class TlsTransport:
    """Is told of the connection below as its asker, shakes hands, and tells `asker` of what is above."""

    def __init__(self, asker: Asker, context: ssl.SSLContext, server_name: str) -> None:
        self.asker = asker
        self.context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._below: Transport | None = None
        self._is_ready = self._is_paused = self._is_over = False

    def write(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read()
        if self._below is not None and not self._is_paused and not self._is_over:
            self._below.resume_reading()

    def abort(self) -> None:
        self._is_over = True
        if self._below is not None:
            self._below.abort()
            self._below = None  # each of the two refers to the other

    def connected(self, transport: Transport) -> None:
        self._below = transport
        self._shake_hands()

    def not_connected(self, error: Exception) -> None:
        self.asker.not_connected(error)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), _FED_BYTES):
            if not self._is_over:
                self._incoming.write(data[begin : begin + _FED_BYTES])
                self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self._incoming.write_eof()
            self._go_on()
        elif self._is_ready:
            self._lose(error)
        else:
            self._fail(error)

    def _go_on(self) -> None:
        if self._is_ready:
            self._read()
        else:
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert
            self._fail(error)
            return
        self._is_ready = True
        self._flush()
        self.asker.connected(self)
        self._read()

    def _read(self) -> None:
        """Tells what came, until there is no more of it, or reading pauses."""
        while not self._is_paused and not self._is_over:
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                self._flush()
                return
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            except ssl.SSLError as error:
                self._lose(error)
                return
            if not data:
                self._lose(None)
                return
            self.asker.data_received(data)

    def _flush(self) -> None:
        if self._below is not None and self._outgoing.pending:
            self._below.write(self._outgoing.read())

    def _fail(self, error: Exception) -> None:
        if not self._is_over:
            self.abort()
            self.asker.not_connected(error)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_over:
            self.abort()
            self.asker.connection_lost(error)


Transport = PlainTransport | TlsTransport
"""`asker` is who is told; another one may take its place. abort() tells nobody."""
