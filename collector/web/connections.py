"""Bounds on the collector's connections: how many there are, in all and from one address, and how long each may take.

uvicorn closes a connection that is idle after an answer, and refuses requests beyond a number of connections; it has
neither a deadline for a request nor a bound for one address or for what clients do not take, so these are here, in a
subclass of its protocol.
"""

from __future__ import annotations

import asyncio
import functools
import select
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from laggard.collector.tenants.peers import peer_of
from laggard.collector.web.connection_table import ConnectionTable
from laggard.collector.web.request_lengths import LengthsOnly

PEER: Final = "laggard.peer"
"""The key, in the state of each request, of who is at the other end of its connection, a Peer. Headers have no part in
it."""

HEAD_SECONDS: Final = 5.0
"""The time for a whole request, from the connection's begin or the last answer's end."""

RESPONSE_SECONDS: Final = 300.0
"""The time for the answer until the client has taken all of it: a recording of the largest jobs is some hundred
megabytes."""

KEPT_PATHS: Final = ("/api/v1/drains", "/api/v1/rings/due", "/-/healthy", "/-/ready")
"""What gates, agents and supervisors ask. It is answered in the places that are kept for them as well."""


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
        return self._waits_since if self.waits_for_request else None

    @property
    def unsent(self) -> int:
        """The bytes of answers that its client has yet to take, less what the kernel holds of them."""
        if self._plain is None:
            return self._in_hand
        behind_tls = 0 if self.transport is self._plain else self.transport.get_write_buffer_size()
        return self._in_hand + behind_tls + self._plain.get_write_buffer_size()

    def has_sent(self) -> bool:
        found = self._plain.get_extra_info("socket") if self._plain is not None else None
        if found is None or found.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(found.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        self.transport.abort()

    def ask_again(self) -> None:
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
