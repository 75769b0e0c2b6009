"""Bounds on the collector's connections: how many there are, who makes room for a new one, how long each takes, and
what it holds.

uvicorn closes a connection that is idle after an answer, and refuses requests beyond a number of connections; it has
neither a deadline for a request nor a bound for one address or for what clients do not take, so these are here, in a
subclass of its protocol.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import logging
import math
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

import h11
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from laggard.collector.tenants import peer_of
from laggard.kit.shares import client_of

log = logging.getLogger("laggard.collector")

MAX_UNSENT_BYTES: Final = 64 << 20
"""The most bytes of all answers together that clients have yet to take."""

NO_REQUEST: Final = "no_request"
NOT_TAKEN: Final = "not_taken"
REFUSED: Final = "refused"

MAX_WAITING: Final = 32
"""The most new connections that wait for a place."""

_LOOKED_AT: Final = 16
_KEPT_SHARE: Final = 4
_MIN_KEPT: Final = 4
_WORDS: Final = {
    NO_REQUEST: "a connection of %s was closed for a newer one: it had sent no whole request",
    NOT_TAKEN: "a connection of %s was closed to make room: it had not taken its answer",
    REFUSED: "a connection of %s was refused: all places are taken",
}


class ConnectionTable:
    """The open connections. At a limit the one makes room whose client has kept the collector waiting the longest, for
    a request or until it takes its answer; of the same address where that is the limit, else of the address that has
    the most. Honest clients do both in milliseconds, so that slow ones displace one another.

    Where none can make room, the new one gets one of the places that are kept for gates and agents: there it is
    answered if it asks what they ask. Those are as many again as a quarter of each limit.

    At a limit a connection is closed after its next answer, so that clients that ask again and again on the same
    connection hold no place for long. A place that is given up goes to whoever waits and has the fewest.
    """

    def __init__(self, max_connections: int, max_of_address: int, max_unsent_bytes: int = MAX_UNSENT_BYTES) -> None:
        self._ordinary = _Places(max_connections, max_of_address)
        self._kept = _Places(kept_places(max_connections), kept_places(max_of_address))
        self._max_unsent_bytes = max_unsent_bytes
        self._untaken: dict[BoundedProtocol, float] = {}  # since when; the longest comes first
        self._waiting: dict[BoundedProtocol, None] = {}  # the oldest first
        self.ended: Counter[str] = Counter({reason: 0 for reason in _WORDS})
        """Connections that were refused or closed at a limit, so far, by the reason."""

    @property
    def turned_away(self) -> int:
        return sum(self.ended.values())

    def admit(self, connection: BoundedProtocol) -> bool:
        """Whether there is a place for the connection; then it is in the table. Where there is none, many may have come
        at once, so that what they sent was not read yet: it may wait, or has to be refused."""
        self._waiting.pop(connection, None)
        for places in (self._ordinary, self._kept):
            crowds = places.crowds(connection.address)
            if crowds is None or any(self._displace(crowd, connection) for crowd in crowds):
                places.add(connection)
                return True
        return False

    def wait(self, connection: BoundedProtocol) -> None:
        """Lets the connection ask again in a moment; then admit(), refuse() or remove() has to follow. Where too many
        wait, the oldest of the address that has the most is refused."""
        if len(self._waiting) >= MAX_WAITING:
            count = Counter(each.address for each in self._waiting)
            oldest = max(self._waiting, key=lambda each: count[each.address] + self._ordinary.held(each.address))
            self.refuse(oldest)
        self._waiting[connection] = None

    def refuse(self, connection: BoundedProtocol) -> None:
        self._close(connection, REFUSED)

    def note_refused(self, count: int, address: str) -> None:
        """Notes that so many connections, one of `address` among them, were closed before they asked for a place."""
        self._end(address, REFUSED, count)

    def hand_over(self) -> None:
        """A place was given up: has one of those that wait ask again, of the address that has the fewest places the
        oldest."""
        found = [each for each in self._waiting if self._has_place_for(each)]
        if found:
            min(found, key=lambda each: self._ordinary.held(each.address)).ask_again()

    def is_crowded(self, connection: BoundedProtocol) -> bool:
        """Whether another client, or the same, may wait for the place of this connection."""
        return not self._ordinary.has(connection) or self._ordinary.crowds(connection.address) is not None

    def has_kept_place(self, connection: BoundedProtocol) -> bool:
        """Whether it is in a place that is kept for gates and agents; it is moved from there where it can be."""
        if not self._kept.has(connection):
            return False
        if self._ordinary.crowds(connection.address) is not None:
            return True
        self._kept.remove(connection)
        self._ordinary.add(connection)
        return False

    def remove(self, connection: BoundedProtocol) -> None:
        self._ordinary.remove(connection)
        self._kept.remove(connection)
        self._untaken.pop(connection, None)
        self._waiting.pop(connection, None)

    def note_unsent(self, connection: BoundedProtocol) -> None:
        """Notes that the connection has an answer to send, or has sent it. Where all answers together are too large,
        others make room."""
        if not connection.unsent or not self._has(connection):
            self._untaken.pop(connection, None)
            return
        self._untaken.setdefault(connection, time.monotonic())
        total = sum(each.unsent for each in self._untaken)
        for oldest in list(self._untaken):
            if total <= self._max_unsent_bytes:
                return
            if oldest is not connection:
                total -= oldest.unsent
                self._close(oldest, NOT_TAKEN)

    def _has_place_for(self, connection: BoundedProtocol) -> bool:
        return any(places.crowds(connection.address) is None for places in (self._ordinary, self._kept))

    def _has(self, connection: BoundedProtocol) -> bool:
        return self._ordinary.has(connection) or self._kept.has(connection)

    def _displace(self, crowd: Iterable[BoundedProtocol], new: BoundedProtocol) -> bool:
        """Closes one of `crowd`. Returns False where all of them are being answered, or came later than `new`, which
        may have waited."""
        latest = math.inf if new.waits_since is None else new.waits_since
        slow = [(since, reason, each) for each in crowd for since, reason in self._waits(each) if since <= latest]
        for _, reason, slowest in heapq.nsmallest(_LOOKED_AT, slow, key=lambda found: found[0]):
            if reason == NOT_TAKEN or not slowest.has_sent():  # else many come at once, and this one was not read yet
                self._close(slowest, reason)
                return True
        return False

    def _waits(self, connection: BoundedProtocol) -> Iterator[tuple[float, str]]:
        """Yields since when its client has kept the collector waiting, and for what."""
        since = self._untaken.get(connection)
        if since is not None and connection.unsent:
            yield since, NOT_TAKEN
        elif connection.waits_since is not None:
            yield connection.waits_since, NO_REQUEST

    def _close(self, connection: BoundedProtocol, reason: str) -> None:
        self.remove(connection)
        self._end(connection.address, reason)
        connection.abort()

    def _end(self, address: str, reason: str, count: int = 1) -> None:
        self.ended[reason] += count
        log.warning(_WORDS[reason], client_of(address) or "an unknown address")


class _Places:
    """So many places in all, and so many of one address."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._by_address: dict[str, dict[BoundedProtocol, None]] = {}  # oldest first
        self._count = 0

    def crowds(self, address: str) -> list[Iterable[BoundedProtocol]] | None:
        """The connections, by address, of which one has to go before one of `address` has a place, the first where that
        can be; None: there is a place."""
        of_address = self._by_address.get(address, {})
        if len(of_address) >= self._most_of_address:
            return [of_address]
        if self._count < self._most:
            return None
        return [*sorted(self._by_address.values(), key=len, reverse=True)]

    def held(self, address: str) -> int:
        return len(self._by_address.get(address, ()))

    def has(self, connection: BoundedProtocol) -> bool:
        return connection in self._by_address.get(connection.address, {})

    def add(self, connection: BoundedProtocol) -> None:
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._count += 1

    def remove(self, connection: BoundedProtocol) -> None:
        of_address = self._by_address.get(connection.address, {})
        if connection in of_address:
            del of_address[connection]
            self._count -= 1
        if not of_address:
            self._by_address.pop(connection.address, None)


def kept_places(limit: int) -> int:
    """The number of places for gates and agents, beside `limit` for all."""
    return max(_MIN_KEPT, limit // _KEPT_SHARE)


# Requests say how long their body is, or have none.
#
# A body in chunks costs the collector a step of the parser for each chunk, which may hold one byte: 16 KiB of those
# stop the event loop for longer than a hundred questions of gates. No client of the collector sends any.

_ENCODING: Final = b"transfer-encoding"
_LENGTH: Final = b"content-length"


class LengthsOnly(h11.Connection):
    """h11's reader of requests; one with Transfer-Encoding is an error before any of its body is read. `refused` is
    then its answer's status."""

    refused: HTTPStatus | None = None

    def __init__(self) -> None:
        super().__init__(h11.SERVER)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if _ENCODING in names:
                # With both, a proxy may have seen another end of the request (RFC 9112, 6.3).
                both = _LENGTH in names
                self.refused = HTTPStatus.BAD_REQUEST if both else HTTPStatus.LENGTH_REQUIRED
                raise h11.RemoteProtocolError("a body in chunks")
        return event

    def refusal(self) -> bytes:
        """The answer to a request that is none, or is refused; the connection ends with it."""
        status = self.refused or HTTPStatus.BAD_REQUEST
        text = b"no HTTP request\n" if self.refused is None else b"say how long the body is: Content-Length alone\n"
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        return head.encode() + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(text), text)


PEER: Final = "laggard.peer"
"""The key, in the state of each request, of who is at the other end of its connection, a Peer. Headers have no part in
it."""

HEAD_SECONDS: Final = 5.0
"""The time for a whole request, from the connection's begin or the last answer's end."""

RESPONSE_SECONDS: Final = 300.0
"""The time for the answer until the client has taken all of it: a recording of the largest jobs is some hundred
megabytes."""

KEPT_PATHS: Final = ("/api/v1/drains", "/api/v1/rings/due", "/-/healthy", "/-/ready")
"""The questions of gates, agents and supervisors. They are answered in the places that are kept for them as well."""


_WAIT_SECONDS: Final = 0.05
_MAX_WAITS: Final = 10
_READ_BYTES: Final = 16 << 10
_CLOSE: Final = (b"connection", b"close")
_BUSY_HEADERS: Final = {"Retry-After": "5"}


class BoundedProtocol(H11Protocol):
    """uvicorn's connection with deadlines, and with a place in `table`, which a subclass made by bounded() has."""

    table: ConnectionTable

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted = False
        self._plain: asyncio.Transport | None = None  # without TLS the same as `transport`
        self._waits_since = time.monotonic()
        self._ask_again: Callable[[], None] | None = None
        self._in_hand = 0  # bytes of the part of an answer that waits for the transport
        self._answer, self.app = self.app, self._answer_within_bounds
        self.conn: LengthsOnly = LengthsOnly()

    @property
    def waits_for_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @property
    def waits_since(self) -> float | None:
        """Since when its client has yet to send a whole request, in monotonic seconds; None: it has sent one."""
        return self._waits_since if self.waits_for_request else None

    @property
    def unsent(self) -> int:
        """The bytes of answers that its client has yet to take, less what the kernel holds of them."""
        if self._plain is None:
            return self._in_hand
        behind_tls = 0 if self.transport is self._plain else self.transport.get_write_buffer_size()
        return self._in_hand + behind_tls + self._plain.get_write_buffer_size()

    def has_sent(self) -> bool:
        """Whether something of its client's is there that was not read yet."""
        found = self._plain.get_extra_info("socket") if self._plain is not None else None
        if found is None or found.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        self.transport.abort()

    def ask_again(self) -> None:
        """It waits for a place, and there is one."""
        if self._ask_again is not None:
            self._set_deadline(None)
            self._ask_again()

    def admit(self, transport: asyncio.Transport, then: Callable[[], None] = lambda: None) -> None:
        """Asks for a place, waits for it for a moment where that may help, and calls `then` once it has one; from there
        on its deadline counts. A TLS handshake begins with this, so that those that never end are bounded as well."""
        self.transport = self._plain = transport
        if hasattr(transport, "max_size"):  # asyncio's own: what it reads at once, and h11 holds beside uvicorn's part
            transport.max_size = _READ_BYTES
        self._admitted = True  # or on its way to be
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._ask_for_place(transport, then, _MAX_WAITS)

    def _ask_for_place(self, transport: asyncio.Transport, then: Callable[[], None], waits: int) -> None:
        if transport.is_closing():  # it waited, and was refused or left meanwhile
            return
        if self.table.admit(self):
            self._set_deadline(HEAD_SECONDS)
            if waits < _MAX_WAITS:
                transport.resume_reading()
            then()
        elif waits:
            self.table.wait(self)
            transport.pause_reading()
            self._ask_again = functools.partial(self._ask_for_place, transport, then, waits - 1)
            self._deadline = self.loop.call_later(_WAIT_SECONDS, self._ask_again)
        else:
            self.table.refuse(self)

    def leave(self) -> None:
        """The connection is gone: its place and deadline are given up."""
        self.table.remove(self)
        self._set_deadline(None)
        self._ask_again = None
        self._plain = None  # asyncio's transport of TLS can say nothing of its buffer once it was closed twice
        self._let_go()
        self.table.hand_over()

    def _let_go(self) -> None:
        """Opens the circles of this object with itself. In them hang the buffers of TLS, of a hundred kilobytes, which
        would stay until Python looks for circles: thousands of connections later, where each leaves a few objects."""
        self.app = self._answer
        self._unset_keepalive_if_required()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._admitted:
            self.admit(transport)
        self.app_state = {**self.app_state, PEER: peer_of(self.address, transport.get_extra_info("peercert"))}

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waited = self.waits_for_request
        super().data_received(data)
        if waited and not self.waits_for_request:
            self._set_deadline(RESPONSE_SECONDS)

    def on_response_complete(self) -> None:
        self._waits_since = time.monotonic()
        self._set_deadline(HEAD_SECONDS)
        super().on_response_complete()
        if not self.waits_for_request:  # the next request was there already
            self._set_deadline(RESPONSE_SECONDS)

    def send_400_response(self, msg: str) -> None:
        self.transport.write(self.conn.refusal())
        self.transport.close()

    async def _answer_within_bounds(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start" and self.table.is_crowded(self):
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            self._in_hand = len(message.get("body", b""))
            self.table.note_unsent(self)
            try:
                await send(message)
            finally:
                self._in_hand = 0
                self.table.note_unsent(self)

        answer = self._answer
        if self.table.has_kept_place(self) and scope.get("path") not in KEPT_PATHS:
            answer = PlainTextResponse("too many clients ask at once: ask again later\n", 503, _BUSY_HEADERS)
        await answer(scope, receive, counted_send)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.abort)


def bounded(max_connections: int, max_of_address: int) -> type[BoundedProtocol]:
    """The protocol class of one server, with its own table."""
    return type("Bounded", (BoundedProtocol,), {"table": ConnectionTable(max_connections, max_of_address)})
