"""An operator repairs a node, resumes it by hand, and laggard does not take that back: in a real SLURM."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.machines import log_xid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FULL = "drained laggard: DISK_FULL / 99 % used"
XID = "drained laggard: GPU_XID GPU 0000:9b:00.0 Xid 79"


def run_job(cluster: Any, node: str) -> None:
    done = cluster.srun(node)
    assert (done.returncode, done.stdout.split()) == (0, [node]), f"{done.stderr}\n{cluster.log(node)}"
    assert cluster.wait_settled(node) == "idle"


def test_ten_rounds_of_fault_repair_and_resume(cluster: Any) -> None:
    """The job right after the resume runs, and so does the next one."""
    cluster.configure(mode="enforce")
    for _ in range(10):
        cluster.set_machine("n2", "disk_full")
        assert cluster.refuses("n2")
        assert cluster.wait_settled("n2").startswith(FULL)
        cluster.set_machine("n2", "plain")
        cluster.update("n2", "State=RESUME")
        run_job(cluster, "n2")
    run_job(cluster, "n2")


def test_what_the_kernel_logged_before_the_resume_drains_no_more(cluster: Any) -> None:
    """Neither at jobs nor at health checks, until the kernel logs it again."""
    machine = cluster.set_machine("n3", "gpu_xid")
    log_xid(machine, -3600)
    cluster.configure(mode="enforce", flags="--only gpu_xid")
    assert cluster.refuses("n3")
    assert cluster.wait_settled("n3").startswith(XID)
    cluster.update("n3", "State=RESUME")
    for _ in range(3):
        run_job(cluster, "n3")
    (cluster.folder / "settings/healthcheck").touch()
    cluster.wait_for_health_check("n3")
    assert cluster.state("n3") == "idle"
    time.sleep(1.1)  # SLURM tells when the node was resumed in whole seconds
    log_xid(machine, 0)
    assert cluster.wait_for_state("n3", "drained").startswith(XID)
