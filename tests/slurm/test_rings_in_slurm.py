"""Rings in a real SLURM: of a job's nodes in the gate, and of idle nodes until a job comes."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.namespaces import Namespaces, can_make
from support.paths import DATA, REPOSITORY
from support.ports import free_port
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONGER = 600.0

IN_STEP = (DATA / "slurm" / "in_step.sh").read_text()


def said(folder: Path, node: str) -> str:
    return (folder / f"said-{node}").read_text()


def test_only_the_slow_node_fails_and_who_does_not_come_is_named(cluster: Any) -> None:
    """Four tasks of a step: n3's network has a twentieth of the others' rate, n4's laggard never starts."""
    if not can_make():
        pytest.skip("needs root and network namespaces")
    folder = cluster.folder
    with Namespaces(4, "200mbit") as spaces:
        spaces.shape(2, "10mbit")
        names = shlex.join(spaces.enter(node)[-1] for node in range(4))
        script = IN_STEP.format(source=REPOSITORY / "src", python=sys.executable, spaces=names, folder=folder)
        (folder / "step.sh").write_text(script)
        (folder / "step.sh").chmod(0o755)
        (folder / "step-token").write_text("secret")
        (folder / "step-token").chmod(0o600)
        done = cluster.run("srun", "-w", "n1,n2,n3,n4", "-N4", "-n4", str(folder / "step.sh"), seconds=LONGER)
    assert done.returncode == 0, done.stderr  # of the script
    statuses = {node: (folder / f"status-{node}").read_text().strip() for node in ("n1", "n2", "n3")}
    assert statuses == {"n1": "0", "n2": "0", "n3": "1"}, (done.stderr, [said(folder, node) for node in statuses])
    assert said(folder, "n3").startswith("laggard: RING_SLOW node 2 (n3) exchanges ")
    for node in ("n1", "n2"):
        assert "gang: node 3 (n4) did not come\n" in said(folder, node)
        assert "gang: RING_SLOW node 2 (n3) exchanges " in said(folder, node)


def test_the_example_job_trains_with_the_hooks(cluster: Any) -> None:
    """Two nodes that torchrun joins; without the gate, which would judge this machine."""
    folder, examples = cluster.folder, REPOSITORY / "docs" / "examples"
    settings = {
        "LAGGARD_GATE": "off",
        "LAGGARD_RECORD_DIR": str(folder / "recording"),
        "LAGGARD_RANK_DIR": str(folder / "ranks"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    words = ["-w", "n1,n2", "--gpus-per-node=0", f"--output={folder}/job.out", f"--chdir={folder}"]
    exported = "--export=" + ",".join(f"{name}={value}" for name, value in settings.items())
    done = cluster.run(
        "sbatch",
        "--wait",
        *words,
        exported,
        str(examples / "train.sbatch"),
        str(examples / "ddp.py"),
        seconds=LONGER,
    )
    assert done.returncode == 0, done.stderr + (folder / "job.out").read_text()
    for rank in range(2):
        lines = [json.loads(line) for line in (folder / f"recording/rank-{rank}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line.get("kind") == "step"] == list(range(10))


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
