"""A recording says for how long its rank's threads waited for a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from laggard.kit.processes import MAX_THREADS, read_thread_times
from laggard.recording.reader import read_recording
from laggard.trainer_hooks.output.threads import CPU_WAIT_FIRST_LOOK_SECONDS, LOOK_SECONDS, CpuWaitLines

SPIN = "import os; os.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d: sum(range(9999))"


@pytest.fixture
def crowded() -> Iterator[None]:
    """This process has one CPU alone, which three others want as well."""
    before = os.sched_getaffinity(0)
    cpu = max(before)
    others = [subprocess.Popen([sys.executable, "-c", SPIN % (cpu, os.getpid())]) for _ in range(3)]
    os.sched_setaffinity(0, {cpu})
    yield
    os.sched_setaffinity(0, before)
    for other in others:
        other.kill()
        other.wait()


def test_the_time_in_the_run_queue_is_written(crowded: None) -> None:
    lines: list[Mapping[str, Any]] = []
    watch = CpuWaitLines(lines.append)
    until = time.monotonic() + 120
    while not lines and time.monotonic() < until:
        watch.look()
        sum(range(99_999))
    (line,) = lines
    told = line["cpu_wait"]
    assert line["kind"] == "cpu_wait" and told["seconds"] >= CPU_WAIT_FIRST_LOOK_SECONDS
    assert told["running_seconds"] > 0 and told["queued_seconds"] > 0.2 * told["running_seconds"]
    assert told["throttled_seconds"] >= 0


def test_the_oldest_threads_are_looked_at_whatever_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists them in the order in which they began; numbers are used again once pid_max is reached."""
    tasks = tmp_path / "900" / "task"
    names = ["900", *map(str, range(1, 80))]
    for name in names:
        (tasks / name).mkdir(parents=True)
        (tasks / name / "schedstat").write_text("1000000000 0 1\n")
    (tmp_path / "900" / "cgroup").write_text("")
    monkeypatch.setattr(os, "listdir", lambda _: names)
    assert list(read_thread_times(900, str(tmp_path)).threads) == names[:MAX_THREADS]


def test_it_is_written_every_few_seconds_and_not_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Mapping[str, Any]] = []
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    watch = CpuWaitLines(lines.append)
    for second in range(1, 33):
        now = float(second)
        watch.look()
    assert [line["cpu_wait"]["seconds"] for line in lines] == [CPU_WAIT_FIRST_LOOK_SECONDS, *[LOOK_SECONDS] * 5]


def test_the_reader_has_the_newest_and_refuses_what_is_no_time(tmp_path: Path) -> None:
    head = {"laggard_recording": 1, "job_id": "j", "ends": True, "beats": True}
    rank = {"kind": "rank", "rank": 0, "node": "n0", "world_size": 1}
    waits = [{"seconds": 5.0, "running_seconds": 1.0, "queued_seconds": queued} for queued in (0.5, 4.0)]
    lines = [head, rank, *({"kind": "cpu_wait", "rank": 0, "cpu_wait": wait} for wait in waits)]
    path = tmp_path / "rank-0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (state,) = read_recording([path]).timings.states
    assert state.cpu_wait is not None and state.cpu_wait.queued_seconds == 4.0
    bad = {"kind": "cpu_wait", "rank": 0, "cpu_wait": {**waits[0], "queued_seconds": -1.0}}
    path.write_text(path.read_text() + json.dumps(bad) + "\n" + json.dumps(rank) + "\n")
    assert read_recording([path]).timings.states[0].cpu_wait == state.cpu_wait
