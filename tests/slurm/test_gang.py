"""The gate of a whole job in a real SLURM: its nodes meet by SLURM's environment alone, in a step and in prologs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from support.namespaces import Namespaces, can_make
from support.paths import REPOSITORY
from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LONG = 600.0


IN_STEP = """#!/bin/bash
export MASTER_ADDR=10.77.0.2 OMP_NUM_THREADS=1 PYTHONPATH={source}
enter=({spaces})
[ "$SLURMD_NODENAME" = n4 ] && exit 0
ip netns exec ${{enter[SLURM_PROCID]}} {python} -m laggard healthcheck --active --gang --only disks --no-agent \
    --gate enforce --collector none --join-seconds 25 --token-file {folder}/step-token > {folder}/said-$SLURMD_NODENAME
echo $? > {folder}/status-$SLURMD_NODENAME
"""


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
        done = cluster.run("srun", "-w", "n1,n2,n3,n4", "-N4", "-n4", str(folder / "step.sh"), seconds=LONG)
    assert done.returncode == 0, done.stderr  # of the script
    statuses = {node: (folder / f"status-{node}").read_text().strip() for node in ("n1", "n2", "n3")}
    assert statuses == {"n1": "0", "n2": "0", "n3": "1"}, [said(folder, node) for node in statuses]
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
        "sbatch", "--wait", *words, exported, str(examples / "train.sbatch"), str(examples / "ddp.py"), seconds=LONG
    )
    assert done.returncode == 0, done.stderr + (folder / "job.out").read_text()
    for rank in range(2):
        lines = [json.loads(line) for line in (folder / f"recording/rank-{rank}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if line.get("kind") == "step"] == list(range(10))
