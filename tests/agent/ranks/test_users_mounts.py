"""A user's file system within the rank directory: it is not touched, and the other users' ranks are seen."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hostile import compiled, needs_fuse

from laggard.agent.ranks.reader import MOUNTED, RankFiles
from laggard.agent.ranks.stack_files import is_below, users_mounts

TABLE = """\
24 1 0:22 / /proc rw shared:5 - proc proc rw
30 1 0:30 / /dev/shm/laggard/1001 rw - fuse evil rw,user_id=1001
31 1 0:31 / /dev/shm/laggard/a\\040b\\134c rw,relatime shared:3 - fuse.sshfs x rw
32 1 0:32 / /dev/shm/laggard rw - tmpfs tmpfs rw
33 1 0:33 / /dev/shm/laggard/1003 rw - tmpfs tmpfs rw
34 1 0:34 / /dev/shm/laggard2/1001 rw - fuse evil rw
"""


def test_users_mounts_are_those_of_fuse_within_the_directory(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    found = users_mounts("/dev/shm/laggard", str(table))
    assert found == ("/dev/shm/laggard/1001", "/dev/shm/laggard/a b\\c")
    assert is_below("/dev/shm/laggard/1001/x", found) and not is_below("/dev/shm/laggard/10011", found)
    assert users_mounts("/dev/shm/laggard", "/nowhere") == ()


@contextlib.contextmanager
def mounted(folder: Path, program: str) -> Iterator[None]:
    process = subprocess.Popen([program, str(folder), "65533", "240"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "mounted\n"
        yield
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "-l", str(folder)], check=True)


@needs_fuse
@pytest.mark.slow
def test_a_users_file_system_costs_no_other_user_its_ranks(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    (ranks / "65533").mkdir(parents=True)
    os.chown(ranks / "65533", 65533, 65533)
    (ranks / "1002").mkdir()
    (ranks / "1002" / "x.rank").touch()
    reader = RankFiles(str(ranks), "n0")
    names = [each.reason for each in reader.read().ignored]
    with mounted(ranks / "65533", compiled("hold_folder", tmp_path)):
        found: list[list[str]] = []
        thread = threading.Thread(target=lambda: found.append([it.reason for it in reader.read().ignored]), daemon=True)
        thread.start()
        thread.join(60)
        assert found, "the scan waits for the user's file system"
        assert sorted(found[0]) == sorted([*names, MOUNTED]), "the other user's file is looked at as before"
    assert [each.reason for each in reader.read().ignored] == names


def test_a_scan_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, inside = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        inside.set()
        going_on.wait(300)
        raise FileNotFoundError

    monkeypatch.setattr("laggard.agent.ranks.reader.list_files", hang)
    monkeypatch.setattr("laggard.agent.ranks.reader.HANGS_SECONDS", 0.0)
    reader = RankFiles(str(tmp_path), "n0")
    assert reader.hanging_seconds() == 0
    thread = threading.Thread(target=reader.read)
    thread.start()
    assert inside.wait(60) and reader.hanging_seconds() > 0
    going_on.set()
    thread.join()
    assert reader.hanging_seconds() == 0
