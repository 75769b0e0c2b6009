"""Where this suite's own temporary files go: see support/memory.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.memory import MIN_FREE_BYTES, OwnFolder, has_room, remove_abandoned
from support.paths import TESTS

HOLDER = """
import sys, time
from pathlib import Path
from support.memory import OwnFolder
folder = OwnFolder(Path(sys.argv[1]))
(folder.path / "file").touch()
print(folder.path, flush=True)
time.sleep(60)
"""


def aged(path: Path) -> Path:
    before = time.time() - 3600
    os.utime(path, (before, before))
    return path


def test_the_folder_of_a_run_that_was_killed_goes_with_the_next_run(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=TESTS
    )
    with holder:
        assert holder.stdout
        folder = aged(Path(holder.stdout.readline().strip()))
        remove_abandoned(tmp_path)
        assert (folder / "file").exists(), "the folder of a run that lives was removed"
        holder.kill()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_goes(tmp_path: Path) -> None:
    (tmp_path / "laggard-tests-of-another").symlink_to(aged(tmp_path))
    new, foreign = tmp_path / "laggard-tests-not-locked-yet", tmp_path / "laggard"
    for folder in (new, foreign):
        folder.mkdir()
    aged(foreign)
    remove_abandoned(tmp_path)
    assert new.exists() and foreign.exists() and tmp_path.exists()


def test_a_run_removes_its_own_also_what_nobody_may_write_to(tmp_path: Path) -> None:
    folder = OwnFolder(tmp_path)
    (folder.path / "closed/inner").mkdir(parents=True)
    (folder.path / "closed").chmod(0o500)
    folder.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc", "/nowhere"])
def test_there_is_no_room_where_nothing_can_be_written(place: str) -> None:
    assert not has_room(Path(place))


@pytest.mark.parametrize(
    ("options", "enough"), [("", True), ("noexec", False), (f"size={MIN_FREE_BYTES // 2}", False), ("ro", False)]
)
def test_there_is_room_where_scripts_run_and_gigabytes_are_free(tmp_path: Path, options: str, enough: bool) -> None:
    size = "" if "size" in options else f"size={MIN_FREE_BYTES * 2}"
    words = ",".join(word for word in (size, options) if word)
    command = ["mount", "-t", "tmpfs", "-o", words, "laggard-test", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount")
    try:
        assert has_room(tmp_path) is enough
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
