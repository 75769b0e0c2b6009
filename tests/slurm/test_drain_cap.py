"""The cap on drains, with a real collector: when every node fails at once, none is drained."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from laggard.cli import main
from laggard.wire import decode, encode
from laggard.wire.nodes import DrainsDocument
from laggard.wire.ranks import RanksDocument

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODES = ("n1", "n2", "n3", "n4")


class Agent:
    """Stands in for the agent of a node: its report is the gate's, of the node's recorded machine."""

    def __init__(self, node: str) -> None:
        agent = self
        self.node, self.report = node, b""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ranks = RanksDocument(agent.node, f"boot-{agent.node}", 0.0, (), ())
                body = agent.report if self.path == "/api/v1/report" else encode(ranks)
                with contextlib.suppress(ConnectionError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class Fleet:
    """Four agents, and the collector that scrapes them."""

    def __init__(self, cluster: Any, agents: dict[str, Agent], url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster, self._agents, self.url, self._capsys = cluster, agents, url, capsys

    def set_machine(self, machine: str, *nodes: str) -> None:
        """From now on `nodes` are that recorded machine, and their agents report so."""
        for node in nodes:
            root = self._cluster.set_machine(node, machine)
            self._capsys.readouterr()
            main(["healthcheck", "--host-root", str(root), "--only", "disks", "--format", "json"])
            self._agents[node].report = self._capsys.readouterr().out.encode()

    def wait_for_failing(self, *nodes: str) -> None:
        deadline = time.monotonic() + 120
        while (failing := self._failing()) != set(nodes):
            assert time.monotonic() < deadline, f"the collector counts {failing} as failing, not {nodes}"
            time.sleep(0.1)

    def _failing(self) -> set[str]:
        return {node for node in NODES if self._ask(node).asker_fails}

    def _ask(self, node: str) -> DrainsDocument:
        with urllib.request.urlopen(f"{self.url}/api/v1/drains?node={node}", timeout=300) as answer:
            return decode(answer.read(), DrainsDocument)


@pytest.fixture
def fleet(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        agents = {node: Agent(node) for node in NODES}
        for agent in agents.values():
            stack.callback(agent.close)
        addresses = [f"127.0.0.1:{agent.server.server_address[1]}" for agent in agents.values()]
        config = tmp_path / "collector.json"  # JSON is YAML
        config.write_text(json.dumps({"targets": addresses, "interval_seconds": 0.3, "report_interval_seconds": 0.3}))
        made = Fleet(cluster, agents, "", capsys)
        made.set_machine("plain", *NODES)
        made.url = stack.enter_context(_collector(config))
        cluster.configure(mode="enforce", collector=made.url)
        yield made


@contextlib.contextmanager
def _collector(config: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "laggard", "collector", "--config", str(config)]
    process = subprocess.Popen([*command, "--web.listen-address", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line
        yield found.group()
    finally:
        process.terminate()
        process.communicate(timeout=300)


def test_check_sh_ends_with_what_the_gate_does(cluster: Any, fleet: Fleet) -> None:
    fleet.wait_for_failing()
    cluster.configure(seconds="15")
    check = str(cluster.folder / "gate/check.sh")
    deadline = time.monotonic() + 120
    while (done := cluster.run("env", "SLURMD_NODENAME=n1", check)).returncode or "cap 1 of 4" not in done.stdout:
        assert time.monotonic() < deadline, done  # the collector has not asked all agents yet
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last) == (0, "gate: set up, enforce, cap 1 of 4: the collector and SLURM know n1")
    cluster.configure(mode="enforced", disabled="")
    wrong = cluster.run("env", "SLURMD_NODENAME=n1", check)
    assert wrong.returncode == 1 and "MODE of gate.conf is 'enforced'" in wrong.stdout, wrong
    assert wrong.stdout.splitlines()[-1].startswith(f"gate: switched off by {cluster.folder}/settings/disabled")


def test_one_bad_node_is_drained_and_a_second_waits(cluster: Any, fleet: Fleet) -> None:
    fleet.set_machine("disk_full", "n1")
    fleet.wait_for_failing("n1")
    assert cluster.refuses("n1")
    assert cluster.wait_settled("n1").startswith("drained laggard: DISK_FULL")
    fleet.set_machine("disk_full", "n2")
    fleet.wait_for_failing("n1", "n2")
    assert cluster.srun("n2").returncode == 0
    assert cluster.wait_settled("n2") == "idle"


def test_when_all_fail_at_once_none_is_drained(cluster: Any, fleet: Fleet) -> None:
    (cluster.folder / "settings/healthcheck").touch()
    fleet.set_machine("disk_full", *NODES)
    cluster.srun(*NODES)  # the collector may know of none, one or all by now: one may be drained within the cap
    fleet.wait_for_failing(*NODES)
    for node in NODES:
        cluster.wait_for_health_check(node)
    left = [node for node in NODES if cluster.wait_settled(node) == "idle"]
    assert len(left) >= len(NODES) - 1, "more than the cap were drained"
    done = cluster.srun(*left)
    assert done.returncode == 0, done.stderr


def test_without_the_collector_nothing_is_drained(cluster: Any, fleet: Fleet, unanswered: str) -> None:
    cluster.set_machine("n1", "disk_full")
    for url in ("http://127.0.0.1:9", unanswered, "http://no-such-host.invalid:19401"):
        cluster.configure(collector=url)
        assert cluster.srun("n1").returncode == 0
        assert cluster.wait_settled("n1") == "idle"


@pytest.fixture
def unanswered() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
