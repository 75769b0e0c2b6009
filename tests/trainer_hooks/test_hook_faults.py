"""Faults of the machine while a trainer runs with the hooks: it behaves and exits as without, and a loss is logged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agents import let_others_enter

from laggard.rankfile.layout import FILE_BYTES

pytestmark = pytest.mark.slow  # trainings with torch

TRAINER = """
import os, sys, time
from laggard.rankfile import Lane
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.record.events import BACKWARD, FORWARD, INPUT, OPTIMIZER
session = Session(); session.open(); recorder = session.recorder
log = recorder.lane(Lane("all_reduce", "dp", "dp:0-1"), (0, 1))
for step in range(20):
    for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
        recorder.enter(phase); recorder.leave()
    log.append((log.next_word(), 1, 2, 1, 4096))
    recorder.end_step(step + 1)
recorder.drain()
print("trained", recorder.totals.steps, recorder.totals.errors)
raise SystemExit(7)
"""


def train(rank_dir: Path, script: str = TRAINER, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LAGGARD_RANK_DIR": str(rank_dir), "RANK": "0", "WORLD_SIZE": "2", **extra}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options, where root may do so."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / "mounted"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "laggard-test", str(place)]
        if os.geteuid() != 0 or subprocess.run(command).returncode:
            pytest.skip("needs root and the right to mount")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [(f"size={FILE_BYTES // 2}", "No space left"), ("ro", "Read-only file system"), ("nr_inodes=1", "No space left")],
)
def test_a_rank_dir_without_room_is_one_line(mounted: Callable[[str], Path], options: str, reason: str) -> None:
    place = mounted(options)
    done = train(place)
    assert (done.returncode, done.stdout) == (7, "trained 20 0\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"laggard: no rank file in {place}, the agent cannot see this rank: ") and reason in line
    assert [path for path in place.rglob("*") if path.is_file()] == []


def test_a_rank_dir_that_only_another_user_may_enter(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    place = tmp_path / "ranks"
    place.mkdir(mode=0o700)
    let_others_enter(tmp_path)
    become = (
        "from laggard.trainer_hooks import attach\nfrom laggard.trainer_hooks.output import http_export\n"
        "import hashlib, os  # that user may not read where this Python is\nos.setresuid(61001, 61001, 61001)\n"
    )
    done = train(place, become + TRAINER)
    assert done.returncode == 7
    assert "the agent cannot see this rank" in done.stderr and "Permission denied" in done.stderr


def test_a_rank_dir_that_is_removed_while_the_trainer_runs(tmp_path: Path) -> None:
    vanish = "import shutil; shutil.rmtree(os.environ['LAGGARD_RANK_DIR'])\n"
    done = train(tmp_path / "ranks", TRAINER.replace("for step in range(20):", f"{vanish}for step in range(20):"))
    assert (done.returncode, done.stdout, done.stderr) == (7, "trained 20 0\n", "")
