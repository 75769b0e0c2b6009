"""The gate in a real SLURM: which jobs start, and which nodes are drained."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from laggard.gate.slurm import NoSuchNode, Slurm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FULL = "drained laggard: DISK_FULL / 99 % used"


def hang(machine: Path) -> None:
    """Makes a read of the mount table hang: a pipe without a writer blocks its reader, as a dead file server does."""
    (machine / "proc/self/mounts").unlink()
    os.mkfifo(machine / "proc/self/mounts")


def test_a_node_that_slurm_does_not_have_is_told_from_a_slurm_that_is_away(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = shutil.which("scontrol", path="/usr/bin:/usr/local/bin:/bin") or ""
    monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
    with pytest.raises(NoSuchNode, match="Node n9 not found"):
        Slurm("n9", scontrol).show()


@pytest.mark.spine
def test_enforcing_rejects_the_job_and_drains_with_the_reason(cluster: Any) -> None:
    cluster.configure(mode="enforce")
    cluster.set_machine("n2", "disk_full")
    rejected = cluster.srun("n1", "n2")
    assert rejected.returncode != 0 and "n1" not in rejected.stdout.split()  # nothing ran on any node of the job
    assert cluster.wait_settled("n2").startswith(FULL)
    well = cluster.srun("n1", "n3")
    assert (well.returncode, sorted(well.stdout.split())) == (0, ["n1", "n3"]), well.stderr
    assert cluster.wait_settled("n1") == "idle"


def test_a_rejected_batch_job_is_queued_again(cluster: Any) -> None:
    cluster.configure(mode="enforce")
    cluster.set_machine("n1", "disk_full")
    job = cluster.folder / "job.sh"
    job.write_text("#!/bin/sh\n#SBATCH -N 1\n#SBATCH -w n1\n#SBATCH -o out.%j\nsleep 1; echo ran\n")
    number = cluster.run("sbatch", "--parsable", str(job)).stdout.strip()
    cluster.wait_for_state("n1", "drain")
    assert cluster.wait_settled("n1").startswith(FULL)
    assert not (cluster.folder / f"out.{number}").exists()
    state = cluster.run("squeue", "-h", "-j", number, "-o", "%T").stdout.strip()
    assert state == "PENDING", "the job is to be queued again, not held and not lost"


def test_a_hung_probe_delays_no_job(cluster: Any) -> None:
    """Nor does SLURM wait for the end of the prolog's output."""
    cluster.configure(mode="enforce")
    hang(cluster.set_machine("n1", "plain"))
    assert cluster.srun("n1").returncode == 0  # else SLURM's own limit on a prolog drains the node
    assert cluster.wait_settled("n1") == "idle"


def test_the_health_check_drains_and_resumes(cluster: Any) -> None:
    (cluster.folder / "settings/healthcheck").touch()
    cluster.configure(mode="enforce")
    cluster.set_machine("n3", "disk_full")
    assert cluster.wait_for_state("n3", "drained").startswith(FULL)
    hang(cluster.set_machine("n3", "plain"))  # an unknown verdict is no reason to resume
    cluster.wait_for_health_check("n3")
    assert cluster.state("n3").startswith(FULL)
    cluster.set_machine("n3", "plain")
    cluster.wait_for_state("n3", "idle")


def test_a_job_is_judged_by_the_gpus_it_was_given(cluster: Any) -> None:
    """GPU 5 of n1 has uncorrected memory errors; jobs get the lowest numbers first."""
    if not cluster.gpus:
        pytest.skip("needs root, to make device files for SLURM's GPUs")
    cluster.configure(mode="enforce", flags="--only gpu_count --only gpu_ecc")
    for node in ("n1", "n2"):
        cluster.set_machine(node, "hgx_h100_gpus")
    cluster.set_machine("n1", "gpu_ecc")
    some = cluster.srun("n1", gpus=4)
    assert some.returncode == 0, some.stderr
    assert cluster.wait_settled("n1") == "idle"
    assert cluster.refuses("n1", gpus=8)
    assert cluster.wait_settled("n1").startswith("drained laggard: GPU_ECC_UNCORRECTED GPU 5")
