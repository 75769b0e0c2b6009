"""From a disk that fills up on a node to the job on another node, the alert and the page, and back: real slurmctld and
slurmd, agent, gate, collector, Prometheus and Alertmanager, and a real Chromium.

The node n1 is this machine in a mount namespace of its own, with a scratch disk at /mnt; agent and gate judge it live.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.alerting import Alerting, needs_alertmanager, wait_for
from support.browsing import Browsed, needs_chromium
from support.paths import REPOSITORY
from support.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_chromium,
    needs_alertmanager,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a disk of its own"),
]

EXPECTED = {"thresholds": {"disks": {"never": ["/", "/[!m]*", "/m[!n]*", "/mnt/*"]}}}
"""/mnt alone is judged: the other disks are those of whoever runs the tests."""

GATE = """#!/bin/bash
words=("$@") enter=()
if [ "$SLURMD_NODENAME" = n1 ]; then # live, and no recorded machine
    enter=({enter}) words=()
    while [ $# -gt 0 ]; do
        case $1 in --host-root) shift ;; *) words+=("$1") ;; esac
        shift
    done
    export LAGGARD_NODE=n1
fi
PYTHONPATH={source} exec "${{enter[@]}}" {python} -m laggard "${{words[@]}}"
"""
JOB = """#!/bin/bash
#SBATCH -N 1 --exclude=n3,n4 --requeue --output=out.%j --open-mode=append
echo "ran on $SLURMD_NODENAME"
"""


class Disk:
    """A mount namespace with 16 MiB at /mnt. `enter`: the words that start a command in it."""

    def __init__(self) -> None:
        script = "mount -t tmpfs -o size=16m scratch /mnt && echo mounted && exec sleep infinity"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None and self._holder.stdout.readline() == "mounted\n"
        self.enter = ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt")

    def fill(self) -> None:
        subprocess.run([*self.enter, "sh", "-c", "head -c 16300k /dev/zero >/mnt/checkpoint"], check=True)

    def clear(self) -> None:
        subprocess.run([*self.enter, "rm", "/mnt/checkpoint"], check=True)

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.close()


@pytest.fixture
def agent(disk: Disk, rank_dir: Path, tmp_path: Path) -> Iterator[str]:
    """The agent of n1. Returns its address."""
    profile, config = tmp_path / "profile.json", tmp_path / "agent.json"  # JSON is YAML
    profile.write_text(json.dumps({"only": ["disks"], **EXPECTED}))
    config.write_text(json.dumps({"probe_interval_seconds": 1.0, "ras_interval_seconds": 0}))
    address = f"127.0.0.1:{free_port()}"
    flags = ["--node", "n1", "--rank-dir", str(rank_dir), "--profile", str(profile), "--config", str(config)]
    command = [*disk.enter, sys.executable, "-m", "laggard", "agent", "--web.listen-address", address, *flags]
    with (tmp_path / "agent.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    yield address
    process.terminate()
    process.wait(300)


@pytest.fixture
def gate(cluster: Any, disk: Disk, tmp_path: Path) -> None:
    """n1 is judged as it is, all other nodes as recorded machines that are well."""
    script = GATE.format(enter=" ".join(disk.enter), source=REPOSITORY / "src", python=sys.executable)
    cluster.set_laggard(script)
    (tmp_path / "expect.json").write_text(json.dumps(EXPECTED))
    cluster.configure(mode="enforce", flags=f"--only disks --expect {tmp_path / 'expect.json'}")


def submit(cluster: Any) -> str:
    job = cluster.folder / "job.sh"
    job.write_text(JOB)
    return str(cluster.run("sbatch", "--parsable", str(job)).stdout.strip())


def shown_of_node(page: Any) -> str:
    return " ".join(page.inner_text("#nodes tbody tr").split())


def test_a_full_disk_drains_its_node_and_is_told_and_taken_back(
    cluster: Any,
    disk: Disk,
    agent: str,
    gate: None,
    start_collector: Any,
    alerting: Alerting,
    browser: Any,
    tmp_path: Path,
) -> None:
    settings = {"targets": [agent], "interval_seconds": 0.5, "report_interval_seconds": 0.5}
    (tmp_path / "collector.json").write_text(json.dumps({**settings, "incidents_database": ""}))
    collector = start_collector("--config", str(tmp_path / "collector.json"))
    cluster.configure(collector=collector.url)
    alerting.start(agent=agent, collector=collector.url.removeprefix("http://"))
    collector.wait_until(lambda: verdict_of(collector) == "ok")

    disk.fill()
    collector.wait_until(lambda: verdict_of(collector) == "fail")  # else the cap would not let it be drained yet
    number = submit(cluster)
    assert cluster.wait_for_state("n1", "drain").split(" ", 1)[1].startswith("laggard: DISK_FULL /mnt 99 % used")
    wait_for(lambda: cluster.run("squeue", "-h", "-j", number, "-o", "%T").stdout.strip() == "PENDING")  # queued again
    cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")  # SLURM would wait two minutes
    output = cluster.folder / f"out.{number}"
    assert wait_for(lambda: output.exists() and output.read_text()) == "ran on n2\n"

    browsed = Browsed(browser, collector.url)
    assert "n1" in shown_of_node(browsed.page) and "DISK_FULL" in shown_of_node(browsed.page)
    said = " ".join(browsed.page.inner_text("#findings").split())
    assert "DISK_FULL" in said and "n1 /mnt" in said and "99 % used" in said, said
    alert = alerting.wait_for("LaggardCriticalFinding")
    assert alert["annotations"]["summary"] == f"DISK_FULL on {agent}, /mnt: this node must not get a job."

    disk.clear()
    (cluster.folder / "settings/healthcheck").touch()
    assert cluster.wait_for_state("n1", "idle") == "idle"
    collector.wait_until(lambda: verdict_of(collector) == "ok")
    browsed.page.wait_for_function("() => !document.body.innerText.includes('DISK_FULL')", timeout=120_000)
    alerting.wait_for("LaggardCriticalFinding", "resolved")
    assert browsed.errors == []
    browsed.page.context.close()


def verdict_of(collector: Any) -> str | None:
    verdict: str | None = collector.get("/api/v1/nodes").json()["nodes"][0]["verdict"]
    return verdict
