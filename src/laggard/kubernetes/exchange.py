"""One HTTP request and its answer, bounded in time and size, over httpx."""

from __future__ import annotations

import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import httpx

from laggard.errors import UsageError
from laggard.http.tls import tls_failure
from laggard.text.words import printable_line

log = logging.getLogger("laggard.kubernetes")

MAX_BYTES: Final = 64 << 20
"""The most bytes of an answer. Five hundred nodes with their images take some megabytes."""

_WHY_CHARACTERS: Final = 300

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]


class Answer(NamedTuple):
    """`status` is 0 where there is no answer; `why` then says what went wrong, and else what a refusal says. `closed`:
    the other side closed the connection and said nothing, as one does that was to speak TLS."""

    status: int
    body: bytes
    why: str = ""
    closed: bool = False


class Exchange:
    """`tls`: the certificates that servers' are checked against, and the own one; None: the system's. A function is
    asked before each request, so that files that were replaced hold at once; while it raises UsageError what it said
    before holds."""

    def __init__(self, timeout_seconds: float, tls: Tls | None = None) -> None:
        self._timeout_seconds = timeout_seconds
        self._newest = tls if callable(tls) else None
        self._context = tls() if callable(tls) else tls or ssl.create_default_context()
        self._client = self._connect()

    def close(self) -> None:
        self._client.close()

    def _connect(self) -> httpx.Client:
        # A proxy from the environment is for the outside world.
        return httpx.Client(
            timeout=self._timeout_seconds, verify=self._context, trust_env=False, follow_redirects=False
        )

    def _renew(self) -> None:
        """Takes up certificates that were replaced."""
        if self._newest is None:
            return
        try:
            context = self._newest()
        except UsageError as error:
            log.error("the former certificates stay in use: %s", error)
            return
        if context is not self._context:
            self._client.close()
            self._context = context
            self._client = self._connect()

    def send(self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """Never raises for what the other side does: httpx's timeout is for each read, the whole answer has one too."""
        self._renew()
        deadline = time.monotonic() + self._timeout_seconds
        content = None if body is None else json.dumps(body).encode()
        received = bytearray()
        try:
            with self._client.stream(method, url, headers=dict(headers or {}), content=content) as response:
                for part in response.iter_bytes():
                    received += part
                    if len(received) > MAX_BYTES:
                        return Answer(0, b"", f"an answer of more than {MAX_BYTES} bytes")
                    if time.monotonic() > deadline:
                        return Answer(0, b"", f"no complete answer within {self._timeout_seconds:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            closed = isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)) and not tls_failure(error)
            why = "it closed the connection" if closed else _no_answer(error)
            return Answer(0, b"", printable_line(why, _WHY_CHARACTERS), closed)
        why = "" if response.is_success else f"HTTP {response.status_code}: {_reason(bytes(received))}"
        return Answer(response.status_code, bytes(received), printable_line(why, _WHY_CHARACTERS))


def _no_answer(error: Exception) -> str:
    if failure := tls_failure(error):
        return failure
    if isinstance(error, httpx.ConnectTimeout) and "handshake" in str(error):
        return "it says nothing to a TLS handshake: write http:// if it speaks plain HTTP"
    return str(error) or type(error).__name__


def _reason(body: bytes) -> str:
    """The message of a Kubernetes Status, or the error that a daemon of laggard's says; else the beginning of the
    body."""
    try:
        said = json.loads(body)
        message = said["message"] if "message" in said else said["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = body[:_WHY_CHARACTERS].decode(errors="replace")
    return str(message)[: 4 * _WHY_CHARACTERS]  # to make millions of characters printable takes a gigabyte
