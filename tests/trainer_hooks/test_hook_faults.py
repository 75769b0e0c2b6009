"""Faults of the machine while a trainer runs with the hooks: it behaves and exits as without, and a loss is logged."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import sessions
from support.agents import let_others_enter
from support.sessions import SESSION

from laggard.rankfile.layout import FILE_BYTES

pytestmark = pytest.mark.slow  # trainings with torch

TRAINER = f"""{SESSION}
for _ in range(20): step()
recorder.drain()
print("trained", recorder.totals.steps, recorder.totals.errors)
raise SystemExit(7)
"""


def train(rank_dir: Path, script: str = TRAINER, **extra: str) -> subprocess.CompletedProcess[str]:
    return sessions.train(script, sessions.environ_of(rank_dir, **extra))


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
