"""Asks an agent that may be dead, slow or hostile one question, and reads its answer as the bytes come. Bounded in
time and size, and never raising an exception."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import ssl
from asyncio import sslproto
from collections.abc import Hashable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import h11

from laggard.collector.scrape.connections import KeptConnections, Slot
from laggard.kit.address import ip_of
from laggard.kit.errors import UsageError
from laggard.kit.http_client import SPEAKS_TLS
from laggard.kit.tls import client_context, failure_text


class FetchFailure(NamedTuple):
    """`state`: down, slow, garbage; `reason`: one line for people."""

    state: str
    reason: str


def broken(error: Exception) -> FetchFailure:
    """The failure of a connection that was there."""
    return _of_tls(error) or FetchFailure("down", f"the connection broke: {_cause(error)}")


def not_connected(error: Exception) -> FetchFailure:
    return _of_tls(error) or FetchFailure("down", f"no connection: {_cause(error)}")


def _of_tls(error: Exception) -> FetchFailure | None:
    return FetchFailure("down", failure_text(error)) if isinstance(error, ssl.SSLError) else None


def _cause(error: BaseException) -> str:
    """The operating system's message where there is one: asyncio writes its own text, address and all."""
    if isinstance(error, OSError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    return str(error).lower() or type(error).__name__


class AnswerReader:
    """One answer, of which `max_bytes` of body are taken at most."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._body = bytearray()
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
        self._http.send(h11.EndOfMessage())

    def read(self, data: bytes) -> bytes | FetchFailure | None:
        """Takes the bytes that came next; none: the other side has ended. Returns the body once it is whole, or why
        there is none; None: more has to come."""
        try:
            return self._read(data)
        except h11.RemoteProtocolError as error:
            return FetchFailure("garbage", f"not HTTP: {error}")

    @property
    def leaves_open(self) -> bool:
        """Whether the other side keeps the connection after this answer, of which nothing is left to read."""
        return self._http.their_state is h11.DONE and self._http.trailing_data == (b"", False)

    def _read(self, data: bytes) -> bytes | FetchFailure | None:
        self._http.receive_data(data)
        while (event := self._http.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            if isinstance(event, h11.Response) and (failure := _unusable(event, self._max_bytes)):
                return failure
            if isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._max_bytes:
                    return _too_large(self._max_bytes)
            elif isinstance(event, h11.EndOfMessage):
                return bytes(self._body)
        return None


def _too_large(max_bytes: int) -> FetchFailure:
    return FetchFailure("garbage", f"an answer of more than {max_bytes} bytes")


def _unusable(response: h11.Response, max_bytes: int) -> FetchFailure | None:
    if response.status_code == 426:
        return FetchFailure("down", SPEAKS_TLS)
    if response.status_code != 200:
        return FetchFailure("garbage", f"HTTP {response.status_code}")
    headers = dict(response.headers)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return FetchFailure("garbage", "a compressed answer, which was not asked for")
    return _too_large(max_bytes) if int(headers.get(b"content-length", b"0")) > max_bytes else None


_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""
_READ_BYTES: Final = 64 << 10
sslproto.SSLProtocol.max_size = 16 << 10
"""A record of TLS (RFC 8446, 5.1). asyncio reads into 256 KiB that each connection has to itself: those to 4,096
agents, while they are kept, would take a GiB."""
_AWAY: Final = FetchFailure("down", "no connection: the host does not answer")
_CLOSED: Final = FetchFailure("down", "it closed the connection")


class Place(NamedTuple):
    """The place where an agent is asked. `netloc` as in the URL."""

    scheme: str
    host: str
    port: int
    netloc: str


class Question(NamedTuple):
    """`server_name`: that of a certificate. `is_repeatable`: whether to ask twice is as good as to ask once."""

    place: Place
    server_name: str
    request: bytes
    is_repeatable: bool


class Exchange(asyncio.Protocol):
    """One question and its answer, which is read as it comes. `found` is its body, or why there is none. To be used on
    the running event loop."""

    def __init__(
        self, question: Question, seconds: float, max_bytes: int, slot: Slot | None, kept: KeptConnections | None
    ) -> None:
        self._question, self._connections, self._slot = question, kept, slot
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._deadline = self._loop.time() + seconds
        self._reader = AnswerReader(max_bytes)
        self._tls: ssl.SSLContext | None = None
        self._is_again = False  # whether it is asked over a kept connection
        self._received = False
        self._is_spent = False  # whether the connection cannot bring another answer
        self._transport: asyncio.Transport | None = None
        self._connects: asyncio.Task[None] | None = None
        self._timer = self._loop.call_at(self._deadline - self._seconds * (1 - _CONNECT_SHARE), self._not_in_time)
        self.found: asyncio.Future[bytes | FetchFailure] = self._loop.create_future()
        if slot is not None:
            slot.ask()

    def ask(self) -> None:
        """Asks over a kept connection where there is one, else begins to connect."""
        question, kept = self._question, self._connections
        try:
            self._tls = client_context() if question.place.scheme == "https" else None
        except UsageError as error:
            self._end(FetchFailure("down", str(error)))
            return
        again = kept.take(self._kept_as()) if kept is not None and question.is_repeatable else None
        if again is None:
            self._connects = self._loop.create_task(self._connect())
        else:
            self._is_again = True
            again.set_protocol(self)
            self.connection_made(again)

    def end(self) -> None:
        """The answer is there, or nobody waits for it."""
        self._timer.cancel()
        if self._connects is not None:
            self._connects.cancel()
        transport, kept = self._transport, self._connections
        if transport is not None and kept is not None and self._may_be_kept():
            kept.keep(self._kept_as(), transport, self._tls is not None)
        elif transport is not None:
            transport.abort()
        self._transport = None  # each of the two refers to the other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.found.done():  # nobody waits for it any more
            cast("asyncio.Transport", transport).abort()
            return
        if hasattr(transport, "max_size"):  # asyncio's own: what it reads at once
            transport.max_size = _READ_BYTES
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._question.request)

    def data_received(self, data: bytes) -> None:
        if not self._received and self._slot is not None:
            self._slot.heard()
        self._received = True
        self._read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.found.done():
            self._is_spent = True
        elif self._is_again and not self._received:
            # The agent closed it before it could see the question, as one does that was started anew.
            self._is_again, self._transport = False, None
            self._connects = self._loop.create_task(self._connect())
        elif exc is not None:
            self._end(broken(exc))
        elif self._received:
            self._read(b"")
        else:
            self._end(_CLOSED)

    async def _connect(self) -> None:
        place, name = self._question.place, self._question.server_name if self._tls else None
        delay = None if ip_of(place.host) else _SECOND_ADDRESS_SECONDS
        try:
            await self._loop.create_connection(
                lambda: self, place.host, place.port, ssl=self._tls, server_hostname=name, happy_eyeballs_delay=delay
            )
        except (OSError, ValueError) as error:
            closed = self._tls is not None and isinstance(error, ConnectionResetError)
            self._end(not_connected(ssl.SSLEOFError() if closed else error))

    def _kept_as(self) -> Hashable:
        """The name that a connection is kept under: with other certificates, or another name, it is another one."""
        return self._question.place, self._question.server_name, self._tls

    def _may_be_kept(self) -> bool:
        if not self.found.done() or self.found.cancelled() or self._is_spent:
            return False
        return isinstance(self.found.result(), bytes) and self._reader.leaves_open

    def _not_in_time(self) -> None:
        if self._transport is None:
            self._end(_AWAY)
        elif self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._not_in_time)
        else:
            self._end(FetchFailure("slow", f"no complete answer within {self._seconds:g} s"))

    def _end(self, found: bytes | FetchFailure) -> None:
        if not self.found.done():
            self.found.set_result(found)

    def _read(self, data: bytes) -> None:
        if self.found.done():
            self._is_spent = True
        elif (found := self._reader.read(data)) is not None:
            self._end(found)


_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = re.compile("[!-~]*")
_TOKEN: Final = re.compile("[ -~]*")


async def fetch(
    url: str,
    timeout_seconds: float,
    max_bytes: int,
    server_name: str = "",
    *,
    method: str = "GET",
    token: str = "",
    slot: Slot | None = None,
    kept: KeptConnections | None = None,
) -> bytes | FetchFailure:
    """The body of an answer with status 200 that is complete within `timeout_seconds` and at most `max_bytes` long.
    `server_name`: the name that an https server's certificate must have; empty: the URL's host. `token`: sent as
    Bearer, unless empty. `slot`: the agent's place among those that are asked. `kept`: where connections are kept for
    the next question.

    It asks the agent itself: a proxy from the environment is for the outside world."""
    try:
        place, target = _parts(url)
        request = _request(place.netloc, target, method, token, keeps=kept is not None)
    except ValueError as error:
        return broken(error)
    question = Question(place, server_name or place.host, request, method == "GET")
    exchange = Exchange(question, timeout_seconds, max_bytes, slot, kept)
    try:
        exchange.ask()
        return await exchange.found
    finally:
        exchange.end()


def _parts(url: str) -> tuple[Place, str]:
    """The URL's place and the rest of it. Raises ValueError."""
    begin = url.find("/", url.find("://") + 3)
    return (_place(url), "/") if begin < 0 else (_place(url[:begin]), url[begin:])


@functools.lru_cache(1 << 15)
def _place(url: str) -> Place:
    parts = urlsplit(url)
    host, scheme = parts.hostname or "", parts.scheme
    return Place(scheme, host, parts.port or _PORTS[scheme], parts.netloc)


def _request(netloc: str, target: str, method: str, token: str, keeps: bool) -> bytes:
    """Raises ValueError where a part of it is no part of a request."""
    if not _VISIBLE.fullmatch(target + netloc) or not _TOKEN.fullmatch(token):
        raise ValueError("what is asked for is no URL, or the token no line of ASCII")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {netloc}\r\nAccept: application/json\r\n"
        # No compression: a few kilobytes can inflate to gigabytes before they are counted.
        "Accept-Encoding: identity\r\nUser-Agent: laggard-collector\r\n"
        + f"Connection: {'keep-alive' if keeps else 'close'}\r\n"
        + (f"Authorization: Bearer {token}\r\n" if token else "")
        + ("Content-Length: 0\r\n" if method == "POST" else "")
        + "\r\n"
    ).encode("ascii")
