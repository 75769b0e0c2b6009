"""The cap on drains, with a real collector: when every node fails at once, none is drained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.slurm_fleet import NODES, Fleet, a_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def fleet(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Fleet]:
    with a_fleet(cluster, tmp_path, capsys) as made:
        yield made


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
