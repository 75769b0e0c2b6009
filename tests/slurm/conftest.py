"""A real SLURM on this machine: slurmctld and four slurmd, as the current user, with the scripts of deploy/slurm. Each
node is judged as a recorded machine of its own. There is no munge and no accounting: auth/none and cred/none."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.materialise import materialise
from support.paths import REPOSITORY, TESTS
from support.ports import free_ports
from support.waiting import wait_for

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("slurmctld", "slurmd", "scontrol", "sinfo", "srun", "sbatch", "squeue", "scancel")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
TIMEOUT_SECONDS = 180.0
LATE = "drained Prolog error"
"""slurmd tells of a prolog that failed twice: when it has, and with its registration, which drains a node that is not
drained yet. On a busy machine that can come when the next test has resumed the node. Where a test's own job is
rejected, srun says so, and the reason is laggard's."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Its tests share one cluster."""
    item.add_marker(pytest.mark.together("slurm"))


class Cluster:
    """Four nodes. Prologs, epilogs and health checks judge each as the recorded machine in `machines/NODE`. `gpus`:
    whether jobs can ask for some of the eight GPUs of a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus = (folder / "gres.conf").exists()
        self._environ = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, seconds: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=seconds, cwd=self.folder
        )

    def configure(self, **settings: str) -> None:
        """Sets what gate.conf reads from now on: mode, collector, seconds, flags."""
        for name, value in settings.items():
            (self.folder / "settings" / name).write_text(value)

    def set_machine(self, node: str, machine: str) -> Path:
        """From now on `node` is judged as the recorded machine `machine`. Returns the folder that holds it."""
        root = self.folder / "machines" / node
        shutil.rmtree(root, ignore_errors=True)
        materialise(machine, root)
        (root / "proc/sys/kernel/hostname").write_text(f"{node}\n")
        return root

    def state(self, node: str) -> str:
        """Returns `idle`, `drained`, `draining`, ... and the reason, if any: `drained laggard: ...`."""
        text = self.run("sinfo", "-h", "-N", "-p", "debug", "-n", node, "-o", "%T %E").stdout.strip()
        return text.removesuffix(" none")

    def wait_settled(self, node: str) -> str:
        """Waits until no job and no epilog runs on `node`, and returns its state."""
        busy = ("alloc", "mixed", "comp", "draining", "planned")
        return self._wait(node, lambda state: not state.startswith(busy) and state != LATE, "settled")

    def wait_for_state(self, node: str, wanted: str) -> str:
        """Waits until the node's state begins with `wanted`, and returns it."""
        # *: it does not respond yet
        return self._wait(node, lambda state: state.startswith(wanted) and "*" not in state, wanted)

    def _wait(self, node: str, is_so: Callable[[str], bool], wanted: str) -> str:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_so(state := self.state(node)):
            assert time.monotonic() < deadline, f"{node} is {state!r}, not {wanted}\n{self.log(node)}"
            self._resume_where_late(node, state)
            time.sleep(0.1)
        return state

    def _resume_where_late(self, node: str, state: str) -> None:
        if state in (LATE, LATE.replace("Prolog", "Epilog")):
            self.update(node, "State=RESUME")

    def resume_where_late(self, node: str) -> None:
        self._resume_where_late(node, self.state(node))

    def wait_for_health_check(self, node: str) -> None:
        """Waits until a health check of `node` that begins from now on has ended."""
        now, done = time.time(), self.folder / f"checked-{node}"
        wait_for(
            lambda: done.exists() and float(done.read_text()) >= now,
            lambda: f"no health check of {node}\n{self.log(node)}",
            TIMEOUT_SECONDS,
        )

    def refuses(self, *nodes: str, gpus: int = 0) -> bool:
        """Whether a job on `nodes` does not run there. Where a prolog rejects it, srun's exit status is now and then 0
        (22.05, "Job step aborted before step completely launched"): what the job would print decides."""
        return not self.srun(*nodes, gpus=gpus).stdout

    def srun(self, *nodes: str, gpus: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a job on `nodes` that prints the nodes on which it ran."""
        flags = (
            "-w",
            ",".join(nodes),
            "-N",
            str(len(nodes)),
            "--immediate=120",
            *((f"--gres=gpu:{gpus}",) * bool(gpus)),
        )
        command = ("srun", *flags, "sh", "-c", "echo $SLURMD_NODENAME")
        pipe, deadline = subprocess.PIPE, time.monotonic() + TIMEOUT_SECONDS
        with subprocess.Popen(command, env=self._environ, stdout=pipe, stderr=pipe, text=True, cwd=self.folder) as job:
            while True:
                try:
                    output, errors = job.communicate(timeout=2.0)
                    return subprocess.CompletedProcess(command, job.returncode, output, errors)
                except subprocess.TimeoutExpired:
                    for node in nodes:
                        self._resume_where_late(node, self.state(node))
                if time.monotonic() > deadline:
                    job.kill()

    def update(self, node: str, *settings: str) -> None:
        done = self.run("scontrol", "update", f"NodeName={node}", *settings)
        assert done.returncode == 0, done.stderr

    def log(self, node: str) -> str:
        return (self.folder / f"log/slurmd.{node}.log").read_text(errors="replace")[-3000:]

    def reset(self) -> None:
        """Makes all nodes healthy and idle, and the gate as shipped, but without the cap."""
        (self.folder / "settings/disabled").unlink(missing_ok=True)
        checked = (self.folder / "settings/healthcheck").exists()
        (self.folder / "settings/healthcheck").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "memory", ignore_errors=True)
        self.run("scancel", "--state=PENDING,RUNNING,SUSPENDED", f"--user={getpass.getuser()}")
        self.configure(mode="report-only", collector="none", flags="--only disks", seconds="60", checked="checked")
        self.set_laggard(_filled("laggard.sh", source=REPOSITORY / "src", python=sys.executable))
        for node in NODES:
            if checked:  # a check that began before now may drain by the last test's gate.conf
                self.wait_for_health_check(node)
            self.set_machine(node, "plain")
            if self.wait_settled(node).startswith("drain"):
                self.update(node, "State=RESUME")
            self.wait_for_state(node, "idle")

    def set_laggard(self, script: str) -> None:
        new = self.folder / "laggard.new"
        new.write_text(script)
        new.chmod(0o755)
        new.replace(self.folder / "laggard")  # not written in place: the old script may be running


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"needs SLURM ({missing[0]}): scripts/setup --system installs it on Debian")
    folder = tmp_path_factory.mktemp("slurm")
    _write_files(folder)
    cluster = Cluster(folder)
    try:
        _start(cluster)
        yield cluster
    finally:
        _stop(folder)


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    _cluster.reset()
    yield _cluster


def _filled(name: str, **words: object) -> str:
    """The file of tests/data/slurm, with these in the places of their names."""
    return (TESTS / "data" / "slurm" / name).read_text().format(**words)


def _write_files(folder: Path) -> None:
    for name in ("run", "log", "state", "spool", "settings", "machines"):
        (folder / name).mkdir()
    scontrol = shutil.which("scontrol", path=PATH)
    ports = free_ports(1 + len(NODES))
    gpus = _device_files(folder / "dev")
    if gpus:
        (folder / "gres.conf").write_text(f"NodeName=n[1-4] Name=gpu File={folder}/dev/gpu[0-7]\n")
    conf = _filled(
        "slurm.conf",
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        ctld_port=ports[0],
        ports=",".join(map(str, ports[1:])),
        gres="GresTypes=gpu" if gpus else "",
        node_gres="Gres=gpu:8" if gpus else "",
    )
    (folder / "slurm.conf").write_text(conf)
    shutil.copytree(REPOSITORY / "deploy/slurm", folder / "gate")
    (folder / "gate/gate.conf").write_text(_filled("gate.conf", folder=folder, scontrol=scontrol))
    on = folder / "gate/healthcheck-if-on.sh"
    on.write_text(_filled("healthcheck-if-on.sh", folder=folder))
    on.chmod(0o755)
    Cluster(folder).configure(mode="report-only", collector="none", flags="--only disks", seconds="60")


def _device_files(folder: Path) -> bool:
    """Makes stand-ins for /dev/nvidia0 to /dev/nvidia7. SLURM accepts character devices alone, and only root can make
    them. Returns whether they are made."""
    folder.mkdir()
    try:
        for number in range(8):
            os.mknod(folder / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(195, number))
    except PermissionError:
        return False
    return True


def _start(cluster: Cluster) -> None:
    conf = str(cluster.folder / "slurm.conf")
    commands = [["slurmctld", "-f", conf, "-c"], *(["slurmd", "-f", conf, "-N", node] for node in NODES)]
    for command in commands:
        done = cluster.run(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    for node in NODES:
        cluster.wait_for_state(node, "idle")


def _stop(folder: Path) -> None:
    pids = [int(text) for path in sorted((folder / "run").glob("*.pid")) if (text := path.read_text().strip())]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 120
    for pid in pids:
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
