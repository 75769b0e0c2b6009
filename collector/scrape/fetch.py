"""Asks an agent that may be dead, slow or hostile: bounded in time and size, and never raising an exception."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import re
import ssl
from collections.abc import Hashable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from laggard.collector.scrape.answer_reader import AnswerReader
from laggard.collector.scrape.failure import FetchFailure as FetchFailure
from laggard.collector.scrape.kept_connections import KeptConnections
from laggard.collector.scrape.named_transport import NamedTransport
from laggard.collector.scrape.plain_transport import PlainTransport
from laggard.collector.scrape.slots import Slot
from laggard.collector.scrape.tls_transport import TlsTransport
from laggard.collector.scrape.transport import Asker, Transport
from laggard.errors import UsageError
from laggard.http.tls import client_context, failure_text

_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
_PORTS: Final = {"http": 80, "https": 443}
_VISIBLE: Final = re.compile("[!-~]*")
_AWAY: Final = FetchFailure("down", "no connection: the host does not answer")
_CLOSED: Final = FetchFailure("down", "it closed the connection")


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
    answer = _Answer(timeout_seconds, max_bytes, slot)
    try:
        place, target = _parts(url)
        request = _request(place.netloc, target, method, token, keeps=kept is not None)
        answer.ask(_Question(place, server_name or place.host, request, method == "GET"), kept)
        found = await answer.found
        if slot is not None and found is None:
            await slot.turn()
            found = await answer.rest()
        return cast("bytes | FetchFailure", found)
    except ValueError as error:
        return _failure(error)
    finally:
        answer.end()


class _Place(NamedTuple):
    """Where an agent is asked. `netloc` as in the URL. `is_address`: whether there is no name to look up."""

    scheme: str
    host: str
    port: int
    netloc: str
    is_address: bool


class _Question(NamedTuple):
    """`server_name`: that of a certificate. `is_repeatable`: whether to ask twice is as good as to ask once."""

    place: _Place
    server_name: str
    request: bytes
    is_repeatable: bool


def _parts(url: str) -> tuple[_Place, str]:
    """The URL's place and the rest of it. Raises ValueError."""
    begin = url.find("/", url.find("://") + 3)
    return (_place(url), "/") if begin < 0 else (_place(url[:begin]), url[begin:])


@functools.lru_cache(1 << 15)
def _place(url: str) -> _Place:
    parts = urlsplit(url)
    host, scheme = parts.hostname or "", parts.scheme
    return _Place(scheme, host, parts.port or _PORTS[scheme], parts.netloc, "%" not in host and _is_address(host))


class _Answer:
    """The answer to one question, read as it comes. `found` is its body, or why there is none; None: it began so late
    that rest() has to be asked for."""

    def __init__(self, timeout_seconds: float, max_bytes: int, slot: Slot | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = timeout_seconds
        self._deadline = self._loop.time() + timeout_seconds
        self._left = 0.0  # of that when the answer began late
        self._reader = AnswerReader(max_bytes)
        self._slot = slot
        self._question: _Question | None = None
        self._connections: KeptConnections | None = None
        self._tls: ssl.SSLContext | None = None
        self._is_again = False  # whether it is asked over a kept connection
        self._received = self._has_more = False
        self._late = b""
        self._transport: Transport | None = None
        self._connecting: Transport | None = None
        self._by_name: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.found: asyncio.Future[bytes | FetchFailure | None] = self._loop.create_future()
        if slot is not None:
            slot.ask()

    def ask(self, question: _Question, kept: KeptConnections | None) -> None:
        """Asks over a kept connection where there is one, else begins to connect."""
        self._question, self._connections = question, kept
        self._timer = self._loop.call_at(self._deadline - self._seconds * (1 - _CONNECT_SHARE), self._not_in_time)
        try:
            self._tls = client_context() if question.place.scheme == "https" else None
            again = kept.take(self._kept_as(question)) if kept is not None and question.is_repeatable else None
            if again is None:
                self._connect(question)
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
        if self._timer is not None:
            self._timer.cancel()
        if self._by_name is not None:
            self._by_name.cancel()
        transport, kept, question = self._transport, self._connections, self._question
        if transport is not None and kept is not None and question is not None and self._may_be_kept():
            kept.keep(self._kept_as(question), transport)
        elif (transport := transport or self._connecting) is not None:
            transport.abort()
        self._transport = self._connecting = None  # each of the two refers to the other

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        if self._question is not None:
            transport.write(self._question.request)

    def not_connected(self, error: Exception) -> None:
        is_tls = isinstance(error, ssl.SSLError)
        self._end(_failure(error) if is_tls else FetchFailure("down", f"no connection: {_cause(error)}"))

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
            return
        if self._is_again and not self._received and self._question is not None:
            # The agent closed it before it could see the question, as one does that was started anew.
            self._is_again, self._transport = False, None
            self._connect(self._question)
        elif error is not None:
            self._end(_failure(error))
        elif self._received:
            self._read(b"")
        else:
            self._end(_CLOSED)

    def _connect(self, question: _Question) -> None:
        place, tls = question.place, self._tls
        try:
            asker: Asker = self if tls is None else TlsTransport(self, tls, question.server_name)
            if place.is_address:
                self._connecting = PlainTransport(asker, place.host, place.port)
            else:
                self._connecting = by_name = NamedTransport(asker)
                self._by_name = self._loop.create_task(by_name.connect(place.host, place.port))
        except (OSError, ValueError) as error:
            self.not_connected(error)

    def _kept_as(self, question: _Question) -> Hashable:
        """What a connection is kept as: under other certificates, or another name, it is another one."""
        return question.place, question.server_name, self._tls

    def _may_be_kept(self) -> bool:
        if not self.found.done() or self.found.cancelled() or self._has_more:
            return False
        return isinstance(self.found.result(), bytes) and self._reader.leaves_open

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
        if self.found.done():
            self._has_more = True
        elif (found := self._reader.read(data)) is not None:
            self._end(found)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _request(netloc: str, target: str, method: str, token: str, keeps: bool) -> bytes:
    """Raises ValueError where a part of it is no part of a request."""
    if not _VISIBLE.fullmatch(target + netloc + token):
        raise ValueError("what is asked for is no URL")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {netloc}\r\nAccept: application/json\r\n"
        # No compression: a few kilobytes can inflate to gigabytes before they are counted.
        "Accept-Encoding: identity\r\nUser-Agent: laggard-collector\r\n"
        + f"Connection: {'keep-alive' if keeps else 'close'}\r\n"
        + (f"Authorization: Bearer {token}\r\n" if token else "")
        + ("Content-Length: 0\r\n" if method == "POST" else "")
        + "\r\n"
    ).encode("ascii")


def _failure(error: Exception) -> FetchFailure:
    if isinstance(error, ssl.SSLError):
        return FetchFailure("down", failure_text(error))
    return FetchFailure("down", f"the connection broke: {_cause(error)}")


def _cause(error: BaseException) -> str:
    """The operating system's message where there is one: asyncio writes its own text, address and all."""
    if isinstance(error, OSError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    return str(error).lower() or type(error).__name__
