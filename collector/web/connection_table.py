"""The collector's open connections: how many there are, who makes room for a new one, and what their answers hold."""

from __future__ import annotations

import heapq
import ipaddress
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

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
_IPV4_PREFIX, _IPV6_PREFIX = 24, 64
_WORDS: Final = {
    NO_REQUEST: "a connection of %s was closed for a newer one: it had sent no whole request",
    NOT_TAKEN: "a connection of %s was closed to make room: it had not taken its answer",
    REFUSED: "a connection of %s was refused: all places are taken",
}


class Connection(Protocol):
    """`waits_since`: since when its client has yet to send a whole request, in monotonic seconds; None: it has sent
    one. `unsent`: the bytes of answers that its client has yet to take."""

    address: str

    @property
    def waits_since(self) -> float | None: ...

    @property
    def unsent(self) -> int: ...

    def has_sent(self) -> bool:
        """Whether something of its client's is there that was not read yet."""
        ...

    def abort(self) -> None: ...

    def ask_again(self) -> None:
        """It waits for a place, and there is one."""
        ...


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
        self._untaken: dict[Connection, float] = {}  # since when; the longest comes first
        self._waiting: dict[Connection, None] = {}  # the oldest first
        self.ended: Counter[str] = Counter({reason: 0 for reason in _WORDS})
        """Connections that were refused or closed at a limit, so far, by the reason."""

    @property
    def turned_away(self) -> int:
        return sum(self.ended.values())

    def admit(self, connection: Connection) -> bool:
        """Whether there is a place for the connection; then it is in the table. Where there is none, many may have come
        at once, so that what they sent was not read yet: it may wait, or has to be refused."""
        self._waiting.pop(connection, None)
        for places in (self._ordinary, self._kept):
            crowds = places.crowds(connection.address)
            if crowds is None or any(self._displace(crowd, connection) for crowd in crowds):
                places.add(connection)
                return True
        return False

    def wait(self, connection: Connection) -> None:
        """Lets the connection ask again in a moment; then admit(), refuse() or remove() has to follow. Where too many
        wait, the oldest of the address that has the most is refused."""
        if len(self._waiting) >= MAX_WAITING:
            count = Counter(each.address for each in self._waiting)
            oldest = max(self._waiting, key=lambda each: count[each.address] + self._ordinary.held(each.address))
            self.refuse(oldest)
        self._waiting[connection] = None

    def refuse(self, connection: Connection) -> None:
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

    def is_crowded(self, connection: Connection) -> bool:
        """Whether another client, or the same, may wait for the place of this connection."""
        return not self._ordinary.has(connection) or self._ordinary.crowds(connection.address) is not None

    def has_kept_place(self, connection: Connection) -> bool:
        """Whether it is in a place that is kept for gates and agents; it is moved from there where it can be."""
        if not self._kept.has(connection):
            return False
        if self._ordinary.crowds(connection.address) is not None:
            return True
        self._kept.remove(connection)
        self._ordinary.add(connection)
        return False

    def remove(self, connection: Connection) -> None:
        self._ordinary.remove(connection)
        self._kept.remove(connection)
        self._untaken.pop(connection, None)
        self._waiting.pop(connection, None)

    def note_unsent(self, connection: Connection) -> None:
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

    def _has_place_for(self, connection: Connection) -> bool:
        return any(places.crowds(connection.address) is None for places in (self._ordinary, self._kept))

    def _has(self, connection: Connection) -> bool:
        return self._ordinary.has(connection) or self._kept.has(connection)

    def _displace(self, crowd: Iterable[Connection], new: Connection) -> bool:
        """Closes one of `crowd`. Returns False where all of them are being answered, or came later than `new`, which
        may have waited."""
        latest = math.inf if new.waits_since is None else new.waits_since
        slow = [(since, reason, each) for each in crowd for since, reason in self._waits(each) if since <= latest]
        for _, reason, slowest in heapq.nsmallest(_LOOKED_AT, slow, key=lambda found: found[0]):
            if reason == NOT_TAKEN or not slowest.has_sent():  # else many come at once, and this one was not read yet
                self._close(slowest, reason)
                return True
        return False

    def _waits(self, connection: Connection) -> Iterator[tuple[float, str]]:
        """Yields since when its client has kept the collector waiting, and for what."""
        since = self._untaken.get(connection)
        if since is not None and connection.unsent:
            yield since, NOT_TAKEN
        elif connection.waits_since is not None:
            yield connection.waits_since, NO_REQUEST

    def _close(self, connection: Connection, reason: str) -> None:
        self.remove(connection)
        self._end(connection.address, reason)
        connection.abort()

    def _end(self, address: str, reason: str, count: int = 1) -> None:
        self.ended[reason] += count
        log.warning(_WORDS[reason], _Network(address))


class _Places:
    """So many places in all, and so many of one address."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._by_address: dict[str, dict[Connection, None]] = {}  # oldest first
        self._count = 0

    def crowds(self, address: str) -> list[Iterable[Connection]] | None:
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

    def has(self, connection: Connection) -> bool:
        return connection in self._by_address.get(connection.address, {})

    def add(self, connection: Connection) -> None:
        self._by_address.setdefault(connection.address, {})[connection] = None
        self._count += 1

    def remove(self, connection: Connection) -> None:
        of_address = self._by_address.get(connection.address, {})
        if connection in of_address:
            del of_address[connection]
            self._count -= 1
        if not of_address:
            self._by_address.pop(connection.address, None)


class _Network(NamedTuple):
    """The network of an address, worked out only where a line is written: of thousands in a minute, one is."""

    address: str

    def __str__(self) -> str:
        return network_of(self.address)


def kept_places(limit: int) -> int:
    """How many places there are for gates and agents, beside `limit` for all."""
    return max(_MIN_KEPT, limit // _KEPT_SHARE)


def network_of(address: str) -> str:
    """The network of an address, as one user may have many of its addresses: of 24 bits, of 64 with IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "an unknown address"
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:  # of a listener for both
        found = found.ipv4_mapped
    prefix = _IPV4_PREFIX if found.version == 4 else _IPV6_PREFIX
    return str(ipaddress.ip_network((found, prefix), strict=False))
