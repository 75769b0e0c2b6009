"""Four nodes of SLURM with agents that stand in for real ones, and the real collector that their gates ask."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
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

    def __init__(self, cluster: Any, agents: dict[str, Agent], capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster, self._agents, self._capsys = cluster, agents, capsys
        self.url = ""
        self.tls: ssl.SSLContext | None = None

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

    def _failing(self) -> set[str] | None:
        """None: it turned a connection away, as where it is flooded."""
        try:
            return {node for node in NODES if self._ask(node).asker_fails}
        except OSError:
            return None

    def _ask(self, node: str) -> DrainsDocument:
        url = f"{self.url}/api/v1/drains?node={node}"
        with urllib.request.urlopen(url, timeout=300, context=self.tls) as answer:
            return decode(answer.read(), DrainsDocument)


@contextlib.contextmanager
def a_fleet(
    cluster: Any, folder: Path, capsys: pytest.CaptureFixture[str], *flags: str, tls: ssl.SSLContext | None = None
) -> Iterator[Fleet]:
    """All of them healthy, and gates that enforce. `flags`: more of the collector; `tls`: how to ask it."""
    with contextlib.ExitStack() as stack:
        agents = {node: Agent(node) for node in NODES}
        for agent in agents.values():
            stack.callback(agent.close)
        addresses = [f"127.0.0.1:{agent.server.server_address[1]}" for agent in agents.values()]
        config = folder / "collector.json"  # JSON is YAML
        config.write_text(json.dumps({"targets": addresses, "interval_seconds": 0.3, "report_interval_seconds": 0.3}))
        made = Fleet(cluster, agents, capsys)
        made.set_machine("plain", *NODES)
        made.url, made.tls = stack.enter_context(_collector(config, *flags)), tls
        cluster.configure(mode="enforce", collector=made.url)
        yield made


@contextlib.contextmanager
def _collector(config: Path, *flags: str) -> Iterator[str]:
    command = [sys.executable, "-m", "laggard", "collector", "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--web.listen-address", "127.0.0.1:0", *flags], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"https?://[\d.]+:\d+", line)
        assert found, line
        yield found.group()
    finally:
        process.terminate()
        process.communicate(timeout=300)
