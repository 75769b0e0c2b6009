"""A question to an agent goes over a transport: TCP to an address, TCP to a name, or TLS over either. Each tells who
asks, on the event loop, what comes of it; several questions may go over one, one after the other."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from typing import Final, Protocol, cast


class Asker(Protocol):
    """The one who asks. `connected` and `not_connected`: one of them is called, once; then the others."""

    def connected(self, transport: Transport) -> None: ...

    def not_connected(self, error: Exception) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class Transport(Protocol):
    """`asker`: who is told; another one may take its place. abort() tells nobody."""

    asker: Asker

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...


# A TCP connection to an address. asyncio's own takes three times the CPU time to make: tasks, futures and timers, for
# what may be said in two callbacks.

_READ_BYTES: Final = 64 << 10
_WAIT: Final = (errno.EINPROGRESS, errno.EAGAIN)


class PlainTransport:
    """Begins to connect; tells `asker` what comes of it. `address`: IPv4 or IPv6, without a zone. To be used on the
    running event loop."""

    __slots__ = ("_closed", "_descriptor", "_loop", "_socket", "_unsent", "asker")

    def __init__(self, asker: Asker, address: str, port: int) -> None:
        """Raises OSError where there is no descriptor for it, or no way to `address`."""
        self.asker = asker
        self._loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._descriptor = self._socket.fileno()  # of a socket itself, asyncio's selector writes a text each time
        self._unsent = b""
        self._closed = False
        error = self._socket.connect_ex((address, port))
        if error and error not in _WAIT:
            self._socket.close()
            raise OSError(error, os.strerror(error))
        self._loop.add_writer(self._descriptor, self._connected)

    def write(self, data: bytes) -> None:
        """Sends `data`, before anything else is sent."""
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lose(error)
            return
        self._unsent = data[sent:]
        if self._unsent:
            self._loop.add_writer(self._descriptor, self._write_on)

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        self._loop.add_reader(self._descriptor, self._read)

    def abort(self) -> None:
        """Closes the connection; tells nobody."""
        if not self._closed:
            self._closed = True
            self._loop.remove_writer(self._descriptor)
            self._loop.remove_reader(self._descriptor)
            self._socket.close()

    def _connected(self) -> None:
        """The connection is there, or it is known why there is none."""
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.abort()
            self.asker.not_connected(OSError(error, os.strerror(error)))
            return
        self._loop.add_reader(self._descriptor, self._read)
        self._loop.remove_writer(self._descriptor)
        self.asker.connected(self)

    def _write_on(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self.write(self._unsent)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            self.asker.data_received(data)
        else:
            self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        self.abort()
        self.asker.connection_lost(error)


_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""


class NamedTransport(asyncio.Protocol):
    """Connects once connect() is awaited; tells `asker` what comes of it."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self._transport: asyncio.Transport | None = None

    async def connect(self, name: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, name, port, happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS)
        except (OSError, ValueError) as error:
            self.asker.not_connected(error)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.asker.connected(self)

    def data_received(self, data: bytes) -> None:
        self.asker.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
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
