"""The connections to agents: in which order and how many are asked at once, so that silent ones hold up nobody. And
those that are kept between two questions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

IDLE_SECONDS: Final = 45.0
"""The longest time that a connection waits for a question: agents close it after 60 s."""

MAX_KEPT: Final = 16_384
"""The most connections that are kept, one for each agent, where there are descriptors for so many."""


MAX_KEPT_TLS: Final = 4096
"""The most of these over TLS, each of which takes some 50 KiB; without TLS it is 2.5 KiB."""


class _Kept(NamedTuple):
    transport: asyncio.Transport
    since: float
    over_tls: bool


class KeptConnections:
    """Keeps one connection for each place that is asked, `most` of them. To be used on the event loop."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self.most = most
        self._kept: dict[Hashable, _Kept] = {}
        self._over_tls = 0

    def take(self, place: Hashable) -> asyncio.Transport | None:
        """A connection for a question, which is then the caller's; None where none is kept."""
        found = self._pop(place)
        if found is None:
            return None
        if time.monotonic() - found.since > IDLE_SECONDS:
            found.transport.abort()
            return None
        return found.transport

    def keep(self, place: Hashable, transport: asyncio.Transport, over_tls: bool) -> None:
        """Keeps a connection after its answer, unless there are too many."""
        self.drop(place)
        if len(self._kept) >= self.most or (over_tls and self._over_tls >= MAX_KEPT_TLS):
            transport.abort()
            return
        transport.set_protocol(_Watch(self, place))
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


class _Watch(asyncio.Protocol):
    """Closes a kept connection when the agent does, or says what nobody asked for."""

    def __init__(self, connections: KeptConnections, place: Hashable) -> None:
        self._connections = connections
        self._place = place

    def data_received(self, data: bytes) -> None:
        self._connections.drop(self._place)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.drop(self._place)


# The agents that are asked at once. One that says nothing does not hold up the others, so that a round does not take
# minutes where half of a large network is away.

PATIENCE_SECONDS: Final = 0.25
"""The time for which an agent may say nothing before another is asked in its place. Healthy ones answer within tens of
milliseconds."""

MAX_SILENT: Final = 1024
"""The most agents that are waited for beside those that answer. Such a connection has sent nothing yet, so it takes a
descriptor and no memory."""


class Slots:
    """`count` agents are asked at once, and beside them those wait that say nothing."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._silent = 0

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Slot]:
        """Waits until an agent may be asked, and counts it meanwhile. All that are silent are not asked at once: when
        they answer again the collector has to connect to each in time."""
        await self._free.acquire()
        slot = Slot(self)
        try:
            yield slot
        finally:
            slot.end()

    def give_up(self) -> bool:
        """Lets another agent take the slot of one that says nothing, if not too many do."""
        if self._silent >= MAX_SILENT:
            return False
        self._silent += 1
        self._free.release()
        return True

    def end(self, was_given_up: bool) -> None:
        if was_given_up:
            self._silent -= 1
        else:
            self._free.release()


class Slot:
    """The place of one agent among those that are asked: one of the slots, or beside them once it has said nothing for
    too long."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._is_given_up = False
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """The agent is asked now."""
        if not self._is_given_up:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_up)

    def heard(self) -> None:
        """The agent begins to answer."""
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        self.heard()
        self._slots.end(self._is_given_up)

    def _give_up(self) -> None:
        self._is_given_up = self._slots.give_up()


T = TypeVar("T")

EARLY_SHARE: Final = 1 / 3
"""The share of a round in which all are asked that did not answer in time in the last one."""


def in_turn(failed: Sequence[T], others: Sequence[T]) -> Iterator[T]:
    """Those that `failed` in the last round among the first of the others. Each may take all the time that an agent
    has: asked last, one alone would make the round longer by that. All of them at once would hold all places."""
    between = max(1, int(EARLY_SHARE * len(others) / len(failed))) if failed else 1
    rest = iter(others)
    for each in failed:
        yield each
        yield from islice(rest, between)
    yield from rest
