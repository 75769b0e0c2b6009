"""The agents that are asked at once. One that says nothing does not hold up the others, so that a round does not take
minutes where half of a large network is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

PATIENCE_SECONDS: Final = 0.25
"""The time for which an agent may say nothing before another is asked in its place. Healthy ones answer within tens of
milliseconds."""

MAX_SILENT: Final = 1024
"""The most agents that are waited for beside those that answer. Such a connection has sent nothing yet, so it takes a
descriptor and no memory."""


class Slots:
    """`count` agents are asked at once. As many answers that came late are read at once beside those."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._late = asyncio.Semaphore(count)
        self._given_up = 0

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[Slot]:
        """Waits until an agent may be asked, and counts it meanwhile. All that are silent are not asked at once: when
        they answer again the collector has to connect to each in time."""
        await self._free.acquire()
        slot = Slot(self, self._free.release)
        try:
            yield slot
        finally:
            slot.end()

    async def turn_of_late(self) -> Callable[[], None]:
        """Waits until an answer that came late may be read. Returns what ends that."""
        await self._late.acquire()
        return self._late.release

    def give_up(self) -> Callable[[], None] | None:
        """Lets another agent take the slot of one that says nothing, if not too many do. Returns what forgets it."""
        if self._given_up >= MAX_SILENT:
            return None
        self._given_up += 1
        self._free.release()
        return self._forget

    def _forget(self) -> None:
        self._given_up -= 1


class Slot:
    """The place of one agent among those that are asked: one of the slots, beside them while it says nothing, or in
    turn with others that came late, which it then stays."""

    def __init__(self, slots: Slots, release: Callable[[], None]) -> None:
        self._slots = slots
        self._release = release
        self._may_give_up = True
        self._must_wait = False
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """The agent is asked now."""
        if self._may_give_up:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_up)

    def heard(self) -> bool:
        """The agent begins to answer. Returns whether the answer may be read at once; else turn() has to be waited
        for."""
        self._stop_timer()
        return not self._must_wait

    async def turn(self) -> None:
        release = await self._slots.turn_of_late()
        self._release()
        self._release, self._must_wait = release, False

    def end(self) -> None:
        self._stop_timer()
        self._release()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        forget = self._slots.give_up()
        if forget is not None:
            self._release, self._may_give_up, self._must_wait = forget, False, True
