"""One HTTP request and its answer, bounded in time and size, over httpx."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx

from laggard.text.words import printable_line

MAX_BYTES: Final = 64 << 20
"""Five hundred nodes with their images take some megabytes."""

_WHY_CHARACTERS: Final = 300


class Answer(NamedTuple):
    """`status` is 0 where there is no answer; `why` then says what went wrong, and else what a refusal says."""

    status: int
    body: bytes
    why: str = ""


class Exchange:
    """`tls`: the certificates that servers' are checked against, and the own one; None: the system's."""

    def __init__(self, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        # A proxy from the environment is for the outside world.
        self._client = httpx.Client(
            timeout=timeout_seconds, verify=tls or ssl.create_default_context(), trust_env=False, follow_redirects=False
        )
        self._timeout_seconds = timeout_seconds

    def close(self) -> None:
        self._client.close()

    def send(self, method: str, url: str, headers: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        """Never raises for what the other side does: httpx's timeout is for each read, the whole answer has one too."""
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
            return Answer(0, b"", printable_line(str(error) or type(error).__name__, _WHY_CHARACTERS))
        why = "" if response.is_success else f"HTTP {response.status_code}: {_reason(bytes(received))}"
        return Answer(response.status_code, bytes(received), printable_line(why, _WHY_CHARACTERS))


def _reason(body: bytes) -> str:
    """The message of a Kubernetes Status; else the beginning of the body."""
    try:
        message = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        message = body[:_WHY_CHARACTERS].decode(errors="replace")
    return str(message)
