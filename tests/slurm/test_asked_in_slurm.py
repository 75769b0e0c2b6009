"""Prologs of a real SLURM that ask the agent, and many of them at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gate_agent import agent_that_says

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REJECTS = """#!/bin/bash
case "$*" in *"--profile prolog"*) echo "$*" >>{folder}/prologs; sleep {seconds}; echo "gate: {says}" ;; esac
"""


@pytest.fixture
def asking(cluster: Any) -> Iterator[Path]:
    """Prologs of n1 ask the agent in this folder, as in /run/laggard, which is gone at the end."""
    run = cluster.folder / "run-n1"
    (run / "agent").mkdir(parents=True)
    for path in (run, run / "agent"):
        path.chmod(0o755)
    (cluster.folder / "settings/asks").touch()
    (cluster.folder / "prologs").unlink(missing_ok=True)
    yield run
    (cluster.folder / "settings/asks").unlink()
    shutil.rmtree(run)


def write_ticket(run: Path) -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    (run / "gate-ticket").write_text(f"gate/1 prolog {'ab' * 16} {int(uptime * 100)}\n")


def test_a_job_starts_on_the_agents_word_and_is_rejected_on_laggards_alone(cluster: Any, asking: Path) -> None:
    cluster.configure(mode="enforce")
    cluster.set_laggard(REJECTS.format(folder=cluster.folder, seconds=0, says="reject"))
    write_ticket(asking)
    with agent_that_says(asking / "agent/gate.sock", b"PASS 5\n") as agent:
        done = cluster.srun("n1")
    assert (done.returncode, done.stdout) == (0, "n1\n"), done.stderr
    assert len(agent.asked) == 1 and not (cluster.folder / "prologs").exists()
    assert cluster.wait_settled("n1") == "idle"
    with agent_that_says(asking / "agent/gate.sock", b"CHECK critical\n"):
        assert cluster.refuses("n1")
    assert len((cluster.folder / "prologs").read_text().splitlines()) == 1


def test_jobs_that_start_at_once_are_judged_once(cluster: Any, asking: Path) -> None:
    """Without an agent. A second check is for those who came while the first ran, where it rejects; this one passes."""
    cluster.configure(seconds="110")
    cluster.set_laggard(REJECTS.format(folder=cluster.folder, seconds=3, says="pass, nothing critical"))
    job = cluster.folder / "one-of-many.sh"
    job.write_text("#!/bin/sh\n#SBATCH -N 1\n#SBATCH -w n1\n#SBATCH -c 1\n#SBATCH -o out.%j\necho ran\n")
    numbers = [cluster.run("sbatch", "--parsable", str(job)).stdout.strip() for _ in range(8)]
    deadline = time.monotonic() + 300
    while not all((cluster.folder / f"out.{number}").exists() for number in numbers):
        assert time.monotonic() < deadline, cluster.log("n1")
        time.sleep(0.2)
    assert cluster.wait_settled("n1") == "idle"
    assert 1 <= len((cluster.folder / "prologs").read_text().splitlines()) < 8
