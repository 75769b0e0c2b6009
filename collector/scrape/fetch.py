"""Asks an agent that may be dead, slow or hostile: bounded in time and size, and never raising an exception."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import h11

from laggard.errors import UsageError
from laggard.http.client import SPEAKS_TLS
from laggard.http.tls import client_context, failure_text

_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""
_READ_BYTES: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}


class FetchFailure(NamedTuple):
    """The reason why there is no usable answer."""

    state: str  # down, slow, garbage
    reason: str


async def fetch(
    url: str,
    timeout_seconds: float,
    max_bytes: int,
    server_name: str = "",
    *,
    method: str = "GET",
    token: str = "",
) -> bytes | FetchFailure:
    """The body of an answer with status 200 that is complete within `timeout_seconds` and at most `max_bytes` long.
    `server_name`: the name that an https server's certificate must have; empty: the URL's host. `token`: sent as
    Bearer, unless empty.

    Each request has a connection of its own, to the agent itself: a pool of them costs more than it saves where each is
    for another host, and a proxy from the environment is for the outside world."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    try:
        async with _connected(urlsplit(url), timeout_seconds * _CONNECT_SHARE, server_name) as streams:
            if isinstance(streams, FetchFailure):
                return streams
            return await asyncio.wait_for(
                _exchange(streams, _request(urlsplit(url), method, token), max_bytes), deadline - loop.time()
            )
    except asyncio.TimeoutError:
        return FetchFailure("slow", f"no complete answer within {timeout_seconds:g} s")
    except h11.RemoteProtocolError as error:
        return FetchFailure("garbage", f"not HTTP: {error}")
    except UsageError as error:
        return FetchFailure("down", str(error))
    except ssl.SSLError as error:
        return FetchFailure("down", failure_text(error))
    except (OSError, ValueError) as error:
        return FetchFailure("down", f"the connection broke: {_cause(error)}")


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def _connected(
    parts: SplitResult, timeout_seconds: float, server_name: str
) -> AsyncIterator[_Streams | FetchFailure]:
    tls = client_context() if parts.scheme == "https" else None
    opening = asyncio.open_connection(
        parts.hostname,
        parts.port or _PORTS[parts.scheme],
        ssl=tls,
        server_hostname=(server_name or parts.hostname) if tls else None,
        limit=_READ_BYTES,
        happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS,
    )
    try:
        streams = await asyncio.wait_for(opening, timeout_seconds)
    except asyncio.TimeoutError:
        yield FetchFailure("down", "no connection: the host does not answer")
        return
    except ssl.SSLError as error:
        yield FetchFailure("down", failure_text(error))
        return
    except OSError as error:
        yield FetchFailure("down", f"no connection: {_cause(error)}")
        return
    try:
        yield streams
    finally:
        streams[1].transport.abort()  # the answer is there, or nobody waits for it


async def _exchange(streams: _Streams, request: h11.Request, max_bytes: int) -> bytes | FetchFailure:
    reader, writer = streams
    http = h11.Connection(h11.CLIENT)
    writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    body = bytearray()
    received = False
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_READ_BYTES)
            if not data and not received:
                return FetchFailure("down", "it closed the connection")
            received = True
            http.receive_data(data)
        elif isinstance(event, h11.Response) and (failure := _unusable(event)):
            return failure
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                return FetchFailure("garbage", f"an answer of more than {max_bytes} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)


def _request(parts: SplitResult, method: str, token: str) -> h11.Request:
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    headers = [
        ("Host", parts.netloc),
        ("Accept", "application/json"),
        # No compression: a few kilobytes can inflate to gigabytes before they are counted.
        ("Accept-Encoding", "identity"),
        ("User-Agent", "laggard-collector"),
        ("Connection", "close"),
        *([("Authorization", f"Bearer {token}")] if token else []),
        *([("Content-Length", "0")] if method == "POST" else []),
    ]
    return h11.Request(method=method, target=target, headers=headers)


def _unusable(response: h11.Response) -> FetchFailure | None:
    if response.status_code == 426:
        return FetchFailure("down", SPEAKS_TLS)
    if response.status_code != 200:
        return FetchFailure("garbage", f"HTTP {response.status_code}")
    if dict(response.headers).get(b"content-encoding", b"identity").lower() != b"identity":
        return FetchFailure("garbage", "a compressed answer, which was not asked for")
    return None


def _cause(error: BaseException) -> str:
    """The operating system's message where there is one: asyncio writes its own text, address and all."""
    if isinstance(error, OSError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    return str(error).lower() or type(error).__name__
