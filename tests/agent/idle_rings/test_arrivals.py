"""What counts as a job's arrival, and what does not."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.agent.idle_rings.ring import (
    Arrivals,
    GpuProcesses,
    GpuWatch,
    NvmlUnreadable,
    processes_of_session,
    session_of,
)
from laggard.agent.ranks.reader import RankFiles


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process in a session of its own."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process.pid
    process.kill()
    process.communicate()


def arrivals(tmp_path: Path, find: Callable[[], Any] = lambda: None) -> Arrivals:
    """Looks at processes of its own: on this machine other tests may run a job of SLURM."""
    proc = tmp_path / "proc"
    proc.mkdir(exist_ok=True)
    return Arrivals(RankFiles(str(tmp_path / "ranks"), "n0"), GpuWatch(find), str(proc))


def fake_process(proc: Path, pid: int, name: str, command: str, uid: int = 0) -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    (proc / str(pid) / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")


def test_a_step_of_slurm_is_a_job_and_the_keeper_of_its_cgroup_is_none(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    fake_process(proc, 10, "slurmd", "/usr/sbin/slurmd -D")
    fake_process(proc, 11, "slurmstepd", "/usr/sbin/slurmstepd infinity")
    node = arrivals(tmp_path)
    assert node.look() == ""
    fake_process(proc, 12, "slurmd", "/usr/sbin/slurmd -D")  # the fork, before it is the step
    assert node.look() == ""
    fake_process(proc, 12, "slurmstepd", "slurmstepd: [17.batch]")
    assert node.look() == "a job of SLURM (process 12, slurmstepd)"


def test_a_users_process_of_that_name_is_no_step_and_its_command_is_not_read(tmp_path: Path) -> None:
    """A FIFO stands for a command in memory that somebody holds up: who opens it waits for ever."""
    fake_process(tmp_path / "proc", 12, "slurmstepd", "", uid=1001)
    (tmp_path / "proc/12/cmdline").unlink()
    os.mkfifo(tmp_path / "proc/12/cmdline")
    assert arrivals(tmp_path).look() == ""


def test_a_users_process_that_is_named_like_a_service_is_a_job(tmp_path: Path, sleeper: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become an ordinary user")
    script = "import ctypes, os; os.setgid(65534); os.setuid(65534); ctypes.CDLL(None).prctl(15, b'nvidia-persiste'); "
    words = [sys.executable, "-c", script + "print(1, flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        assert arrivals(tmp_path, lambda: {process.pid}).look() == f"process {process.pid} (nvidia-persiste) on a GPU"
        process.kill()


def test_a_process_on_a_gpu_is_a_job_unless_it_is_the_rings_or_a_service(tmp_path: Path, sleeper: int) -> None:
    node = arrivals(tmp_path, lambda: {sleeper})
    assert node.look(session_of(sleeper)) == ""
    assert node.look().startswith(f"process {sleeper} (") and node.look(1).endswith("on a GPU")
    service = Arrivals(
        RankFiles(str(tmp_path), "n0"), GpuWatch(lambda: {os.getpid()}, {own_name()}), str(tmp_path / "proc")
    )
    assert service.look() == ("" if os.getuid() == 0 else f"process {os.getpid()} ({own_name()}) on a GPU")


def own_name() -> str:
    return Path("/proc/self/comm").read_text().strip()


def test_a_driver_that_does_not_tell_is_no_idle_node(tmp_path: Path) -> None:
    def fails() -> None:
        raise NvmlUnreadable("NVML fails (GPU_IS_LOST)")

    assert arrivals(tmp_path, fails).look() == "NVML fails (GPU_IS_LOST), so that a job would not be seen"


def test_a_machine_without_gpus_is_idle(tmp_path: Path) -> None:
    assert arrivals(tmp_path, GpuProcesses().pids).look() == ""


def test_the_processes_of_a_session_are_those_that_live(sleeper: int) -> None:
    assert processes_of_session(sleeper) == [sleeper] and session_of(sleeper) == sleeper
    os.kill(sleeper, 9)
    os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    assert processes_of_session(sleeper) == []
