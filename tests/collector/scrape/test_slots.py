"""Agents that say nothing hold up no others, and what comes late is read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from laggard.collector.discovery import Discovery
from laggard.collector.scrape import connections as slots
from laggard.collector.scrape.connections import Slots
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.collector.scrape_loop import FRESH_SECONDS, ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.targets import parse_targets
from laggard.locate.verdict import locate

BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.asynccontextmanager
async def _served(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL at which `answer` writes to each who asks."""
    writers = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # so that they are closed, too


async def test_silent_agents_do_not_hold_up_the_others() -> None:
    """Of two slots ten agents say nothing for as long as they may: one that answers is asked meanwhile."""
    ended = asyncio.Event()

    async def silent(_: asyncio.StreamWriter) -> None:
        await ended.wait()

    async def answers(writer: asyncio.StreamWriter) -> None:
        writer.write(BODY)

    places = Slots(2)

    async def ask(url: str) -> bytes | FetchFailure:
        async with places.one() as slot:
            return await fetch(url, 600.0, 100, slot=slot)

    async with _served(silent) as quiet, _served(answers) as quick:
        waiting = [asyncio.create_task(ask(quiet)) for _ in range(10)]
        assert await ask(quick) == b"{}"
        assert not any(task.done() for task in waiting)
        ended.set()
        assert set(await asyncio.gather(*waiting)) == {FetchFailure("down", "it closed the connection")}
        assert await ask(quick) == b"{}", "all places are free again"


async def test_late_answers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that were silent answer at once: each is read."""
    monkeypatch.setattr(slots, "PATIENCE_SECONDS", 0.0)
    go_on = asyncio.Event()
    asked = 0

    async def late(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await go_on.wait()
        writer.write(BODY[:-1])
        await asyncio.sleep(0.02)
        writer.write(BODY[-1:])

    places = Slots(1)

    async def ask(url: str) -> tuple[bytes | FetchFailure, ...]:
        async with places.one() as slot:
            return tuple([await fetch(url, 600.0, 100, slot=slot) for _ in range(3)])

    async with _served(late) as url:
        for _ in range(2):  # what was taken was given back
            tasks = [asyncio.create_task(ask(url)) for _ in range(20)]
            while asked < 20:
                await asyncio.sleep(0.01)
            go_on.set()
            assert set(await asyncio.gather(*tasks)) == {(b"{}",) * 3}
            go_on.clear()
            asked = 0


async def test_there_is_a_most_of_silent_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(slots, "MAX_SILENT", 3)
    ended = asyncio.Event()
    asked = 0

    async def silent(_: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await ended.wait()

    places = Slots(2)

    async def ask(url: str) -> bytes | FetchFailure:
        async with places.one() as slot:
            return await fetch(url, 600.0, 100, slot=slot)

    async with _served(silent) as url:
        tasks = [asyncio.create_task(ask(url)) for _ in range(20)]
        while asked < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert asked == 5, "two that are asked, and three that are waited for beside them"
        ended.set()
        await asyncio.gather(*tasks)
        assert asked == 20


async def test_the_time_that_an_agent_has_is_bounded() -> None:
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(BODY[:-1])
        await asyncio.sleep(30)

    async with _served(half) as url, Slots(1).one() as slot:
        found = await fetch(url, 0.3, 100, slot=slot)
    assert found == FetchFailure("slow", "no complete answer within 0.3 s")


@pytest.mark.slow
async def test_where_rounds_take_long_no_client_waits_for_the_end_of_one(
    fake_agent: Callable[..., Any], make: Any
) -> None:
    agent = fake_agent(make.node("n0", [0, 1], world_size=2), make.report("n0"), delay=FRESH_SECONDS)
    settings = CollectorSettings(timeout_seconds=300.0, interval_seconds=600.0)
    loop = ScrapeLoop(Discovery(parse_targets([agent.url])), settings, locate)
    rounds = asyncio.create_task(loop.run())
    assert await loop.refresh(), "the first round is worth waiting for"
    assert (loop.snapshot.round_seconds or 0) > FRESH_SECONDS and loop.snapshot.rounds == 1
    agent.delay = 240.0
    await asyncio.sleep(FRESH_SECONDS)  # what the first round brought is fresh no longer
    assert not await loop.refresh(), "it is told that the answer is not fresh"
    assert loop.snapshot.rounds == 1 and len(agent.requests) == 4, "the second round has begun, and goes on"
    rounds.cancel()
