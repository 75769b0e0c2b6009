"""Clients that take no answer, or end their connection: nothing waits for them, and nothing is kept."""

import asyncio
import contextlib
import gc
import os
import re
import signal
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from support.certificates import Files, client
from support.materialise import materialise
from uvicorn.server import ServerState

from laggard.cli import main
from laggard.collector.web.acceptor import after_handshake
from laggard.collector.web.connections import BoundedProtocol, bounded
from laggard.kit.tls_server import ServerTls, ServerTlsSettings
from laggard.model import Verdict

ADDRESSES = tuple(f"127.0.2.{number}" for number in range(1, 9))


def hold(port: int, address: str, path: str, times: int) -> socket.socket:
    """A client that asks for `path` so many times, and takes nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    client.bind((address, 0))
    client.settimeout(120)
    client.connect(("127.0.0.1", port))
    client.settimeout(0.2)
    with contextlib.suppress(OSError):  # what it does not read is not read from it
        client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * times)
    return client


@contextlib.contextmanager
def flood(port: int, path: str, times: int, of_each: int = 8) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(of_each):
            for address in ADDRESSES:
                stack.enter_context(hold(port, address, path, times))
        yield


def status_of(url: str) -> int:
    """On a connection of its own."""
    try:
        return httpx.get(url, timeout=60, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def ended(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics", timeout=120, trust_env=False).text
    found = re.findall(r'^laggard_collector_connections_ended_total\{reason="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found}


@pytest.fixture
def crowded(start_collector: Callable[..., Any]) -> Callable[..., Any]:
    return partial(start_collector, "--interval", "1", max_connections=48, max_connections_per_address=8)


@pytest.mark.slow
def test_clients_that_take_no_answer_make_room(crowded: Callable[..., Any]) -> None:
    collector = crowded("--target", "127.0.0.1:9")
    port = int(collector.url.rpartition(":")[2])
    with (
        flood(port, "/page/page.css", 300, 5),
        contextlib.ExitStack() as stack,
    ):  # below the limits, where they may stay

        def one_makes_room() -> bool:
            for address in ADDRESSES:
                stack.enter_context(hold(port, address, "/page/page.css", 300))
            return ended(collector.url).get("not_taken", 0) > 0  # refused at first, it has no figures

        collector.wait_until(one_makes_room)
        for _ in range(5):
            with httpx.Client(base_url=collector.url, timeout=60, trust_env=False) as client:
                assert client.get("/-/healthy").status_code == 200
                assert client.get("/api/v1/drains").status_code == 200
        collector.wait_until(lambda: status_of(f"{collector.url}/api/v1/nodes") == 200)  # not only what gates ask
    collector.stop()
    said = collector.said()
    assert re.search(r"a connection of 127\.0\.2\.\d was closed to make room: it had not taken its answer", said)
    assert said.count("\n") < 12 and "Traceback" not in said, said


@pytest.mark.slow
def test_a_node_rejected_before_is_rejected_while_the_collector_is_busy(
    crowded: Callable[..., Any],
    make: Any,
    fake_agent: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    without_processes: None,
) -> None:
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    root = tmp_path / "machine"
    materialise("disk_full", root)
    words = ["healthcheck", "--host-root", str(root), "--only", "disks", "--kill-switch", str(tmp_path / "no")]
    assert main([*words, "--format", "json"]) == 1
    node = re.search(r'"node":"([^"]+)"', capsys.readouterr().out)
    assert node
    agent = fake_agent(make.ranks_document(node[1], []), make.report(node[1], ["DISK_FULL"], Verdict.FAIL))
    collector = crowded(watches=[agent])
    collector.wait_until(lambda: collector.get("/api/v1/drains", node=node[1]).json()["asker_fails"])
    words += ["--gate", "enforce", "--collector", collector.url]

    def gate() -> tuple[str, str]:
        main(words)
        said = capsys.readouterr()
        return said.out.splitlines()[-1], said.err

    assert gate()[0] == "gate: reject"
    with flood(int(collector.url.rpartition(":")[2]), "/page/page.css", 300):
        assert gate()[0] == "gate: reject"
    os.kill(collector.process.pid, signal.SIGSTOP)
    try:
        verdict, told = gate()
        assert verdict == "gate: reject" and "the collector is busy" in told and "ago holds" in told
        monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "another"))
        verdict, told = gate()
        assert verdict.startswith("gate: pass, not drained: no answer from the collector") and "it is busy" in verdict
    finally:
        os.kill(collector.process.pid, signal.SIGCONT)
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "state"))
    collector.stop()
    verdict, told = gate()
    assert verdict == "gate: reject" and "the collector gives no answer" in told and "ago holds" in told
    monkeypatch.setenv("LAGGARD_STATE_DIR", str(tmp_path / "another"))
    assert gate()[0].startswith("gate: pass, not drained: no answer"), "it had not let this node be drained"


@pytest.mark.slow
def test_where_all_are_being_answered_gates_and_supervisors_have_places(
    crowded: Callable[..., Any], make: Any, fake_agent: Callable[..., Any]
) -> None:
    """An agent that hangs: each question for something fresh waits for it."""
    agent = fake_agent(make.ranks_document("n1", []), make.report("n1"))
    collector = crowded(watches=[agent])
    collector.wait_ready()
    port = int(collector.url.rpartition(":")[2])
    collector.client.close()  # else it has a place
    agent.delay = 60.0
    time.sleep(2.0)  # from now on nothing is fresh
    with flood(port, "/api/v1/location?fresh=1", 300):
        time.sleep(1.0)  # each waits for its answer
        with httpx.Client(base_url=collector.url, timeout=60, trust_env=False) as client:
            for path in ("/-/healthy", "/-/ready", "/api/v1/drains?node=n1"):
                assert client.get(path).status_code == 200, path
            refused = client.get("/api/v1/nodes")
            assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
            assert "too many clients" in refused.text
    agent.delay = 0.0


COUNT = 20
SECONDS = 120.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


def leaves(connection: socket.socket) -> None: ...


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def begins_to_ask(connection: socket.socket) -> None:
    connection.sendall(b"GET / HT")


def asks(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def takes_no_answer(connection: socket.socket) -> None:
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" * 2)
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    body = bytes(8 << 20) if scope["path"] == "/large" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def no_circles_found() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_circles_found")
@pytest.mark.parametrize("way", [leaves, resets, begins_to_ask, asks, takes_no_answer])
@pytest.mark.parametrize("over", ["plain", "tls"])
async def test_nothing_is_left_of_a_connection(
    over: str, way: Callable[[socket.socket], None], files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[weakref.ref[BoundedProtocol]] = []
    kind = bounded(4 * COUNT, 4 * COUNT)

    class Noted(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(weakref.ref(self))

    tls = ServerTls(ServerTlsSettings(str(files.folder / "server.pem"), str(files.folder / "server.key")))
    make = after_handshake(Noted, tls) if over == "tls" else Noted
    config = uvicorn.Config(answer, log_config=None, lifespan="off")
    config.load()
    context = client(files) if over == "tls" else None
    loop, state = asyncio.get_running_loop(), ServerState()
    protocol: Callable[[], asyncio.Protocol] = lambda: make(config=config, server_state=state, app_state={})  # noqa: E731
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    await loop.run_in_executor(None, visit, server.sockets[0].getsockname()[1], way, context)
    deadline = time.monotonic() + SECONDS
    while len(made) < COUNT or any(each() is not None for each in made):
        assert time.monotonic() < deadline, f"{sum(each() is not None for each in made)} of {len(made)} are left"
        await asyncio.sleep(0.05)
    server.close()
    assert not [each for each in caplog.messages if "Exception" in each]


def visit(port: int, way: Callable[[socket.socket], None], context: ssl.SSLContext | None) -> None:
    for _ in range(COUNT):
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
            way(connection)
