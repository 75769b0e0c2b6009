"""What the kernel counts of a process's wait for a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laggard.agent.ranks.cpu_wait import LEAST_SECONDS, CpuWaits


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
        while (found := waits.sample("rank", both[0].pid)) is None or found.queued_seconds <= 0.3 * found.seconds:
            assert time.monotonic() < until, found
            time.sleep(0.1)
        assert found.seconds >= LEAST_SECONDS and found.throttled_seconds == 0.0, found
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert CpuWaits().sample("rank", both[0].pid) is None


@pytest.mark.parametrize(
    ("lines", "stat", "text", "seconds"),
    [
        ("0::/job\n", "job/cpu.stat", "nr_throttled {}\nthrottled_usec {}000000\n", 3.0),
        ("4:cpu,cpuacct:/job\n0::/\n", "cpu/job/cpu.stat", "nr_throttled {}\nthrottled_time {}000000000\n", 3.0),
        ("0::/../out\n", "job/cpu.stat", "throttled_usec {}000000\n", 0.0),
    ],
)
def test_the_quota_of_a_cgroup_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, stat: str, text: str, seconds: float
) -> None:
    task, counts = tmp_path / "7" / "task" / "7", tmp_path / "cgroup" / stat
    task.mkdir(parents=True)
    counts.parent.mkdir(parents=True)
    (tmp_path / "7" / "cgroup").write_text(lines)
    (task / "schedstat").write_text("1000000000 2000000000 5\n")
    now = 100.0
    monkeypatch.setattr("laggard.agent.ranks.cpu_wait.time.monotonic", lambda: now)
    waits = CpuWaits(str(tmp_path), str(tmp_path / "cgroup"))
    counts.write_text(text.format(1, 1))
    assert waits.sample("rank", 7) is None
    now = 110.0
    counts.write_text(text.format(4, 4))
    found = waits.sample("rank", 7)
    assert found is not None and (found.seconds, found.throttled_seconds) == (10.0, seconds)
