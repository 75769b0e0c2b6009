"""One question to an agent, and its answer: over a connection that was kept, or else one of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Hashable
from typing import Final, NamedTuple

from laggard.collector.scrape.answer_reader import AnswerReader
from laggard.collector.scrape.failure import FetchFailure, broken, not_connected
from laggard.collector.scrape.kept_connections import KeptConnections
from laggard.collector.scrape.named_transport import NamedTransport
from laggard.collector.scrape.plain_transport import PlainTransport
from laggard.collector.scrape.slots import Slot
from laggard.collector.scrape.tls_transport import TlsTransport
from laggard.collector.scrape.transport import Asker, Transport
from laggard.errors import UsageError
from laggard.http.tls import client_context

_CONNECT_SHARE: Final = 0.8
"""The share of the time that connecting gets, so that a host that is off can be told from a slow agent."""
_AWAY: Final = FetchFailure("down", "no connection: the host does not answer")
_CLOSED: Final = FetchFailure("down", "it closed the connection")


class Place(NamedTuple):
    """The place where an agent is asked. `netloc` as in the URL. `is_address`: whether there is no name to look up."""

    scheme: str
    host: str
    port: int
    netloc: str
    is_address: bool


class Question(NamedTuple):
    """`server_name`: that of a certificate. `is_repeatable`: whether to ask twice is as good as to ask once."""

    place: Place
    server_name: str
    request: bytes
    is_repeatable: bool


class Exchange:
    """One question and its answer, which is read as it comes. `found` is its body, or why there is none; None: it began
    so late that rest() has to be asked for. To be used on the running event loop."""

    def __init__(self, timeout_seconds: float, max_bytes: int, slot: Slot | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = timeout_seconds
        self._deadline = self._loop.time() + timeout_seconds
        self._left = 0.0  # of that when the answer began late
        self._reader = AnswerReader(max_bytes)
        self._slot = slot
        self._question: Question | None = None
        self._connections: KeptConnections | None = None
        self._tls: ssl.SSLContext | None = None
        self._is_again = False  # whether it is asked over a kept connection
        self._received = False
        self._is_spent = False  # whether the connection cannot bring another answer
        self._late = b""
        self._transport: Transport | None = None
        self._connecting: Transport | None = None
        self._by_name: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.found: asyncio.Future[bytes | FetchFailure | None] = self._loop.create_future()
        if slot is not None:
            slot.ask()

    def ask(self, question: Question, kept: KeptConnections | None) -> None:
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
            kept.keep(self._kept_as(question), transport, self._tls is not None)
        elif (transport := transport or self._connecting) is not None:
            transport.abort()
        self._transport = self._connecting = None  # each of the two refers to the other

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        if self._question is not None:
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
        if self._is_again and not self._received and self._question is not None:
            # The agent closed it before it could see the question, as one does that was started anew.
            self._is_again, self._transport = False, None
            self._connect(self._question)
        elif error is not None:
            self._end(broken(error))
        elif self._received:
            self._read(b"")
        else:
            self._end(_CLOSED)

    def _connect(self, question: Question) -> None:
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

    def _kept_as(self, question: Question) -> Hashable:
        """The name that a connection is kept under: with other certificates, or another name, it is another one."""
        return question.place, question.server_name, self._tls

    def _may_be_kept(self) -> bool:
        if not self.found.done() or self.found.cancelled() or self._is_spent:
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
            self._is_spent = True
        elif (found := self._reader.read(data)) is not None:
            self._end(found)
