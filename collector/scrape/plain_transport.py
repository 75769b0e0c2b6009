"""A TCP connection to an address. asyncio's own takes three times the CPU time to make: tasks, futures and timers, for
what may be said in two callbacks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final

from laggard.collector.scrape.transport import Asker

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
