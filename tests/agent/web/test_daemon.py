"""The real agent as a process: what it serves, how it starts and stops, and that no client can disturb it."""

import contextlib
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.agents import AgentProcess
from support.daemons import Daemon, laggard
from support.waiting import wait_for

from laggard.kit.http_client import NoResponse, get
from laggard.kit.http_server import MAX_CONNECTIONS

pytestmark = pytest.mark.slow  # an agent for most tests

Start = Callable[..., Any]


def wait_ready(agent: Any) -> None:
    wait_for(lambda: agent.request("/-/ready").status == 200)


def send_bytes(agent: Any, data: bytes) -> bytes:
    """Sends `data` on a connection of its own and returns all that the agent answers."""
    with socket.create_connection(agent.address, timeout=300) as connection:
        connection.sendall(data)
        response = b""
        while chunk := connection.recv(65_536):
            response += chunk
        return response


@pytest.mark.parametrize("path", ["/", "/metrics", "/-/healthy", "/api/v1/report", "/api/v1/ranks?since=0"])
def test_head_is_get_without_the_body(idle_agent: AgentProcess, path: str) -> None:
    wait_ready(idle_agent)
    got, head = idle_agent.request(path), idle_agent.request(path, method="HEAD")
    assert head.status == got.status == 200 and head.body == b"" and got.body
    assert head.headers["Content-Type"] == got.headers["Content-Type"]
    for headers in (got.headers, head.headers):
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert headers["Connection"] == "close" and int(headers["Content-Length"]) > 0
    assert int(got.headers["Content-Length"]) == len(got.body)


def test_requests_that_are_refused(idle_agent: AgentProcess) -> None:
    assert idle_agent.request("/metrics", method="TRACE").status == 405
    assert idle_agent.request("/%2e%2e/etc/passwd").status == 404
    assert idle_agent.request("/api/v1/ranks?since=x&since=1e-05&x=2").status == 200, "the last one counts"
    assert idle_agent.request("/" + "x" * 2000).status == 414
    assert idle_agent.request("/metrics", Accept="x" * 9000).status == 431


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400"),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /a b HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),  # the beginning of TLS
        (b"GET /" + b"\xff" * 50 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000, b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"z" * 60_000, b"405"),
        (b"GET /-/healthy HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_bytes_that_are_no_request(idle_agent: AgentProcess, data: bytes, status: bytes) -> None:
    assert send_bytes(idle_agent, data).startswith(b"HTTP/1.1 " + status)


def test_slow_clients_do_not_delay_others(start_agent: Start) -> None:
    agent = start_agent(patient=True)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(agent.address, timeout=300))
            for _ in range(3 * MAX_CONNECTIONS)
        ]
        for connection in slow:
            with contextlib.suppress(OSError):  # evicted already
                connection.sendall(b"GET / HT")
        for _ in range(10):
            assert agent.request("/-/healthy").status == 200
        assert psutil.Process(agent.process.pid).num_threads() <= 2 * MAX_CONNECTIONS + 3
        assert slow[0].recv(4096) == b"", "evicted"
        told = re.search(r"^laggard_connections_turned_away_total (\S+)", agent.request("/metrics").text, re.MULTILINE)
        assert told and float(told[1]) >= 2 * MAX_CONNECTIONS, "those that were evicted are counted"
    wait_for(lambda: psutil.Process(agent.process.pid).num_threads() < 8)


def test_a_request_that_does_not_come_is_timed_out(idle_agent: AgentProcess) -> None:
    assert send_bytes(idle_agent, b"GET / HT").startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_it_stops_at_once_and_leaves_no_process(start_agent: Start, number: signal.Signals) -> None:
    agent = start_agent()
    wait_ready(agent)
    children = psutil.Process(agent.process.pid).children(recursive=True)
    assert children, "the agent has no prober: nothing was tested"
    with socket.create_connection(agent.address):  # with a client still connected, which nobody waits for
        agent.process.send_signal(number)
        status = agent.process.wait(300)
    wait_for(lambda: not any(_runs(child) for child in children))
    if number == signal.SIGKILL:
        return
    log = agent.log.read_text().splitlines()
    assert "listening on http://127.0.0.1:" in log[0] and log[-1].endswith(f"{number.name}: stopping")
    assert (status, len(log)) == (0, 3)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.mark.spine
def test_a_prober_that_dies_is_reported_and_started_again(start_agent: Start, tmp_path: Path) -> None:
    config = tmp_path / "agent.yaml"
    config.write_text("probe_interval_seconds: 0.3\n")
    agent = start_agent("--config", str(config))
    wait_ready(agent)
    reports = []
    (first,) = psutil.Process(agent.process.pid).children()
    first.kill()

    def died() -> bool:
        reports.append(agent.request("/api/v1/report").json())
        return bool(reports[-1]["verdict"] == "unknown")

    wait_for(died)
    (probe,) = reports[-1]["probes"]
    assert probe["name"] == "prober" and "killed by signal 9" in probe["reason"]
    assert agent.request("/-/ready").status == 200  # one complete round is enough
    wait_for(lambda: agent.request("/api/v1/report").json()["probes"][0]["name"] != "prober")
    assert "killed by signal 9" in agent.log.read_text()


def test_an_address_that_is_not_this_machines_is_one_line(tmp_path: Path) -> None:
    ended = laggard("agent", "--web.listen-address", "203.0.113.7:19400")
    assert (ended.returncode, ended.stdout) == (64, "")
    assert ended.stderr.startswith("laggard: cannot listen on 203.0.113.7:19400") and ended.stderr.count("\n") == 1


def test_it_imports_nothing_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prober is started with `python -m`, which imports from there first."""
    trap = tmp_path / "trap"
    (trap / "laggard").mkdir(parents=True)
    (trap / "laggard" / "__init__.py").write_text("raise SystemExit(99)\n")
    monkeypatch.chdir(trap)
    script = "import sys; sys.path.pop(0); from laggard.cli import main; sys.exit(main())"
    agent = Daemon(tmp_path / "log", ("agent",), {}, (sys.executable, "-c", script))

    def is_ready() -> bool:
        with contextlib.suppress(NoResponse):
            return get(f"{agent.url}/-/ready", 300.0).body == b"ready\n"
        return False

    try:
        agent.wait_until(is_ready)
    finally:
        agent.stop()
