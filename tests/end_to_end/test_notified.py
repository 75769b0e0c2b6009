"""A real collector process tells a real receiver of a slow rank, also where it is killed while the receiver is away."""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.collectors import CollectorProcess, FakeAgent, Make
from support.ports import free_port
from support.webhook_receiver import receiver

from laggard.collector.webhook.body import Notification
from laggard.wire import decode

pytestmark = [pytest.mark.slow]


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    """A node on which rank 2 of four is slow in forward, step after step."""
    began = time.monotonic()

    def ranks(since: float) -> Any:
        last = 40 + int((time.monotonic() - began) * 4)
        of_rank = (
            Make.rank_row(rank, rows=[Make.step_row(it, 0.1 if rank == 2 else 0.0) for it in range(last - 40, last)])
            for rank in range(4)
        )
        return Make.ranks_document("n0", tuple(of_rank))

    found = FakeAgent(ranks, Make.report("n0"))
    yield found
    found.close()


def test_a_collector_that_is_killed_tells_each_thing_once(tmp_path: Path, agent: FakeAgent) -> None:
    port = free_port()
    for name, text in (
        ("url", f"http://127.0.0.1:{port}/hooks/a-secret\n"),
        ("secret", f"whsec_{base64.b64encode(bytes(32)).decode()}\n"),
        (
            "collector.yaml",
            f"incidents_database: {tmp_path / 'incidents.sqlite'}\nwebhook_url_file: {tmp_path / 'url'}\n"
            f"webhook_secret_file: {tmp_path / 'secret'}\n",
        ),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    words = ["--target", agent.address, "--interval", "1", "--config", str(tmp_path / "collector.yaml")]
    first = CollectorProcess(words)
    first.wait_until(lambda: 'laggard_webhook_tries_total{outcome="failed"} 0' not in first.get("/metrics").text)
    first.wait_until(lambda: "laggard_webhook_waiting 1.0" in first.get("/metrics").text)
    first.stop(signal.SIGKILL)
    with receiver("204", port=port) as server:
        second = CollectorProcess(words)
        (request,) = server.wait_for(1, 120.0)
        second.wait_until(lambda: "laggard_webhook_waiting 0.0" in second.get("/metrics").text)
        told = decode(request["body"].encode(), Notification)
        assert told.event == "opened" and told.incident.culprit.ranks == (2,)
        (incident,) = second.get("/api/v1/incidents").json()["incidents"]
        assert incident["id"] == told.incident.id, "the second collector goes on with the first one's incident"
        rounds = len(agent.requests)
        second.wait_until(lambda: len(agent.requests) > rounds + 6)
        assert len(server.requests) == 1 and second.stop() == 0
        with pytest.raises(AssertionError, match="1 of 2 requests"):
            server.wait_for(2, 0.5)
