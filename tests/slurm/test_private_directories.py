"""SLURM's job_container/tmpfs, which gives each job a /tmp and a /dev/shm of its own: where a job's rank files lie, and
whether the agent sees them.

A second SLURM of one node, this machine in a mount namespace with an empty /run and /dev/shm. Its files are in
/var/tmp, which jobs have in common with it.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.alerting import wait_for
from support.paths import REPOSITORY, TESTS
from support.ports import free_port, free_ports

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
PLUGIN = next(Path("/usr/lib").glob("*/slurm-wlm/job_container_tmpfs.so"), None)
HIDDEN = tuple(str(path) for path in (REPOSITORY, sys.prefix) if str(path).startswith(("/tmp/", "/dev/shm/")))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mount namespaces"),
    pytest.mark.skipif(PLUGIN is None, reason="needs SLURM's job_container_tmpfs: Debian's slurm-wlm has it"),
    pytest.mark.skipif(bool(HIDDEN), reason=f"a job with a /tmp of its own would not find {HIDDEN}"),
]

RANKS = "/run/laggard/ranks"
SLURM_CONF = """
ClusterName=laggardprivate
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
JobContainerType=job_container/tmpfs
PrologFlags=Contain
MailProg=/bin/true
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=2000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES State=UP
"""
JOB = """
import json, os, subprocess, sys
from laggard.kit.environment import rank_dir
identity = {"job_id": os.environ["SLURM_JOB_ID"], "rank": 0, "local_rank": 0, "world_size": 1, "node": "n1",
            "gpu": None, "attempt": 0}
os.execv(sys.executable, [sys.executable, sys.argv[1], rank_dir(os.environ), "0", json.dumps(identity), "[]"])
"""
"""A rank writes where the hooks would, by their own rule."""


class Node:
    """The machine in its namespace, with slurmctld, slurmd and an agent. `url`: the agent's."""

    def __init__(self, folder: Path, holder: int) -> None:
        self.folder, self._holder = folder, holder
        self.url = ""
        self._environ = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf"), "SLURMD_NODENAME": "n1"}
        self._environ |= {"PYTHONPATH": str(REPOSITORY / "src"), "LAGGARD_STATE_DIR": str(folder / "laggard")}
        self._environ.pop("LAGGARD_RANK_DIR", None)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Whatever creates a mount namespace stays on one CPU: some kernels (seen with 6.18) number namespaces per CPU,
        and let no file show one whose number is lower than its creator's."""
        words = ["nsenter", f"--mount=/proc/{self._holder}/ns/mnt", f"--wd={self.folder}", *ON_ONE_CPU, *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=self._environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command) as process:
            output, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    @contextlib.contextmanager
    def agent(self) -> Iterator[None]:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        laggard = (sys.executable, "-m", "laggard", "agent")
        process = self.start(*laggard, "--node", "n1", "--web.listen-address", f"127.0.0.1:{port}")
        wait_for(lambda: ask(self.url + "/-/ready") is not None)
        yield
        process.terminate()
        process.communicate(timeout=300)

    @contextlib.contextmanager
    def rank(self) -> Iterator[str]:
        """A job of one rank, while it runs. Returns the path of its rank file, as the job sees it."""
        writer = str(TESTS / "support" / "write_rank.py")
        job = self.start("srun", "-N1", "--unbuffered", sys.executable, "-c", JOB, writer)
        assert job.stdin is not None and job.stdout is not None and job.stderr is not None
        path = job.stdout.readline().strip()
        assert path, job.stderr.read() + self.log()
        yield path
        job.stdin.write("finish\n")
        job.communicate(timeout=300)

    def ranks(self) -> list[Any]:
        """What the agent has of ranks that live."""
        rows = json.loads(ask(self.url + "/api/v1/ranks") or "{}")["ranks"]
        return [row for row in rows if row["state"] not in ("finished", "died")]

    def check_sh(self) -> str:
        return self.run(str(self.folder / "gate/check.sh")).stdout

    def log(self) -> str:
        return (self.folder / "log/slurmd.log").read_text()[-3000:]


ON_ONE_CPU = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
OWN = f"mount -t tmpfs run /run && mount -t tmpfs -o mode=1777 shm /dev/shm && install -d -m 1777 {RANKS}"


def ask(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return None


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="laggard-private-", dir="/var/tmp"))
    script = f"{OWN} && echo mounted && exec sleep infinity"
    command = [*ON_ONE_CPU, "unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "mounted\n"
        made = Node(folder, holder.pid)
        _start_slurm(made)
        yield made
    finally:
        _stop_slurm(folder)
        holder.kill()
        holder.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _start_slurm(node: Node) -> None:
    folder = node.folder
    for name in ("run", "log", "state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    conf = SLURM_CONF.format(folder=folder, host=host, user=getpass.getuser(), ports=free_ports(2))
    (folder / "slurm.conf").write_text(conf)
    (folder / "job_container.conf").write_text(f"AutoBasePath=true\nBasePath={folder}/jobs\n")
    shutil.copytree(REPOSITORY / "deploy/slurm", folder / "gate")
    laggard = folder / "laggard.sh"
    laggard.write_text(f'#!/bin/bash\nexec {sys.executable} -m laggard "$@"\n')
    laggard.chmod(0o755)
    with (folder / "gate/gate.conf").open("a") as file:
        file.write(f"LAGGARD={laggard}\nCOLLECTOR=none\n")
    for command in (["slurmctld", "-c"], ["slurmd", "-N", "n1"]):
        done = node.run(command[0], "-f", str(folder / "slurm.conf"), *command[1:])
        assert done.returncode == 0, done.stderr
    wait_for(lambda: "idle" in node.run("sinfo", "-h", "-o", "%T").stdout)


def _stop_slurm(folder: Path) -> None:
    pids = [int(path.read_text()) for path in sorted((folder / "run").glob("*.pid"))]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)


def test_the_agent_sees_a_job_with_private_directories_by_the_shared_one(node: Node) -> None:
    with node.agent(), node.rank() as path:
        assert path.startswith(f"{RANKS}/")
        (row,) = node.ranks()
        assert row["job_id"].isdecimal() and (row["rank"], row["node"]) == (0, "n1")
    assert "agent sees no ranks" not in node.check_sh()


def test_without_the_shared_directory_it_sees_none_and_check_sh_says_why(node: Node) -> None:
    assert node.run("rm", "-r", RANKS).returncode == 0
    try:
        with node.agent(), node.rank() as path:
            assert path.startswith("/dev/shm/laggard/")
            assert node.ranks() == []
        said = node.check_sh()
    finally:
        assert node.run("install", "-d", "-m", "1777", RANKS).returncode == 0
    assert (
        f"gate: there is no {RANKS}, and JobContainerType=job_container/tmpfs gives each job a /dev/shm/laggard of its "
        "own, so that the agent sees no ranks: install deploy/systemd/tmpfiles.d/laggard.conf and run "
        "`systemd-tmpfiles --create`\n"
    ) in said
