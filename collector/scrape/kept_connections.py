"""The connections to agents that are kept between two questions, where agents keep them, too. A handshake of TLS takes
ten times what a question takes."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Final, NamedTuple

from laggard.collector.scrape.transport import Transport

IDLE_SECONDS: Final = 45.0
"""The longest time that a connection waits for a question: agents close it after 60 s."""

MAX_KEPT: Final = 16_384
"""The most connections that are kept, one for each agent, where there are descriptors for so many."""


MAX_KEPT_TLS: Final = 4096
"""The most of these over TLS, each of which takes some 50 KiB; without TLS it is 1.4 KiB."""


class _Kept(NamedTuple):
    transport: Transport
    since: float
    over_tls: bool


class KeptConnections:
    """Keeps one connection for each place that is asked, `most` of them. To be used on the event loop."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self.most = most
        self._kept: dict[Hashable, _Kept] = {}
        self._over_tls = 0

    def take(self, place: Hashable) -> Transport | None:
        """A connection for a question, which is then the caller's; None where none is kept."""
        found = self._pop(place)
        if found is None:
            return None
        if time.monotonic() - found.since > IDLE_SECONDS:
            found.transport.abort()
            return None
        return found.transport

    def keep(self, place: Hashable, transport: Transport, over_tls: bool) -> None:
        """Keeps a connection after its answer, unless there are too many."""
        self.drop(place)
        if len(self._kept) >= self.most or (over_tls and self._over_tls >= MAX_KEPT_TLS):
            transport.abort()
            return
        transport.asker = _Watch(self, place)
        self._kept[place] = _Kept(transport, time.monotonic(), over_tls)
        self._over_tls += over_tls

    def drop(self, place: Hashable) -> None:
        if (found := self._pop(place)) is not None:
            found.transport.abort()

    def drop_old(self) -> None:
        """Closes those that nobody has asked over of late."""
        now = time.monotonic()
        for place in [place for place, it in self._kept.items() if now - it.since > IDLE_SECONDS]:
            self.drop(place)

    def close(self) -> None:
        for place in list(self._kept):
            self.drop(place)

    def _pop(self, place: Hashable) -> _Kept | None:
        found = self._kept.pop(place, None)
        self._over_tls -= found is not None and found.over_tls
        return found


class _Watch:
    """Closes a kept connection when the agent does, or says what nobody asked for."""

    __slots__ = ("_connections", "_place")

    def __init__(self, connections: KeptConnections, place: Hashable) -> None:
        self._connections = connections
        self._place = place

    def connected(self, transport: Transport) -> None:
        raise AssertionError("it is connected already")

    def not_connected(self, error: Exception) -> None:
        raise AssertionError("it is connected already")

    def data_received(self, data: bytes) -> None:
        self._connections.drop(self._place)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.drop(self._place)
