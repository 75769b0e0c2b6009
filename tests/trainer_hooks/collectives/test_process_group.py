"""The collectives that Python calls: what the hooks hold of them, and for how long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.paths import TESTS, TRAINING
from support.warm import Warm

from laggard.rankfile import Lane, RankCounters, RankFileReader

SCRIPT = TRAINING / "python_groups.py"

pytestmark = pytest.mark.slow  # trainings with torch

POLLED = """
import gc, time, weakref, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4 // 1024
works = []
for number in range(3):
    tensor = torch.ones(50_000_000)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    held = resident()
    works.append(weakref.ref(work))
    del work, tensor
    until = time.monotonic() + 120
    while works[-1]() is not None or resident() >= held - 150:
        gc.collect()
        assert time.monotonic() < until, ("the work is held", works[-1](), held, resident())
        time.sleep(0.01)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


MADE_ANEW = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
for _ in range(40):
    other, group = dist.new_group([0]), dist.new_group([0])
    dist.all_reduce(torch.ones(4), group=group)
    dist.all_reduce(torch.ones(4), group=other)
    dist.barrier(group=group)
    dist.destroy_process_group(group)
    dist.destroy_process_group(other)
dist.destroy_process_group()
"""


def run(script: str, tmp_path: Path) -> tuple[Sequence[Lane], RankCounters]:
    """The lanes and the counters of a script that is trained with the hooks."""
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "LAGGARD_RANK_DIR": str(tmp_path / "ranks"), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "laggard", "run", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "ranks").rglob("*.rank")
    with RankFileReader(str(path)) as file:
        counters = file.counters()
        assert counters is not None and (counters.errors, counters.lost) == (0, 0)
        return file.lanes(), counters


def test_a_collective_that_is_polled_and_dropped_is_not_held(tmp_path: Path) -> None:
    _, counters = run(POLLED, tmp_path)
    assert [count for count, *_ in counters.lanes] == [4]


def test_groups_that_are_made_anew_go_on_in_the_lanes_of_those_that_ended(tmp_path: Path) -> None:
    """A rank file has 64 lanes, and the script 120 pairs of group and operation."""
    lanes, counters = run(MADE_ANEW, tmp_path)
    assert sorted(it.op for it in lanes) == ["all_reduce", "all_reduce", "barrier"]
    assert [count for count, *_ in counters.lanes] == [40, 40, 40]
    assert len({it.group for it in lanes}) == 2, "two groups of the same members lived at once"


@pytest.mark.parametrize("hooks", [("-m", "laggard", "run"), ()], ids=["early", "late"])
@pytest.mark.parametrize("clock", ["host", "device"])
def test_groups_and_works_in_python_that_leave_methods_to_torch(
    hooks: tuple[str, ...], clock: str, tmp_path: Path, without_hooks: list[str], warm_torch: Warm
) -> None:
    """What such a class leaves to torch, and what it calls by super(), does the same as without the hooks: torch's C++
    does not take a hook for the class's own method. What is called by super() is recorded, once."""
    words = [str(SCRIPT), clock, *(() if hooks else ("late",))]
    fresh = hooks and clock == "host"  # as a user starts it; the others have torch from the start
    done = run_python([*hooks, *words], tmp_path, None if fresh else warm_torch)
    assert done.returncode == 0, done.stderr
    assert said(done) == without_hooks
    assert done.stderr.splitlines()[-1] == "1 errors 0", "the calls by super() and that of the class with two bases"


@pytest.fixture(scope="module")
def without_hooks(tmp_path_factory: pytest.TempPathFactory, warm_torch: Warm) -> list[str]:
    done = run_python([str(SCRIPT)], tmp_path_factory.mktemp("bare"), warm_torch)
    assert done.returncode == 0, done.stderr
    results = said(done)
    unsupported = [line for line in results if "ProcessGroupGloo does not support reduce_scatter" in line]  # torch 2.6
    assert sum(" done" in line for line in results) == len(results) - 2 - len(unsupported)
    assert "RuntimeError" in results[-1]
    return results


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the script printed, without the line that gloo of torch 2.8 to 2.10 prints for each group."""
    return [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]


def run_python(words: list[str], place: Path, warm: Warm | None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    extra = {"LAGGARD_RANK_DIR": str(place / "ranks"), "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    if warm is not None:
        return warm.run(words, extra)
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, env={**os.environ, **extra}
    )
