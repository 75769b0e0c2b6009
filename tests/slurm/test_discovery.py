"""The collector finds agents by a real SLURM: nodes come by their addresses, and none goes with slurmctld."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = 120.0
ADDRESSES = {"n2": "127.0.0.2", "n3": "127.0.0.3"}
SINFO = shutil.which("sinfo", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "/usr/bin/sinfo"


class Slurmctld:
    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.pid_file = cluster.folder / "run/slurmctld.pid"

    def stop(self) -> None:
        pid = int(self.pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), lambda: "slurmctld does not end")

    def start(self) -> None:
        """With its state, as after an upgrade."""
        done = self.cluster.run("slurmctld", "-f", str(self.cluster.folder / "slurm.conf"))
        assert done.returncode == 0, done.stderr
        wait_until(lambda: self.cluster.run(SINFO, "-h").returncode == 0, lambda: "slurmctld does not answer")


@pytest.fixture
def slurmctld(cluster: Any) -> Iterator[Slurmctld]:
    """Each node of this SLURM is at 127.0.0.1 before and after."""
    made = Slurmctld(cluster)
    yield made
    if cluster.run(SINFO, "-h").returncode:
        made.start()
    for node in ADDRESSES:
        cluster.update(node, "NodeAddr=127.0.0.1")


def wait_until(condition: Callable[[], object], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def test_agents_are_the_nodes_of_a_partition_also_while_slurmctld_is_away(
    slurmctld: Slurmctld,
    start_agent: Callable[..., Any],
    start_collector: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, cluster = free_port(), slurmctld.cluster
    monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
    cluster.update("n2", f"NodeAddr={ADDRESSES['n2']}")
    start_agent("--web.listen-address", f"{ADDRESSES['n2']}:{port}", node="n2")
    config = tmp_path / "collector.yaml"
    config.write_text(
        f"target_slurm: ['debug:{port}']\nsinfo: {SINFO}\ndiscovery_interval_seconds: 0.5\nincidents_database: ''\n"
    )
    collector = start_collector("--interval", "0.5", "--config", str(config))

    def states() -> dict[str, str]:
        return {row["url"]: row["state"] for row in collector.get("/api/v1/nodes").json()["nodes"]}

    def told() -> str:
        return str([each for each in collector.get("/api/v1/findings").json()["notes"] if each["kind"] == "discovery"])

    def url(node: str) -> str:
        return f"http://{ADDRESSES[node]}:{port}"

    local = f"http://127.0.0.1:{port}"  # of all the other nodes, where no agent is
    wait_until(lambda: states().get(url("n2")) == "up" and set(states()) == {local, url("n2")}, states)
    assert told() == "[]"

    slurmctld.stop()
    wait_until(lambda: "holds" in told(), told)
    assert "SLURM cannot be asked: " in told() and "s ago holds" in told(), told()
    assert set(states()) == {local, url("n2")} and states()[url("n2")] == "up"

    slurmctld.start()
    for node, address in ADDRESSES.items():  # a slurmctld that has started takes addresses from slurm.conf
        cluster.update(node, f"NodeAddr={address}")
    start_agent("--web.listen-address", f"{ADDRESSES['n3']}:{port}", node="n3")
    wait_until(lambda: states().get(url("n3")) == "up" and told() == "[]", lambda: (states(), told()))
    assert set(states()) == {local, url("n2"), url("n3")}
