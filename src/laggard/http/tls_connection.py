"""A server's side of one TLS connection, as a socket that HTTP is spoken over.

ssl's own socket asks the kernel twice for each record, and OpenSSL takes 128 KiB of a hello. A client that sends it in
records of one byte has a server make 40,000 system calls so, forty times what another handshake costs. Here what a
client sends is taken in large pieces, and so much of it alone as a client needs for a handshake and a request.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

MAX_RECEIVED_BYTES: Final = 64 << 10
"""The most that a client sends: its hello, some ten kilobytes of certificates, and the head of a request, which has
message.MAX_HEAD_BYTES at most; as records, so that it may be more than that by a half."""

_READ_BYTES: Final = 16 << 10
_WRITE_BYTES: Final = 256 << 10
"""The largest part of a response that is held encrypted."""

_Result = TypeVar("_Result")


class ReceivedTooMuch(ConnectionAbortedError):
    """The client has sent more than MAX_RECEIVED_BYTES."""


class TlsConnection:
    """Takes over `plain`, and begins nothing: do_handshake() comes first. Timeouts are those of whole calls. Methods
    raise OSError, of which ssl.SSLError is one; none of them may be called at the same time as another."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._left = MAX_RECEIVED_BYTES
        self._seconds: float | None = None
        self._is_plain = False

    @property
    def context(self) -> ssl.SSLContext:
        """The context that the handshake was made with."""
        return self._tls.context

    def receive_more(self) -> None:
        """Lets the client send as much as it may for another request."""
        self._left = MAX_RECEIVED_BYTES

    def settimeout(self, seconds: float | None) -> None:
        self._seconds = seconds

    def do_handshake(self) -> None:
        self._exchange(self._tls.do_handshake)

    def getpeercert(self) -> dict[str, Any] | None:
        return self._tls.getpeercert()

    def recv(self, size: int) -> bytes:
        """Returns what is there, of as many records as it has; nothing where the client has ended."""
        if self._is_plain:
            self._plain.settimeout(self._seconds)
            return self._plain.recv(size)
        try:
            data = bytearray(self._exchange(lambda: self._tls.read(size)))
            with contextlib.suppress(ssl.SSLError):  # of what comes then, the next call tells
                while data and len(data) < size and (more := self._tls.read(size - len(data))):
                    data += more
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        return bytes(data)

    def sendall(self, data: bytes) -> None:
        deadline = self._deadline()
        with memoryview(data) as view:
            for start in range(0, len(view), _WRITE_BYTES):
                self._tls.write(view[start : start + _WRITE_BYTES])
                self._flush(deadline)

    def unwrap(self) -> None:
        """Says that this was all, and waits for the client to say so."""
        self._exchange(self._tls.unwrap)

    def shutdown(self, how: int) -> None:
        """From here on what the client sends is not decrypted."""
        self._is_plain = True
        self._plain.shutdown(how)

    def _exchange(self, step: Callable[[], _Result]) -> _Result:
        """Takes `step` as often as it has to have more of the client."""
        deadline = self._deadline()
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._fill(deadline)
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush(deadline)  # the alert
                raise
            else:
                self._flush(deadline)
                return result

    def _fill(self, deadline: float | None) -> None:
        if self._left <= 0:
            raise ReceivedTooMuch(f"it sent more than {MAX_RECEIVED_BYTES} bytes")
        self._plain.settimeout(_remaining(deadline))
        data = self._plain.recv(min(_READ_BYTES, self._left))
        self._left -= len(data)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self, deadline: float | None) -> None:
        if self._outgoing.pending:
            self._plain.settimeout(_remaining(deadline))
            self._plain.sendall(self._outgoing.read())

    def _deadline(self) -> float | None:
        return None if self._seconds is None else time.monotonic() + self._seconds


def _remaining(deadline: float | None) -> float | None:
    """Raises TimeoutError."""
    if deadline is None:
        return None
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
