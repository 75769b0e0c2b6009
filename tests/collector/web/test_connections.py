"""The collector's bounds on its clients: slow ones, many of them, names that are not its own, large recordings."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.rows import rows
from support.steps import step_table

from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.web.api import MAX_RECORDINGS
from laggard.collector.web.app import is_own_name, make_app
from laggard.collector.web.connections import HEAD_SECONDS
from laggard.recording.writer import JobRecording
from laggard.wire import encode


@pytest.mark.slow
def test_slow_clients_hold_neither_the_collector_nor_its_files(start_collector: Callable[..., Any]) -> None:
    """Four hundred clients that never end their request, from several addresses, at 300 file descriptors."""
    collector = start_collector("--target", "127.0.0.1:9", "--interval", "1", open_files=300)
    port = int(collector.url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        slow = []
        for number in range(400):
            client = socket.create_connection(("127.0.0.1", port), 120, (f"127.0.1.{1 + number % 8}", 0))
            stack.enter_context(client)
            client.sendall(b"GET / HTTP/1.1\r\nX: ")
            slow.append(client)
            if number % 50 == 49:
                assert collector.get("/-/healthy").status_code == 200
        deadline = time.monotonic() + HEAD_SECONDS + 120
        for client in slow:
            client.settimeout(max(0.1, deadline - time.monotonic()))
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b"", "a client that never ends its request is closed"
        assert collector.get("/api/v1/drains").status_code == 200
        told = re.search(r"^laggard_connections_turned_away_total (\S+)", collector.get("/metrics").text, re.MULTILINE)
        assert told and float(told[1]) > 0, "those that made room are counted"
    collector.stop()
    said = collector.said()
    assert said.count("\n") < 12 and "Traceback" not in said, said


@pytest.mark.slow
def test_a_request_with_two_lengths_is_refused(start_collector: Callable[..., Any]) -> None:
    collector = start_collector("--target", "127.0.0.1:9")
    with socket.create_connection(("127.0.0.1", int(collector.url.rpartition(":")[2])), 120) as client:
        head = b"Host: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        client.sendall(b"GET /-/healthy HTTP/1.1\r\n" + head + b"GET /-/healthy HTTP/1.1\r\n\r\n")
        answer = b""
        while chunk := client.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1


@rows("collector/foreign_names")
def test_names_that_somebody_else_may_own_are_not_answered(host: str, own: bool) -> None:
    assert is_own_name(host, ("*.svc.cluster.local", "head.example.org")) is own
    assert is_own_name(host, ("*",))


class Source:
    """Stands in for the scrape loop: one job of 64 ranks, with 128 steps each."""

    snapshot = ClusterSnapshot(nodes=())

    def __init__(self, make: Any) -> None:
        rows = {rank: make.rank_row(rank, 64) for rank in range(64)}
        steps = {rank: step_table(make.step_row(step) for step in range(128)) for rank in rows}
        self.held = JobRecording("job-1", rows, steps, {}, {}, 1000)

    async def refresh(self) -> bool:
        return False

    def looked_at(self, key: Any, ranks: Any) -> dict[int, Any]:
        return {}

    def recording(self, name: str | None) -> JobRecording:
        return self.held


async def _get(app: Any, path: str, send: Callable[[Any], Any], host: bytes = b"localhost") -> None:
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"fresh=1",
        "headers": [(b"host", host)], "root_path": "", "scheme": "http", "http_version": "1.1",
    }  # fmt: skip

    async def receive() -> Any:
        await asyncio.sleep(60)

    await app(scope, receive, send)


async def test_a_recording_is_sent_in_parts_and_few_at_a_time(make: Any) -> None:
    source = Source(make)
    app = make_app(source, CollectorSettings())
    statuses: list[int] = []
    parts: list[bytes] = []
    going_on = asyncio.Event()

    async def hold(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        elif message["body"]:
            parts.append(message["body"])
            await going_on.wait()

    held = [asyncio.create_task(_get(app, "/api/v1/recording", hold)) for _ in range(MAX_RECORDINGS)]
    while len(parts) < MAX_RECORDINGS:
        await asyncio.sleep(0.01)
    assert sum(map(len, parts)) < 1 << 20, "a client that does not read holds one part, not the recording"
    going_on.set()
    await _get(app, "/api/v1/recording", hold)
    await asyncio.gather(*held)
    first = parts[:]
    parts.clear()
    await _get(app, "/api/v1/recording", hold)
    assert first and b"".join(parts) == b"".join(encode(line) + b"\n" for line in source.held.lines())
    assert statuses == [200] * MAX_RECORDINGS + [503, 200]


async def test_an_answer_that_is_not_as_fresh_as_asked_for_says_so(make: Any) -> None:
    body: list[bytes] = []

    async def collect(message: Any) -> None:
        body.append(message.get("body", b""))

    await _get(make_app(Source(make), CollectorSettings()), "/api/v1/location", collect)
    assert b'"kind":"stale"' in b"".join(body)


async def test_a_request_under_a_foreign_name_is_refused(make: Any) -> None:
    statuses: list[int] = []

    async def collect(message: Any) -> None:
        statuses.append(message.get("status", 0))

    app = make_app(Source(make), CollectorSettings())
    for host in (b"evil.example", b"127.0.0.1"):
        await _get(app, "/api/v1/nodes", collect, host)
    assert [status for status in statuses if status] == [421, 200]


@pytest.mark.slow
def test_a_client_that_is_slow_after_an_answer_is_closed_too(start_collector: Callable[..., Any]) -> None:
    collector = start_collector("--target", "127.0.0.1:9")
    with socket.create_connection(("127.0.0.1", int(collector.url.rpartition(":")[2])), 120) as client:
        client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"healthy\n"):
            answer += client.recv(4096)
        client.settimeout(1)
        deadline = time.monotonic() + HEAD_SECONDS + 120
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                client.sendall(b"G")  # a byte now and then
                with contextlib.suppress(TimeoutError):
                    assert client.recv(1) == b""
                    return
            pytest.fail("a byte now and then keeps the connection")
