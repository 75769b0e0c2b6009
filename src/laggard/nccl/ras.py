"""One question to NCCL RAS: its status as JSON. Whoever listens may be any user's program, so time and size are
bounded, and what comes back is bytes that nobody has judged yet.

The protocol is lines of text over TCP (NCCL 2.30.7, src/ras/client_support.cc: rasClientEventLoop, and the client in
src/ras/client.cc). The status follows STATUS, and the server then closes the connection. `SET FORMAT` is known from
2.28.7 on; it is sent before STATUS, which is never sent to an older NCCL: several of those crash when they are asked
(NVIDIA/nccl#1669, #1762, #1996). RCCL speaks the same: that of ROCm 7.2 is 2.28.3 by its number, and not asked.
"""

from __future__ import annotations

import socket
import time
from typing import Final, NamedTuple

DEFAULT_PORT: Final = 28028
"""The port at which NCCL listens where NCCL_RAS_ADDR names no other (src/ras/ras_internal.h: NCCL_RAS_CLIENT_PORT)."""

ANSWER_SECONDS: Final = 5
"""The time that NCCL waits for processes that do not answer it, its own default; it may take twice that."""

DEADLINE_SECONDS: Final = 2 * ANSWER_SECONDS + 2.0
"""The time limit of the whole exchange."""

MAX_BYTES: Final = 8 << 20
"""The most bytes of an answer: about 11,000 ranks, all communicators together."""

_MAX_LINE: Final = 1024


class RasError(Exception):
    """There is no usable answer. The text says why, for people."""


class RasTooOld(RasError):
    """NCCL there does not know JSON: it is older than 2.28.7."""


class Limits(NamedTuple):
    seconds: float = DEADLINE_SECONDS
    bytes: int = MAX_BYTES


LIMITS: Final = Limits()


def ask(host: str, port: int, limits: Limits = LIMITS) -> bytes:
    """Returns the JSON text of the status. Raises RasError."""
    deadline = time.monotonic() + limits.seconds
    try:
        with socket.create_connection((host, port), timeout=limits.seconds) as connection:
            exchange = _Exchange(connection, deadline, limits.bytes)
            greeting = exchange.command("CLIENT PROTOCOL 2")
            if not greeting.startswith(b"SERVER PROTOCOL "):
                raise RasError("what listens there does not speak NCCL RAS's protocol")
            exchange.expect_ok(f"TIMEOUT {ANSWER_SECONDS}")
            answer = exchange.command("SET FORMAT json")
            if answer.startswith(b"ERROR: Unknown command"):
                raise RasTooOld("NCCL (or RCCL) there is older than 2.28.7 and is not asked")
            if answer != b"OK":
                raise RasError("JSON was refused")
            return exchange.status()
    except TimeoutError:
        raise RasError(f"no complete answer within {limits.seconds:g} s") from None
    except OSError as error:
        raise RasError(f"no connection: {error.strerror or type(error).__name__}") from None


class _Exchange:
    """A connection, read up to a deadline and a number of bytes."""

    def __init__(self, connection: socket.socket, deadline: float, max_bytes: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def command(self, text: str) -> bytes:
        """Sends a command; returns the line that answers it."""
        self._send(text)
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE:
                raise RasError("what listens there does not speak NCCL RAS's protocol")
            if not self._receive():
                raise RasError("the connection was closed before the answer")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line

    def expect_ok(self, text: str) -> None:
        if self.command(text) != b"OK":
            raise RasError(f"{text} was refused")

    def status(self) -> bytes:
        """Returns all that comes until the other side closes the connection."""
        self._send("STATUS")
        while self._receive():
            if len(self._buffer) > self._max_bytes:
                raise RasError(f"its answer is longer than {self._max_bytes} bytes: the job is too large for this way")
        return bytes(self._buffer)

    def _send(self, text: str) -> None:
        self._connection.settimeout(self._left())
        self._connection.sendall(f"{text}\n".encode())

    def _receive(self) -> bool:
        self._connection.settimeout(self._left())
        received = self._connection.recv(65_536)
        self._buffer += received
        return bool(received)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
