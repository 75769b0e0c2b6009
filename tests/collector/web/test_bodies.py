"""What bodies of requests may hold before a token is checked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from laggard.collector.web.signed_requests import SMALL_BYTES, LargeBodies
from laggard.wire import WireError

LARGE = 4 * SMALL_BYTES


class Sender:
    """A client that sends its body in parts."""

    def __init__(self, bodies: LargeBodies) -> None:
        self.parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reading = asyncio.ensure_future(bodies.read(Request({"type": "http"}, self.parts.get), LARGE))

    async def send(self, size: int, more: bool = True) -> None:
        self.parts.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})
        while not self.parts.empty():
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self.parts.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientDisconnect):
            await self.reading


async def test_large_bodies_that_never_end_leave_room_for_small_ones() -> None:
    bodies = LargeBodies(2 * LARGE)
    slow = [Sender(bodies) for _ in range(2)]
    for each in slow:
        await each.send(SMALL_BYTES + 1)
    late, small = Sender(bodies), Sender(bodies)
    await late.send(SMALL_BYTES + 1)
    with pytest.raises(HTTPException) as refused:
        await late.reading
    assert refused.value.status_code == 503 and refused.value.headers == {"Retry-After": "5"}
    await small.send(SMALL_BYTES, more=False)
    assert len(await small.reading) == SMALL_BYTES
    await slow[0].leave()
    again = Sender(bodies)
    await again.send(LARGE - 1)
    await again.send(1, more=False)
    assert len(await again.reading) == LARGE
    await slow[1].leave()


async def test_a_body_that_is_too_long_gives_its_room_back() -> None:
    bodies = LargeBodies(LARGE)
    for _ in range(3):
        sender = Sender(bodies)
        await sender.send(LARGE + 1)
        with pytest.raises(WireError):
            await sender.reading
