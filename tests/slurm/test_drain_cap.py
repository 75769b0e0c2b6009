"""The cap on drains: gates of a real SLURM ask a real collector, whose agents stand in for those of the four nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laggard.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NODES = ("n1", "n2", "n3", "n4")


class Fleet:
    """Four agents, whose reports are the gate's of each node's recorded machine, and the collector that scrapes them:
    all of them healthy, and gates that enforce."""

    def __init__(self, cluster: Any, folder: Path, fake_agent: Any, start_collector: Any, make: Any) -> None:
        self._cluster = cluster
        self._agents = {node: fake_agent(make.ranks_document(node, [])) for node in NODES}
        config = folder / "collector.json"  # JSON is YAML
        targets = [agent.address for agent in self._agents.values()]
        config.write_text(json.dumps({"targets": targets, "interval_seconds": 0.3, "report_interval_seconds": 0.3}))
        self._collector = start_collector("--config", str(config))

    def set_machine(self, machine: str, capsys: pytest.CaptureFixture[str], *nodes: str) -> None:
        """From now on `nodes` are that recorded machine, and their agents report so."""
        for node in nodes:
            root = self._cluster.set_machine(node, machine)
            capsys.readouterr()
            main(["healthcheck", "--host-root", str(root), "--only", "disks", "--format", "json"])
            self._agents[node].report = capsys.readouterr().out.encode()

    def enforce(self) -> None:
        self._cluster.configure(mode="enforce", collector=self._collector.url)

    def wait_for_failing(self, *nodes: str) -> None:
        def failing() -> set[str]:
            return {it for it in NODES if self._collector.get("/api/v1/drains", node=it).json()["asker_fails"]}

        self._collector.wait_until(lambda: failing() == set(nodes))


@pytest.fixture
def fleet(
    cluster: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fake_agent: Callable[..., Any],
    start_collector: Callable[..., Any],
    make: Any,
) -> Fleet:
    made = Fleet(cluster, tmp_path, fake_agent, start_collector, make)
    made.set_machine("plain", capsys, *NODES)
    made.enforce()
    return made


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


def test_one_bad_node_is_drained_and_a_second_waits(
    cluster: Any, fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.set_machine("disk_full", capsys, "n1")
    fleet.wait_for_failing("n1")
    assert cluster.refuses("n1")
    assert cluster.wait_settled("n1").startswith("drained laggard: DISK_FULL")
    fleet.set_machine("disk_full", capsys, "n2")
    fleet.wait_for_failing("n1", "n2")
    assert cluster.srun("n2").returncode == 0
    assert cluster.wait_settled("n2") == "idle"


def test_of_three_that_fail_at_once_one_is_drained_though_two_were_drained_before(
    cluster: Any, fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the collector granted before ends with the repair."""
    fleet.wait_for_failing()
    for node in ("n2", "n3"):
        fleet.set_machine("disk_full", capsys, node)
        fleet.wait_for_failing(node)
        assert cluster.refuses(node)
        assert cluster.wait_settled(node).startswith("drained laggard: DISK_FULL")
        fleet.set_machine("plain", capsys, node)
        fleet.wait_for_failing()
        cluster.update(node, "State=RESUME")
    fleet.set_machine("disk_full", capsys, "n1", "n2", "n3")
    fleet.wait_for_failing("n1", "n2", "n3")
    passed = [node for node in ("n3", "n2", "n1", "n2", "n3") if cluster.srun(node).stdout]
    drained = [node for node in NODES if cluster.wait_settled(node).startswith("drained")]
    assert len(drained) == 1 and len(passed) >= 3, (drained, passed)
