"""Asks an agent that may be dead, slow or hostile: bounded in time and size, and never raising an exception."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import re
import ssl
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from laggard.collector.scrape.answer_reader import AnswerReader
from laggard.collector.scrape.failure import FetchFailure as FetchFailure
from laggard.collector.scrape.plain_transport import PlainTransport
from laggard.collector.scrape.slots import Slot
from laggard.errors import UsageError
from laggard.http.tls import client_context, failure_text

_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""
_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = re.compile("[!-~]*")
_AWAY: Final = FetchFailure("down", "no connection: the host does not answer")


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
    answer = _Answer(timeout_seconds, max_bytes, slot)
    try:
        place, target = _parts(url)
        request = _request(place.netloc, target, method, token)
        if place.is_plain_address:
            answer.ask(place, request)
        elif failure := await _connect(answer, request, place, timeout_seconds * _CONNECT_SHARE, server_name):
            return failure
        found = await answer.found
        if slot is not None and found is None:
            await slot.turn()
            found = await answer.rest()
        return cast("bytes | FetchFailure", found)
    except (OSError, ValueError, UsageError) as error:
        return _failure(error)
    finally:
        answer.abort()  # it is there, or nobody waits for it


class _Place(NamedTuple):
    """Where an agent is asked. `netloc` as in the URL. `is_plain_address`: whether there is neither a name to look up
    nor TLS."""

    scheme: str
    host: str
    port: int
    netloc: str
    is_plain_address: bool


def _parts(url: str) -> tuple[_Place, str]:
    """The URL's place and the rest of it. Raises ValueError."""
    begin = url.find("/", url.find("://") + 3)
    return (_place(url), "/") if begin < 0 else (_place(url[:begin]), url[begin:])


@functools.lru_cache(1 << 15)
def _place(url: str) -> _Place:
    parts = urlsplit(url)
    host, scheme = parts.hostname or "", parts.scheme
    is_plain = scheme == "http" and "%" not in host and _is_address(host)
    return _Place(scheme, host, parts.port or _PORTS[scheme], parts.netloc, is_plain)


async def _connect(
    answer: _Answer, request: bytes, place: _Place, timeout_seconds: float, server_name: str
) -> FetchFailure | None:
    """Connects by a name, or over TLS, and asks."""
    tls = client_context() if place.scheme == "https" else None
    connecting = asyncio.get_running_loop().create_connection(
        lambda: _Asking(answer, request),
        place.host,
        place.port,
        ssl=tls,
        server_hostname=(server_name or place.host) if tls else None,
        # A race of one address costs half as much as all the rest.
        happy_eyeballs_delay=None if _is_address(place.host) else _SECOND_ADDRESS_SECONDS,
    )
    try:
        await asyncio.wait_for(connecting, timeout_seconds)
    except asyncio.TimeoutError:
        return _AWAY
    except ssl.SSLError as error:
        return FetchFailure("down", failure_text(error))
    except OSError as error:
        return _no_connection(error)
    return None


class _Answer:
    """The answer to one request, read as it comes. `found` is its body, or why there is none; None: it began so late
    that rest() has to be asked for."""

    def __init__(self, timeout_seconds: float, max_bytes: int, slot: Slot | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = timeout_seconds
        self._deadline = self._loop.time() + timeout_seconds
        self._left = 0.0  # of that when the answer began late
        self._reader = AnswerReader(max_bytes)
        self._slot = slot
        self._request = b""
        self._received = False
        self._kept = b""
        self._transport: PlainTransport | asyncio.Transport | None = None
        self._connecting: PlainTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.found: asyncio.Future[bytes | FetchFailure | None] = self._loop.create_future()
        if slot is not None:
            slot.ask()

    def ask(self, place: _Place, request: bytes) -> None:
        """Begins to connect, and asks then."""
        self._request = request
        self._timer = self._loop.call_at(self._deadline - self._seconds * (1 - _CONNECT_SHARE), self._not_in_time)
        try:
            self._connecting = PlainTransport(self, place.host, place.port)
        except OSError as error:
            self.not_connected(error)

    def rest(self) -> asyncio.Future[bytes | FetchFailure | None]:
        """Reads on, for as long as was left when the answer began."""
        self.found = self._loop.create_future()
        self._read(self._kept)
        if self._transport is not None and not self.found.done():
            self._deadline = self._loop.time() + self._left
            self._timer = self._loop.call_at(self._deadline, self._not_in_time)
            self._transport.resume_reading()
        return self.found

    def abort(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if (transport := self._transport or self._connecting) is not None:
            transport.abort()
            self._transport = self._connecting = None  # each of the two refers to the other

    def connected(self, transport: PlainTransport) -> None:
        transport.write(self._request)
        self._transport = transport

    def not_connected(self, error: OSError) -> None:
        self._end(_no_connection(error))

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer = self._loop.call_at(self._deadline, self._not_in_time)

    def data_received(self, data: bytes) -> None:
        if not self._received and self._slot is not None and not self._slot.heard() and self._transport is not None:
            self._transport.pause_reading()
            self._kept = data
            self._wait_for_turn()
        else:
            self._read(data)
        self._received = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.found.done():
            return
        if exc is not None:
            self._end(_failure(exc))
        elif self._received:
            self._read(b"")
        else:
            self._end(FetchFailure("down", "it closed the connection"))

    def _wait_for_turn(self) -> None:
        self._left = self._deadline - self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._end(None)

    def _not_in_time(self) -> None:
        if self._transport is None:
            self._end(_AWAY)
        elif self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._not_in_time)
        else:
            self._end(FetchFailure("slow", f"no complete answer within {self._seconds:g} s"))

    def _end(self, found: bytes | FetchFailure | None) -> None:
        if not self.found.done():
            self.found.set_result(found)

    def _read(self, data: bytes) -> None:
        if not self.found.done() and (found := self._reader.read(data)) is not None:
            self._end(found)


class _Asking(asyncio.Protocol):
    """asyncio's connection for an answer."""

    def __init__(self, answer: _Answer, request: bytes) -> None:
        self._answer = answer
        self._request = request
        self.data_received = answer.data_received  # type: ignore[method-assign]
        self.connection_lost = answer.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast("asyncio.Transport", transport)
        connected.write(self._request)
        self._answer.connection_made(connected)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _request(netloc: str, target: str, method: str, token: str) -> bytes:
    """Raises ValueError where a part of it is no part of a request."""
    if not _VISIBLE.fullmatch(target + netloc + token):
        raise ValueError("what is asked for is no URL")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {netloc}\r\nAccept: application/json\r\n"
        # No compression: a few kilobytes can inflate to gigabytes before they are counted.
        "Accept-Encoding: identity\r\nUser-Agent: laggard-collector\r\nConnection: close\r\n"
        + (f"Authorization: Bearer {token}\r\n" if token else "")
        + ("Content-Length: 0\r\n" if method == "POST" else "")
        + "\r\n"
    ).encode("ascii")


def _failure(error: Exception) -> FetchFailure:
    if isinstance(error, UsageError):
        return FetchFailure("down", str(error))
    if isinstance(error, ssl.SSLError):
        return FetchFailure("down", failure_text(error))
    return FetchFailure("down", f"the connection broke: {_cause(error)}")


def _no_connection(error: OSError) -> FetchFailure:
    return FetchFailure("down", f"no connection: {_cause(error)}")


def _cause(error: BaseException) -> str:
    """The operating system's message where there is one: asyncio writes its own text, address and all."""
    if isinstance(error, OSError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    return str(error).lower() or type(error).__name__
