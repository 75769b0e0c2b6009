"""Bounds on the collector's connections: how many there are, in all and from one address, and how long each may take.

uvicorn closes a connection that is idle after an answer, and refuses requests beyond a number of connections; it has
neither a deadline for a request's head nor a bound for one address, so both are here, in a subclass of its protocol.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from laggard.collector.tenants.peers import peer_of

PEER: Final = "laggard.peer"
"""The key, in the state of each request, of who is at the other end of its connection, a Peer. Headers have no part in
it."""

HEAD_SECONDS: Final = 5.0
"""The time for the whole head of a request, from the connection's begin or the last answer's end."""

RESPONSE_SECONDS: Final = 300.0
"""The time for the answer until the client has taken all of it: a recording of the largest jobs is some hundred
megabytes."""


class ConnectionTable:
    """The open connections. At a limit the connection that has waited for a request's head the longest makes room, of
    the same address where that is the limit: honest clients send theirs in milliseconds, so that slow ones displace one
    another. Where all are being answered, the new one is refused."""

    def __init__(self, max_connections: int, max_of_address: int) -> None:
        self._max_connections = max_connections
        self._max_of_address = max_of_address
        self._by_address: dict[str, dict[BoundedProtocol, None]] = {}
        self._count = 0
        self.turned_away = 0
        """Connections that were refused or closed at a limit, so far."""

    def admit(self, connection: BoundedProtocol) -> bool:
        """Whether the connection may stay; then it is in the table."""
        of_address = self._by_address.setdefault(connection.address, {})
        crowd = None
        if len(of_address) >= self._max_of_address:
            crowd = of_address
        elif self._count >= self._max_connections:
            crowd = max(self._by_address.values(), key=len)
        if crowd is not None:
            self.turned_away += 1
            waiting = next((it for it in crowd if it.waits_for_head), None)
            if waiting is None:
                return False
            self.remove(waiting)
            waiting.abort()
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._count += 1
        return True

    def remove(self, connection: BoundedProtocol) -> None:
        of_address = self._by_address.get(connection.address, {})
        if connection in of_address:
            del of_address[connection]
            self._count -= 1
        if not of_address:
            self._by_address.pop(connection.address, None)


class BoundedProtocol(H11Protocol):
    """uvicorn's connection with deadlines, and with a place in `table`, which a subclass made by bounded() has."""

    table: ConnectionTable

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted = False

    @property
    def waits_for_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        self.transport.abort()

    def admit(self, transport: asyncio.Transport) -> bool:
        """Whether the connection may stay; from here on its deadline counts. A TLS handshake begins with this, so that
        those that never end are bounded as well."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._admitted = self.table.admit(self)
        if self._admitted:
            self._set_deadline(HEAD_SECONDS)
        else:
            self.abort()
        return self._admitted

    def leave(self) -> None:
        """The connection is gone: its place and deadline are given up."""
        self.table.remove(self)
        self._set_deadline(None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._admitted:
            self.admit(transport)
        self.app_state = {**self.app_state, PEER: peer_of(self.address, transport.get_extra_info("peercert"))}

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waited = self.waits_for_head
        super().data_received(data)
        if waited and not self.waits_for_head:
            self._set_deadline(RESPONSE_SECONDS)

    def on_response_complete(self) -> None:
        self._set_deadline(HEAD_SECONDS)
        super().on_response_complete()
        if not self.waits_for_head:  # the next request was there already
            self._set_deadline(RESPONSE_SECONDS)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.abort)


def bounded(max_connections: int, max_of_address: int) -> type[BoundedProtocol]:
    """The protocol class of one server, with its own table."""
    return type("Bounded", (BoundedProtocol,), {"table": ConnectionTable(max_connections, max_of_address)})
