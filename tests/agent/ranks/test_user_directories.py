"""The rank directory among users who do not wish each other well: what they can remove, fill, and take."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hostile import compiled, needs_fuse
from support.paths import DATA

from laggard.agent.ranks import directory as directory_module
from laggard.agent.ranks import directory as safety
from laggard.agent.ranks.reader import HELD, MOUNTED, RankFiles
from laggard.agent.ranks.stack_files import is_below, users_mounts
from laggard.rankfile.layout import own_directory

USER, OTHER = 12345, 54321
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")

DROP = """
import encodings.idna, os, sys
from laggard.nccl import private_log
from laggard.rankfile.layout import log_directory, own_directory
os.setgroups([])
os.setgid({user})
os.setuid({user})
"""


def as_user(user: int, script: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs the script as another user, who may not be able to read Python's own files: the imports come first."""
    command = [sys.executable, "-c", DROP.format(user=user) + script, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


OWN = "print(own_directory(sys.argv[1]))"
LOG = "print(private_log.prepare_log({}, log_directory(sys.argv[1])) is not None)"


@ROOT
def test_each_user_has_a_subdirectory_and_logs_there(rank_dir: Path) -> None:
    for user in (USER, OTHER):
        made = as_user(user, OWN, rank_dir)
        assert made.stdout.strip() == str(rank_dir / str(user)), made.stderr
        about = (rank_dir / str(user)).stat()
        assert (about.st_uid, about.st_mode & 0o777) == (user, 0o755)
        assert as_user(user, LOG, rank_dir).stdout.strip() == "True"


@ROOT
def test_a_name_that_is_taken_leaves_the_user_the_directory_itself(rank_dir: Path) -> None:
    as_user(OTHER, "os.mkdir(sys.argv[1])", rank_dir / str(USER))
    assert as_user(USER, OWN, rank_dir).stdout.strip() == str(rank_dir)
    assert as_user(USER, LOG, rank_dir).stdout.strip() == "True"
    (rank_dir / str(OTHER)).symlink_to("/tmp")
    assert as_user(OTHER, OWN, rank_dir).stdout.strip() == str(rank_dir)


@ROOT
def test_who_trains_first_can_remove_nobodys_files_once_an_agent_runs(
    rank_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = rank_dir / "first"
    assert as_user(USER, OWN, shared).returncode == 0  # creates and owns it
    assert f"belongs to user {USER}" in safety.warning(str(shared))
    monkeypatch.setattr(safety, "FALLBACK_RANK_DIR", str(shared))
    assert safety.secure(str(shared)) == ""
    script = "os.mkdir(sys.argv[1]); open(sys.argv[1] + '/x.rank', 'w').close()"
    assert as_user(OTHER, script, shared / str(OTHER)).returncode == 0
    for attempt in ("os.unlink(path + '/x.rank')", "os.rename(path, path + '-gone')", "os.rmdir(path)"):
        failed = as_user(USER, f"path = sys.argv[1]; {attempt}", shared / str(OTHER))
        assert "PermissionError" in failed.stderr, attempt


@ROOT
@pytest.mark.parametrize("where", ["base", "own"])
def test_a_flood_does_not_delay_another_users_rank(
    rank_dir: Path, start_rank: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """With limits a tenth of the real ones, to save the test's time."""
    monkeypatch.setattr(directory_module, "MAX_ENTRIES", 6_554)
    monkeypatch.setattr(directory_module, "MAX_STATS", 410)
    monkeypatch.setattr(directory_module, "_MANY_ENTRIES", 103)
    script = """
os.makedirs(sys.argv[1], exist_ok=True)
for number in range(10_000):
    open(f"{sys.argv[1]}/{number}-0123456789abcdef.rank", "w").close()
    if number % 10 == 0:
        os.mkdir(f"{sys.argv[1]}/d{number}")
"""
    flooded = as_user(OTHER, script, rank_dir if where == "base" else rank_dir / str(OTHER))
    assert flooded.returncode == 0, flooded.stderr
    own = rank_dir / str(USER)
    own.mkdir()
    os.chown(own, USER, USER)
    files = RankFiles(str(rank_dir), "n0")
    for rank in (0, 1):
        start_rank(directory=own, user=USER, rank=rank, world_size=2)
    assert [(row.owner, row.rank) for row in files.read().ranks] == [(USER, 0), (USER, 1)]


@ROOT
def test_a_flood_of_who_has_taken_a_users_place_does_not_hide_their_rank(
    rank_dir: Path, start_rank: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With limits a tenth of the real ones. The rank's file stands among the flood, behind more than a sample of it."""
    monkeypatch.setattr(directory_module, "MAX_ENTRIES", 6_554)
    monkeypatch.setattr(directory_module, "MAX_STATS", 410)
    monkeypatch.setattr(directory_module, "_MANY_ENTRIES", 103)
    script = """
os.mkdir(sys.argv[2])
for number in range(int(sys.argv[3]), int(sys.argv[4])):
    open(f"{sys.argv[1]}/{number}-0123456789abcdef.rank", "w").close()
"""
    own = rank_dir / str(USER)
    assert as_user(OTHER, script, rank_dir, own, 0, 10_000).returncode == 0
    files = RankFiles(str(rank_dir), "n0")
    start_rank(directory=rank_dir, user=USER, rank=0, world_size=1)
    assert as_user(OTHER, script, rank_dir, rank_dir / "d", 10_000, 20_000).returncode == 0
    found = files.read()
    assert [(row.owner, row.rank) for row in found.ranks] == [(USER, 0)]
    assert (HELD, str(USER)) in [(each.reason, each.example) for each in found.ignored]


def test_the_agent_warns_of_a_directory_that_is_not_safe(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert "does not exist" in safety.secure(str(missing)) and not missing.exists()
    missing.mkdir()
    missing.chmod(0o777)
    assert "chmod 1777" in safety.secure(str(missing))
    missing.chmod(0o1777)
    assert safety.secure(str(missing)) == ""


def test_a_directory_is_made_where_there_is_none(tmp_path: Path) -> None:
    own = Path(own_directory(str(tmp_path / "ranks")))
    assert own == tmp_path / "ranks" / str(os.geteuid()) and (tmp_path / "ranks").stat().st_mode & 0o7777 == 0o1777


TABLE = (DATA / "host" / "users_mountinfo").read_text()


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
