"""The gate in a real SLURM: it rejects, requeues, drains up to the cap, and sees what was resumed by hand."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.machines import log_xid

from laggard.cli import main
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
