"""The real collector, the machine's resolver, a name server that answers it, and a file: agents come and go."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.dns_server import NameServer

from laggard.wire import decode
from laggard.wire.nodes import NodesDocument

NAME = "agents.laggard.svc.cluster.local"
NAME_SERVER = "127.77.53.1"


def _may_replace_resolv_conf() -> bool:
    """Whether a process here may have a resolv.conf of its own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _may_replace_resolv_conf(), reason="needs root, for port 53 and a resolv.conf of its own"),
]


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    server = NameServer(NAME, NAME_SERVER)
    yield server
    server.close()


def test_agents_come_and_go_with_the_addresses_of_a_name_and_the_lines_of_a_file(
    name_server: NameServer,
    start_collector: Callable[..., Any],
    fake_agent: Callable[..., Any],
    make: Any,
    tmp_path: Path,
) -> None:
    by_name, by_file = (fake_agent(make.node(node, [rank])) for node, rank in (("n0", 0), ("n1", 1)))
    port = by_name.address.rpartition(":")[2]
    (tmp_path / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\noptions timeout:1 attempts:1\n")
    listed, config = tmp_path / "agents.json", tmp_path / "collector.yaml"
    config.write_text(
        f"target_names: ['{NAME}:{port}']\ntarget_files: ['{listed}']\n"
        "discovery_interval_seconds: 0.2\nincidents_database: ''\n"
    )
    resolver = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"']
    collector = start_collector(
        "--interval", "0.3", "--config", str(config), within=[*resolver, str(tmp_path / "resolv.conf")]
    )

    def states() -> dict[str, str]:
        nodes = decode(collector.get("/api/v1/nodes").content, NodesDocument).nodes
        return {row.url.removeprefix("http://"): row.state for row in nodes}

    def notes() -> str:
        document: dict[str, Any] = collector.get("/api/v1/findings").json()
        return " ".join(note["text"] for note in document["notes"] if note["kind"] == "discovery")

    collector.wait_until(lambda: f"{NAME} has no address" in notes() and "agents.json: no such file" in notes())
    assert not states() and "has no address" in collector.get("/api/v1/location").json()["notes"][0]["text"]
    name_server.addresses = ["127.0.0.1", "127.0.0.2"]  # nobody listens at the second
    collector.wait_until(lambda: states() == {f"127.0.0.1:{port}": "up", f"127.0.0.2:{port}": "down"})
    listed.write_text(json.dumps([{"targets": [by_file.address]}]))
    collector.wait_until(lambda: states().get(by_file.address) == "up" and not notes())
    name_server.failing = True
    collector.wait_until(lambda: "cannot be resolved" in notes() and "holds" in notes())
    assert len(states()) == 3, "what was found last holds"
    name_server.failing, name_server.addresses = False, ["127.0.0.1"]
    collector.wait_until(lambda: states() == {f"127.0.0.1:{port}": "up", by_file.address: "up"} and not notes())
    targets = [address for entry in collector.get("/api/v1/targets").json() for address in entry["targets"]]
    assert sorted(targets) == sorted([f"127.0.0.1:{port}", by_file.address])
    assert "laggard_target_up" in collector.get("/metrics").text
