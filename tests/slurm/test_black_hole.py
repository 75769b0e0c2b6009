"""Jobs that fail on one node, or fill its disk, in a real SLURM: which nodes are drained."""

import json
import os
import pwd
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agents import let_others_enter
from support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NODES = ("n1", "n2", "n3", "n4")
USERS = tuple(it.pw_uid for it in pwd.getpwall() if it.pw_uid)[:7]
"""sbatch takes those that the system knows."""
JOB = """#!/bin/sh
echo "$SLURMD_NODENAME" >> {folder}/started
[ "$SLURMD_NODENAME" != n1 ] || [ -e {folder}/mended ] || exit 1
sleep 3
"""


@pytest.fixture
def nodes(cluster: Any) -> Iterator[Any]:
    """Nodes whose scripts have a folder for what they tell each other. All probes but `jobs` are well."""
    for node in NODES:
        (cluster.folder / f"run-{node}").mkdir()
    cluster.configure(mode="enforce", flags="--only disks --only jobs")
    yield cluster
    for node in NODES:
        cluster.wait_settled(node)
        shutil.rmtree(cluster.folder / f"run-{node}")


@pytest.fixture
def folder(nodes: Any) -> Iterator[Path]:
    """Where users' jobs tell on which node they began; job.sh fails at once on n1, until n1 is mended."""
    if os.geteuid():
        pytest.skip("needs root, to submit as several users")
    let_others_enter(nodes.folder)  # there slurmd keeps their scripts
    made = Path(tempfile.mkdtemp(prefix="laggard-jobs-"))
    made.chmod(0o777)
    for name, text in (("started", ""), ("job.sh", JOB.format(folder=made))):
        (made / name).write_text(text)
        (made / name).chmod(0o777)
    yield made
    for user in USERS:
        nodes.run("scancel", f"--user={user}")
    wait_for(
        lambda: not nodes.run("squeue", "-h", "-t", "all", "-o", "%T").stdout.count("RUNNING"), lambda: "jobs run", 60.0
    )
    shutil.rmtree(made)


def submit(cluster: Any, folder: Path, user: int, *words: str) -> None:
    flags = (f"--uid={user}", "--chdir=/", "-o", "/dev/null", "-N1", "-c8", "--no-requeue", *words)
    done = cluster.run("sbatch", *flags, str(folder / "job.sh"))
    assert done.returncode == 0, done.stderr


def started(folder: Path) -> Counter[str]:
    return Counter((folder / "started").read_text().split())


def test_a_node_on_which_each_job_dies_takes_three_jobs_of_the_queue(nodes: Any, folder: Path) -> None:
    """28 jobs of a whole node by seven users. Its probes find nothing."""
    for number in range(28):
        submit(nodes, folder, USERS[number % len(USERS)])
    assert nodes.wait_for_state("n1", "drained").startswith("drained laggard: JOBS_FAIL_AT_ONCE jobs of 3 users failed")
    wait_for(lambda: started(folder).total() >= 15, lambda: f"{started(folder)}\n{nodes.log('n2')}", 120.0)
    assert started(folder)["n1"] <= 3 and len(started(folder)) == 4, started(folder)
    assert [nodes.state(node).split()[0] for node in NODES[1:] if nodes.state(node).startswith("dr")] == []


def test_the_collector_learns_of_it_in_time_and_drains_it_under_its_cap(
    nodes: Any, folder: Path, start_agent: Any, start_collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents that look once a minute, and a collector that asks them each half a minute: as shipped."""
    addresses = []
    for node in NODES:
        run = nodes.folder / f"run-{node}"
        (run / "agent").mkdir()
        monkeypatch.setenv("LAGGARD_GATE_JOBS", str(run / "gate-jobs"))
        config = tmp_path / f"{node}.json"
        config.write_text(json.dumps({"gate_socket": str(run / "agent/gate.sock")}))
        addresses.append(start_agent("--config", str(config), node=node).url)
    monkeypatch.delenv("LAGGARD_GATE_JOBS")
    collector = start_collector(watches=addresses)
    collector.wait_until(lambda: collector.get("/api/v1/drains", node="n1").json()["asker_is_well"])
    nodes.configure(collector=collector.url, seconds="15")
    for number in range(28):
        submit(nodes, folder, USERS[number % len(USERS)])
    assert nodes.wait_for_state("n1", "drained").startswith("drained laggard: JOBS_FAIL_AT_ONCE jobs of 3 users failed")
    wait_for(lambda: started(folder).total() >= 15, lambda: f"{started(folder)}\n{nodes.log('n2')}", 120.0)
    assert started(folder)["n1"] <= 3, started(folder)


def test_one_users_broken_program_drains_nobody_and_a_resume_is_not_undone(nodes: Any, folder: Path) -> None:
    for _ in range(5):
        submit(nodes, folder, USERS[0], "-w", "n1")
    wait_for(lambda: started(folder)["n1"] == 5, lambda: f"not all began: {started(folder)}", 180.0)
    assert nodes.wait_settled("n1") == "idle", "one user's program fails"
    for user in USERS[1:3]:
        submit(nodes, folder, user, "-w", "n1")
    nodes.wait_for_state("n1", "drained")
    nodes.update("n1", "State=RESUME")
    submit(nodes, folder, USERS[3], "-w", "n1")

    def began() -> bool:
        nodes.resume_where_late("n1")
        return started(folder)["n1"] == 8

    wait_for(began, lambda: f"{nodes.state('n1')}: drained again\n{nodes.log('n1')}", 120.0)
    assert nodes.wait_settled("n1") == "idle", "one failure is none of those that somebody knew of"


def fill(machine: Path, uid: int) -> Path:
    """The files of this user, whose job lives there, fill the machine's /. Returns the machine's /proc."""
    for pid, name, parent, user, folder in ((700, "slurmstepd", 1, 0, "slurm"), (811, "sh", 700, uid, "user/task_0")):
        place = machine / f"proc/{pid}"
        place.mkdir(parents=True)
        (place / "comm").write_text(f"{name}\n")
        (place / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{user}\t{user}\t{user}\t{user}\n")
        (place / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_41/step_0/{folder}\n")
    facts = json.loads((machine / "laggard/facts.json").read_text())
    facts["usages"] = {"/": {"bytes_by_user": {str(uid): 10**12}, "complete": True, "for_all": True}}
    (machine / "laggard/facts.json").write_text(json.dumps(facts))
    return machine / "proc"


def test_a_job_that_fills_its_scratch_drains_nobody_until_it_has_ended(nodes: Any, folder: Path) -> None:
    """Nor does its epilog: the site cleans up after it."""
    flags = ("-w", "n1", "-c", "1")
    until = f"until [ -e {folder}/mended ]; do sleep 0.1; done"
    (folder / "job.sh").write_text(f"#!/bin/sh\necho n1 >> {folder}/started; {until}\n")
    done = nodes.run("sbatch", f"--uid={USERS[0]}", "--chdir=/", "-o", "/dev/null", *flags, str(folder / "job.sh"))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: started(folder)["n1"] == 1, lambda: "the job does not begin", 120.0)
    wait_for(lambda: "start" in (nodes.folder / "run-n1/gate-jobs").read_text(), lambda: "its start is not noted", 60.0)
    processes = fill(nodes.set_machine("n1", "disk_full"), USERS[0])
    other = nodes.srun("n1")
    assert other.stdout.split() == ["n1"], f"another user's job was rejected: {other.stderr}\n{nodes.log('n1')}"
    for pid in ("700", "811"):
        shutil.rmtree(processes / pid)
    (folder / "mended").touch()
    assert nodes.wait_settled("n1") == "idle", "its own epilog drained the node"
    for path in (nodes.folder / "run-n1").iterdir():  # as if the site had had its time
        path.unlink()
    assert nodes.refuses("n1"), "nobody has cleaned up"
    assert nodes.wait_settled("n1").startswith("drained laggard: user: DISK_FULL")


def test_roots_files_are_the_machines_also_where_root_runs_jobs(nodes: Any, folder: Path) -> None:
    assert nodes.srun("n1").stdout.split() == ["n1"]
    wait_for(lambda: "end" in (nodes.folder / "run-n1/gate-jobs").read_text(), lambda: "its end is not noted", 60.0)
    processes = fill(nodes.set_machine("n1", "disk_full"), 0)
    for pid in ("700", "811"):
        shutil.rmtree(processes / pid)
    assert nodes.refuses("n1"), nodes.log("n1")
    assert nodes.wait_settled("n1").startswith("drained laggard: DISK_FULL")
