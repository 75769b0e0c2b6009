"""Rings on idle nodes in a real SLURM: nobody waits for them, and each node is measured once in a period."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.paths import REPOSITORY
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LONG = 300.0

RING = """#!/bin/bash
export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 PYTHONPATH={source}
exec {python} -m laggard "$@"
"""
MEASURES = "#!/bin/bash\necho measured\n"


class IdleRings:
    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.state = folder / "state"
        self.laggard = folder / "laggard"
        shutil.copytree(REPOSITORY / "deploy/slurm", folder / "slurm")
        self.configure("IDLE_RINGS=on")

    def configure(self, *lines: str) -> None:
        text = "\n".join((*lines, f"LAGGARD={self.laggard}", f"RING_STATE={self.state}", ""))
        (self.folder / "slurm/idle-rings.conf").write_text(text)

    def set_laggard(self, script: str) -> None:
        self.laggard.write_text(script)
        self.laggard.chmod(0o755)

    def submit(self) -> list[str]:
        """Returns the numbers of the jobs that were submitted."""
        done: subprocess.CompletedProcess[str] = self.cluster.run(str(self.folder / "slurm/idle-rings.sh"))
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def jobs(self) -> str:
        return str(self.cluster.run("squeue", "-h", "-n", "laggard-ring", "-o", "%T").stdout).strip()

    def measured(self) -> list[str]:
        return sorted(path.name for path in (self.state / "measured").iterdir())

    def workers(self) -> list[psutil.Process]:
        """The ranks of rings that were started by this test's laggard."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "laggard.rings.worker.main" in process.cmdline() and process.environ().get("LAGGARD_TEST"):
                    found.append(process)
        return [process for process in found if process.environ()["LAGGARD_TEST"] == str(self.folder)]


@pytest.fixture
def rings(cluster: Any, tmp_path: Path) -> Iterator[IdleRings]:
    made = IdleRings(cluster, tmp_path)
    yield made
    cluster.run("scancel", "-n", "laggard-ring")


def test_as_shipped_nothing_is_submitted(rings: IdleRings) -> None:
    shutil.copy(REPOSITORY / "deploy/slurm/idle-rings.conf", rings.folder / "slurm/idle-rings.conf")
    assert rings.submit() == [] and not rings.state.exists()


def test_each_idle_node_is_measured_once_in_a_period(rings: IdleRings) -> None:
    rings.set_laggard(MEASURES)
    assert len(rings.submit()) == 1
    wait_for(lambda: not rings.jobs(), rings.jobs)
    assert rings.measured() == ["n1", "n2", "n3", "n4"]
    assert rings.submit() == []
    long_ago = time.time() - 25 * 3600
    os.utime(rings.state / "measured/n3", (long_ago, long_ago))
    before = {node: (rings.state / "measured" / node).stat().st_mtime for node in rings.measured()}
    rings.configure("IDLE_RINGS=on", "RING_NODES=3")
    assert len(rings.submit()) == 1
    wait_for(lambda: not rings.jobs(), rings.jobs)
    again = {node for node in before if (rings.state / "measured" / node).stat().st_mtime > before[node]}
    assert "n3" in again and len(again) == 3  # with two others, without whom nothing could be told


def test_a_ring_that_could_not_tell_is_measured_again(rings: IdleRings) -> None:
    rings.set_laggard("#!/bin/bash\nexit 2\n")
    assert len(rings.submit()) == 1
    wait_for(lambda: not rings.jobs(), rings.jobs)
    assert rings.measured() == [] and len(rings.submit()) == 1


def test_a_job_takes_the_nodes_at_once_and_nothing_of_the_ring_is_left(rings: IdleRings) -> None:
    script = RING.format(source=REPOSITORY / "src", python=sys.executable)
    rings.set_laggard(script.replace("export ", f"export LAGGARD_TEST={rings.folder} "))
    assert len(rings.submit()) == 1
    wait_for(lambda: len(rings.workers()) == 4, lambda: rings.cluster.log("n1"))
    assert rings.submit() == []  # one round at a time
    job = rings.cluster.srun("n1", "n2")
    assert (job.returncode, sorted(job.stdout.split())) == (0, ["n1", "n2"]), job.stderr
    wait_for(lambda: not rings.workers() and not rings.jobs(), lambda: f"{rings.workers()} {rings.jobs()}")
    assert rings.measured() == []
    assert [rings.cluster.wait_for_state(node, "idle") for node in ("n1", "n2")] == ["idle", "idle"]
