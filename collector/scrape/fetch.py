"""Asks an agent that may be dead, slow or hostile one question, and reads its answer as the bytes come. Bounded in
time and size, and never raising an exception.

What agents answer has one form: status 200, a length, plain headers. A head of that form is read here, in a tenth of
the CPU time that h11 takes; whatever else comes is h11's to read, from its first byte on, and to refuse.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import ssl
from collections.abc import Hashable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import h11

from laggard.collector.scrape.connections import KeptConnections, Slot
from laggard.collector.scrape.transport import Asker, PlainTransport, TlsTransport, Transport
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


_HEAD: Final = re.compile(rb"HTTP/1\.1 200 [ -~]*\r\n(?:[!#-'*+.0-9A-Z^-z|~-]+:[\t -~]*\r\n)+\r\n")
"""A head that holds nothing but what RFC 9112 allows, and not all of that. `match` takes time that grows with the
head's length alone: no part of it can be read in two ways."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n")
_ENCODED: Final = (b"\r\ntransfer-encoding:", b"\r\ncontent-encoding:")

MAX_HEAD_BYTES: Final = 16 << 10
"""The largest head: as h11 has it."""


class AnswerReader:
    """One answer, of which `max_bytes` of body are taken at most."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head = b""
        self._parts: list[bytes] = []
        self._wanted = 0  # bytes of the body
        self._got = 0
        self._http: h11.Connection | None = None
        self._body = bytearray()

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
        return (
            b"\r\nconnection: keep-alive\r\n" in self._head.lower() and self._http is None and self._got == self._wanted
        )

    def _read(self, data: bytes) -> bytes | FetchFailure | None:
        if self._http is not None:
            return self._read_any(data)
        if not self._head:
            return self._begin(data)
        if not data:  # cut off
            return self._hand_over(data)
        self._parts.append(data)
        self._got += len(data)
        return self._whole()

    def _begin(self, data: bytes) -> bytes | FetchFailure | None:
        """Reads the head: an agent sends it in one piece, before its body or with it."""
        found = _HEAD.match(data, 0, MAX_HEAD_BYTES)
        length = _length(found[0].lower()) if found else None
        if found is None or length is None:
            return self._hand_over(data)
        if length > self._max_bytes:
            return _too_large(self._max_bytes)
        self._head, self._wanted = found[0], length
        self._parts.append(data[found.end() :])
        self._got = len(data) - found.end()
        return self._whole()

    def _whole(self) -> bytes | None:
        """The body, where it is there: what comes behind it is not looked at."""
        if self._got < self._wanted:
            return None
        return b"".join(self._parts)[: self._wanted]

    def _hand_over(self, data: bytes) -> bytes | FetchFailure | None:
        """Has h11 read what came so far, and all that comes."""
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
        self._http.send(h11.EndOfMessage())
        before = b"".join((self._head, *self._parts))
        found = self._read_any(before) if before else None
        return self._read_any(data) if found is None else found

    def _read_any(self, data: bytes) -> bytes | FetchFailure | None:
        assert self._http is not None
        self._http.receive_data(data)
        while (event := self._http.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            if isinstance(event, h11.Response) and (failure := _unusable(event)):
                return failure
            if isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._max_bytes:
                    return _too_large(self._max_bytes)
            elif isinstance(event, h11.EndOfMessage):
                return bytes(self._body)
        return None


def _length(head: bytes) -> int | None:
    """The length of the body by a head in lower case; None where it is not told in the simplest way."""
    found = _LENGTH.search(head)
    if found is None or head.count(b"\r\ncontent-length:") > 1 or any(name in head for name in _ENCODED):
        return None
    return int(found[1])


def _too_large(max_bytes: int) -> FetchFailure:
    return FetchFailure("garbage", f"an answer of more than {max_bytes} bytes")


def _unusable(response: h11.Response) -> FetchFailure | None:
    if response.status_code == 426:
        return FetchFailure("down", SPEAKS_TLS)
    if response.status_code != 200:
        return FetchFailure("garbage", f"HTTP {response.status_code}")
    if dict(response.headers).get(b"content-encoding", b"identity").lower() != b"identity":
        return FetchFailure("garbage", "a compressed answer, which was not asked for")
    return None


_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
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


class Exchange:
    """One question and its answer, which is read as it comes. `found` is its body, or why there is none; None: it began
    so late that rest() has to be asked for. To be used on the running event loop."""

    def __init__(
        self, question: Question, seconds: float, max_bytes: int, slot: Slot | None, kept: KeptConnections | None
    ) -> None:
        self._question, self._connections, self._slot = question, kept, slot
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._deadline = self._loop.time() + seconds
        self._left = 0.0  # of that when the answer began late
        self._reader = AnswerReader(max_bytes)
        self._tls: ssl.SSLContext | None = None
        self._is_again = False  # whether it is asked over a kept connection
        self._received = False
        self._is_spent = False  # whether the connection cannot bring another answer
        self._late = b""
        self._transport: Transport | None = None
        self._connecting: Transport | None = None
        self._connects: asyncio.Task[None] | None = None
        self._timer = self._loop.call_at(self._deadline - self._seconds * (1 - _CONNECT_SHARE), self._not_in_time)
        self.found: asyncio.Future[bytes | FetchFailure | None] = self._loop.create_future()
        if slot is not None:
            slot.ask()

    def ask(self) -> None:
        """Asks over a kept connection where there is one, else begins to connect."""
        question, kept = self._question, self._connections
        try:
            self._tls = client_context() if question.place.scheme == "https" else None
            again = kept.take(self._kept_as()) if kept is not None and question.is_repeatable else None
            if again is None:
                self._connect()
            else:
                self._is_again, again.asker = True, self
                self.connected(again)
        except UsageError as error:
            self._end(FetchFailure("down", str(error)))

    def rest(self) -> asyncio.Future[bytes | FetchFailure | None]:
        """Reads on, for as long as was left when the answer began."""
        self.found = self._loop.create_future()
        self._deadline = self._loop.time() + self._left
        self._timer = self._loop.call_at(self._deadline, self._not_in_time)
        self._read(self._late)
        if self._transport is not None:
            self._transport.resume_reading()
        return self.found

    def end(self) -> None:
        """The answer is there, or nobody waits for it."""
        self._timer.cancel()
        if self._connects is not None:
            self._connects.cancel()
        transport, kept = self._transport, self._connections
        if transport is not None and kept is not None and self._may_be_kept():
            kept.keep(self._kept_as(), transport, self._tls is not None)
        elif (transport := transport or self._connecting) is not None:
            transport.abort()
        self._transport = self._connecting = None  # each of the two refers to the other

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        transport.write(self._question.request)

    def not_connected(self, error: Exception) -> None:
        self._end(not_connected(error))

    def data_received(self, data: bytes) -> None:
        if not self._received and self._slot is not None and not self._slot.heard() and self._transport is not None:
            self._transport.pause_reading()
            self._late = data
            self._wait_for_turn()
        else:
            self._read(data)
        self._received = True

    def connection_lost(self, error: Exception | None) -> None:
        if self.found.done():
            self._is_spent = True
            return
        if self._is_again and not self._received:
            # The agent closed it before it could see the question, as one does that was started anew.
            self._is_again, self._transport = False, None
            self._connect()
        elif error is not None:
            self._end(broken(error))
        elif self._received:
            self._read(b"")
        else:
            self._end(_CLOSED)

    def _connect(self) -> None:
        place, tls = self._question.place, self._tls
        try:
            asker: Asker = self if tls is None else TlsTransport(self, tls, self._question.server_name)
        except ValueError as error:
            self.not_connected(error)
            return
        self._connecting = plain = PlainTransport(asker)
        self._connects = self._loop.create_task(plain.connect(place.host, place.port))

    def _kept_as(self) -> Hashable:
        """The name that a connection is kept under: with other certificates, or another name, it is another one."""
        return self._question.place, self._question.server_name, self._tls

    def _may_be_kept(self) -> bool:
        if not self.found.done() or self.found.cancelled() or self._is_spent:
            return False
        return isinstance(self.found.result(), bytes) and self._reader.leaves_open

    def _wait_for_turn(self) -> None:
        self._left = self._deadline - self._loop.time()
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
    Bearer, unless empty. `slot`: the agent's place among those that are asked; what it waits for its turn to be read
    does not count. `kept`: where connections are kept for the next question.

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
        found = await exchange.found
        if slot is not None and found is None:
            await slot.turn()
            found = await exchange.rest()
        return cast("bytes | FetchFailure", found)
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
