"""An operator repairs a node, resumes it by hand, and laggard does not take that back: in a real SLURM."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FULL = "drained laggard: DISK_FULL / 99 % used"
XID = "drained laggard: GPU_XID GPU 0000:9b:00.0 Xid 79"


def log_xid(machine: Path, seconds_ago: float) -> None:
    """The recorded machine has been up for a day, it is now, and the only Xid in the kernel's log is so old."""
    (machine / "laggard/facts.json").write_text(json.dumps({"time": time.time()}))
    (machine / "proc/uptime").write_text("86400.00 1.00\n")
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
    (machine / "laggard/kmsg").write_text(f"3,0,{round((86400 - seconds_ago) * 1e6)},-;{line}\n")


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
    log_xid(machine, seconds_ago=3600)
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
    log_xid(machine, seconds_ago=0)
    assert cluster.wait_for_state("n3", "drained").startswith(XID)
