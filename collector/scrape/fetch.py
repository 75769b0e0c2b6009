"""Asks an agent that may be dead, slow or hostile: bounded in time and size, and never raising an exception."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from typing import Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

import h11

from laggard.collector.scrape.slots import Slot
from laggard.errors import UsageError
from laggard.http.client import SPEAKS_TLS
from laggard.http.tls import client_context, failure_text

_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""
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
    slot: Slot | None = None,
) -> bytes | FetchFailure:
    """The body of an answer with status 200 that is complete within `timeout_seconds` and at most `max_bytes` long.
    `server_name`: the name that an https server's certificate must have; empty: the URL's host. `token`: sent as
    Bearer, unless empty. `slot`: the agent's place among those that are asked; what it waits for its turn to be read
    does not count.

    Each request has a connection of its own, to the agent itself: a pool of them costs more than it saves where each is
    for another host, and a proxy from the environment is for the outside world."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    parts = urlsplit(url)
    answer = _Answer(_request(parts, method, token), max_bytes, slot)
    try:
        failure = await _connect(answer, parts, timeout_seconds * _CONNECT_SHARE, server_name)
        if failure:
            return failure
        found = await asyncio.wait_for(answer.found, deadline - loop.time())
        if slot is not None and found is None:
            left = deadline - loop.time()
            await slot.turn()
            found = await asyncio.wait_for(answer.rest(), left)
        return cast("bytes | FetchFailure", found)
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
    finally:
        answer.abort()  # it is there, or nobody waits for it


async def _connect(
    answer: _Answer, parts: SplitResult, timeout_seconds: float, server_name: str
) -> FetchFailure | None:
    host = parts.hostname or ""
    tls = client_context() if parts.scheme == "https" else None
    connecting = asyncio.get_running_loop().create_connection(
        lambda: answer,
        host,
        parts.port or _PORTS[parts.scheme],
        ssl=tls,
        server_hostname=(server_name or host) if tls else None,
        # A race of one address costs half as much as all the rest.
        happy_eyeballs_delay=None if _is_address(host) else _SECOND_ADDRESS_SECONDS,
    )
    try:
        await asyncio.wait_for(connecting, timeout_seconds)
    except asyncio.TimeoutError:
        return FetchFailure("down", "no connection: the host does not answer")
    except ssl.SSLError as error:
        return FetchFailure("down", failure_text(error))
    except OSError as error:
        return FetchFailure("down", f"no connection: {_cause(error)}")
    return None


class _Answer(asyncio.Protocol):
    """The answer to one request, read as it comes. `found` is its body, or why there is none; None: it began so late
    that rest() has to be asked for."""

    def __init__(self, request: h11.Request, max_bytes: int, slot: Slot | None) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._request = request
        self._max_bytes = max_bytes
        self._slot = slot
        self._body = bytearray()
        self._received = False
        self._kept = b""
        self._transport: asyncio.Transport | None = None
        self.found = self._future()
        if slot is not None:
            slot.ask()

    def _future(self) -> asyncio.Future[bytes | FetchFailure | None]:
        return asyncio.get_running_loop().create_future()

    def rest(self) -> asyncio.Future[bytes | FetchFailure | None]:
        """Reads on."""
        self.found = self._future()
        self._read(self._kept)
        if self._transport is not None and not self.found.done():
            self._transport.resume_reading()
        return self.found

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write((self._http.send(self._request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    def data_received(self, data: bytes) -> None:
        if not self._received and self._slot is not None and not self._slot.heard() and self._transport is not None:
            self._transport.pause_reading()
            self._kept = data
            self._end(None)
        else:
            self._read(data)
        self._received = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.found.done():
            return
        if exc is not None:
            self.found.set_exception(exc)
        elif self._received:
            self._read(b"")
        else:
            self._end(FetchFailure("down", "it closed the connection"))

    def _end(self, found: bytes | FetchFailure | None) -> None:
        if not self.found.done():
            self.found.set_result(found)

    def _read(self, data: bytes) -> None:
        if self.found.done():
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
                if isinstance(event, h11.Response) and (failure := _unusable(event)):
                    return self._end(failure)
                if isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > self._max_bytes:
                        return self._end(FetchFailure("garbage", f"an answer of more than {self._max_bytes} bytes"))
                elif isinstance(event, h11.EndOfMessage):
                    return self._end(bytes(self._body))
        except h11.RemoteProtocolError as error:
            self.found.set_exception(error)
        return None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


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
