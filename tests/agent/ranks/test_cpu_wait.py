"""What the kernel counts of a process's wait for a CPU."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.rows import rows

from laggard.agent.ranks.cpu_wait import MIN_WINDOW_SECONDS, CpuWaits


@pytest.mark.slow
def test_two_processes_on_one_core_wait_for_each_other() -> None:
    core = {max(os.sched_getaffinity(0))}
    spin = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core}); print(flush=True)\nwhile True: pass"]
    both = [subprocess.Popen(spin, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        assert all(process.stdout and process.stdout.readline() for process in both)
        waits = CpuWaits()
        assert waits.sample("rank", both[0].pid) is None, "one look says nothing"
        until = time.monotonic() + 120
        while not (
            (found := waits.sample("rank", both[0].pid))
            and found.queued_seconds > 0.3 * found.seconds
            and both[1].pid in [each.pid for each in found.neighbours]
        ):
            assert time.monotonic() < until, found
            time.sleep(0.1)
        assert found.seconds >= MIN_WINDOW_SECONDS and found.throttled_seconds == 0.0, found
        assert both[0].pid not in [each.pid for each in found.neighbours]
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert CpuWaits().sample("rank", both[0].pid) is None


@rows("agent/cgroup_quotas")
def test_the_quota_of_a_cgroup_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, stat: str, text: str, seconds: float
) -> None:
    task, counts = tmp_path / "7" / "task" / "7", tmp_path / "cgroup" / stat
    task.mkdir(parents=True)
    counts.parent.mkdir(parents=True)
    (tmp_path / "7" / "cgroup").write_text(lines)
    (task / "schedstat").write_text("1000000000 2000000000 5\n")
    monkeypatch.setattr("laggard.agent.ranks.cpu_wait.os.sched_getaffinity", lambda pid: {0})
    now = 100.0
    monkeypatch.setattr("laggard.agent.ranks.cpu_wait.time.monotonic", lambda: now)
    waits = CpuWaits(str(tmp_path), str(tmp_path / "cgroup"))
    counts.write_text(text.format(1, 1))
    assert waits.sample("rank", 7) is None
    now = 110.0
    counts.write_text(text.format(4, 4))
    found = waits.sample("rank", 7)
    assert found is not None and (found.seconds, found.throttled_seconds) == (10.0, seconds)


class Machine:
    """A /proc with one rank, pid 7, on core 0, and other processes, at a time that is set."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.now = path, 100.0
        self.set(7, 0, 0.0, 0.0)
        (path / "7" / "cgroup").write_text("")
        monkeypatch.setattr("laggard.agent.ranks.cpu_wait.os.sched_getaffinity", lambda pid: {0})
        monkeypatch.setattr("laggard.agent.ranks.cpu_wait.time.monotonic", lambda: self.now)

    def set(self, pid: int, core: int, ran: float, queued: float, name: str = "python (x) y") -> None:
        """Process `pid`, of one thread, ran and waited for so many seconds."""
        fields = ["S", *["0"] * 10, str(int(ran * 100)), "0", *["0"] * 6, "55", *["0"] * 16, str(core), *["0"] * 13]
        for folder in (self.path / str(pid), self.path / str(pid) / "task" / str(pid)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
            (folder / "schedstat").write_text(f"{int(ran * 1e9)} {int(queued * 1e9)} 5\n")
            (folder / "comm").write_text(name + "\n")

    def set_cores(self, busy: float, stolen: float) -> None:
        line = f"{int(busy * 100)} 0 0 7 0 0 0 {int(stolen * 100)} 0 0"
        (self.path / "stat").write_text(f"cpu  {line}\ncpu0 {line}\ncpu1 9 9 9 9 9 9 9 9 9 9\n")


def test_who_has_the_cores_is_looked_at_only_where_a_rank_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    waits = CpuWaits(str(tmp_path), str(tmp_path))
    found = None
    for number in range(1, 5):
        machine.set(8, 0, 4.0 * number, 0.0, "stress")  # four of five seconds on its core
        machine.set(9, 1, 4.0 * number, 0.0, "elsewhere")
        machine.set(10, 0, 0.1 * number, 0.0, "idle")
        machine.set(7, 0, 1.0 * number, 4.0 * number if number > 1 else 0.0)
        found = waits.sample("rank", 7, os.getuid())
        assert number > 2 or not (found and found.neighbours), "one look at all processes says nothing"
        machine.now += 5.0
    assert found is not None and [(each.pid, each.command) for each in found.neighbours] == [(8, "stress")]
    assert found.neighbours[0].seconds == pytest.approx(8.0) and found.neighbours[0].owner == os.getuid()
    calm = CpuWaits(str(tmp_path), str(tmp_path))
    for _ in range(4):
        machine.now += 5.0
        found = calm.sample("rank", 7, os.getuid())
    assert found is not None and found.neighbours == ()


def test_the_command_of_another_users_process_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("gives a file to another user, which takes root")
    machine = Machine(tmp_path, monkeypatch)
    waits = CpuWaits(str(tmp_path), str(tmp_path))
    for number in range(1, 5):
        machine.set(8, 0, 4.0 * number, 0.0, "secret")
        os.chown(tmp_path / "8", 1001, 1001)
        machine.set(7, 0, 1.0 * number, 4.0 * number)
        found = waits.sample("rank", 7, 1000)
        machine.now += 5.0
    assert found is not None and [(each.pid, each.owner, each.command) for each in found.neighbours] == [(8, 1001, "")]


def test_time_that_the_hypervisor_takes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    waits = CpuWaits(str(tmp_path), str(tmp_path))
    for number in range(2):
        machine.set(7, 0, 6.0 * number, 0.0)
        machine.set_cores(busy=6.0 * number, stolen=3.0 * number)
        found = waits.sample("rank", 7)
        machine.now += 10.0
    assert found is not None and found.stolen_seconds == pytest.approx(3.0)
