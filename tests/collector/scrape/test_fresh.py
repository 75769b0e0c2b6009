"""What a client gets that asks for fresh data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laggard.collector.discovery import Discovery
from laggard.collector.scrape_loop import FRESH_SECONDS, ScrapeLoop
from laggard.collector.settings import CollectorSettings
from laggard.collector.targets import parse_targets
from laggard.locate.verdict import locate


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
