"""The stacks that an agent reads beside rank files: whose they are, and what users put in their place."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agents import RankProcess
from support.readers import NOBODY, OTHER, as_nobody, as_root
from support.rows import rows
from support.stack_documents import sampled
from support.waiting import wait_for

from laggard.agent.ranks import stack_files
from laggard.agent.ranks.reader import RankFiles
from laggard.agent.ranks.stack_files import StackFile, read_stack_file
from laggard.agent.ranks.stacks import MAX_ANSWER_BYTES
from laggard.stacks.fault_text import header
from laggard.stacks.sampled import ASKED, HELD, STALLED, Counted, Frame, Sampled, Thread, encode
from laggard.wire import encode as encode_document
from laggard.wire.stacks import StacksDocument, sampled_of

Start = Callable[..., RankProcess]
ME = os.geteuid()
DUMP = b"""Timeout (0:00:20)!
Thread 0x00007f0000000001 (most recent call first):
  File "/home/u/ext.py", line 7 in hold
  File "/home/u/train.py", line 20 in train
"""


def beside(rank: RankProcess, suffix: str = ".stacks") -> Path:
    return rank.path.with_suffix(suffix)


def pid_of(rank: RankProcess) -> int:
    return int(rank.path.name.partition("-")[0])


def leave(rank: RankProcess, number: int = 0, owner: int = ME, **changes: Any) -> Sampled:
    """What the rank's process writes."""
    document = sampled(number, 0.7, **{"pid": pid_of(rank), **changes})
    beside(rank).write_bytes(encode(document))
    beside(rank).chmod(0o600)
    os.chown(beside(rank), owner, owner)
    return document


def ask(directory: Path, *ranks: int, owner: int = ME) -> StacksDocument:
    files = RankFiles(str(directory), "n0")
    files.read()
    return files.stacks(owner, "j1", frozenset(ranks) or None)


def reasons(document: StacksDocument) -> list[str]:
    return [each.reason for each in document.missing]


def test_what_a_rank_left_is_told(rank_dir: Path, start_rank: Start) -> None:
    one, other = start_rank(rank=0), start_rank(rank=1)
    document = leave(one)
    found = ask(rank_dir)
    assert [sampled_of(each) for each in found.ranks] == [document]
    assert [each.rank for each in found.missing] == [1]
    assert "nobody has asked it, or LAGGARD_STACKS is 0 there" in found.missing[0].reason
    leave(other, 1)
    assert [each.rank for each in ask(rank_dir, 1).ranks] == [1]
    assert [(it.rank, it.reason) for it in ask(rank_dir, 1, 7).missing] == [
        (7, "it does not run on this node, or has ended")
    ]
    assert ask(rank_dir, owner=NOBODY) == StacksDocument(NOBODY, "j1", (), (), "n0")


def test_what_a_dead_rank_left_is_told(rank_dir: Path, start_rank: Start) -> None:
    rank = start_rank(rank=0)
    document = leave(rank, why="failed")
    rank.kill()
    assert [sampled_of(each) for each in ask(rank_dir).ranks] == [document]


def test_a_dump_of_faulthandler_counts_where_it_is_newer_or_alone(rank_dir: Path, start_rank: Start) -> None:
    rank = start_rank(rank=0)
    head = header("j1", 0, "n0", pid_of(rank), 0x7F0000000001)
    beside(rank, ".fault").write_bytes(head + DUMP)
    assert [each.why for each in ask(rank_dir).ranks] == [HELD]
    leave(rank)
    os.utime(beside(rank, ".fault"), (1, 1))
    assert [each.why for each in ask(rank_dir).ranks] == [ASKED]
    os.utime(beside(rank), (0, 0))
    assert [each.why for each in ask(rank_dir).ranks] == [HELD]
    beside(rank, ".fault").write_bytes(head)  # armed, and nothing dumped
    assert [each.why for each in ask(rank_dir).ranks] == [ASKED]


def link_to_another(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "secret"
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def pipe(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def sparse(path: Path, _: Path) -> None:
    os.truncate(path, 1 << 30)


def garbage(path: Path, _: Path) -> None:
    path.write_bytes(os.urandom(1000))


def deep(path: Path, _: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def of_another_job(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"j1"', b'"j2"'))


def of_another_rank(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"rank":0', b'"rank":1'))


def of_another_process(path: Path, _: Path) -> None:
    value = json.loads(path.read_bytes())
    path.write_bytes(json.dumps({**value, "pid": 1}).encode())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (link_to_another, "its stacks cannot be read: Too many levels of symbolic links"),
        (pipe, "its stacks cannot be read: it is no regular file"),
        (sparse, "its stacks cannot be read: it has more than 262144 bytes"),
        (garbage, "no document of stacks that this release reads"),
        (deep, "no document of stacks that this release reads"),
        (of_another_job, "another rank's file lies in the place of its stacks"),
        (of_another_rank, "another rank's file lies in the place of its stacks"),
        (of_another_process, "another rank's file lies in the place of its stacks"),
    ],
)
def test_what_a_user_puts_in_their_place_is_not_told(
    rank_dir: Path, start_rank: Start, tmp_path: Path, damage: Callable[[Path, Path], None], reason: str
) -> None:
    rank = start_rank(rank=0)
    leave(rank)
    damage(beside(rank), tmp_path)
    found = ask(rank_dir)
    assert not found.ranks and reasons(found) == [reason]


@as_root
def test_a_file_of_another_user_is_not_told(rank_dir: Path, start_rank: Start) -> None:
    rank = start_rank(rank=0, user=NOBODY)
    leave(rank, owner=OTHER)
    assert reasons(ask(rank_dir, owner=NOBODY)) == ["its stacks cannot be read: it is another user's"]
    leave(rank, owner=NOBODY)
    assert len(ask(rank_dir, owner=NOBODY).ranks) == 1


@as_root
def test_no_link_is_followed_in_the_place_of_a_users_folder(rank_dir: Path, start_rank: Start, tmp_path: Path) -> None:
    """Of its own user, even: root does not open what they point at."""
    folder = rank_dir / str(NOBODY)
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    rank = start_rank(rank=0, user=NOBODY, directory=folder)
    leave(rank, owner=NOBODY)
    files = RankFiles(str(rank_dir), "n0")
    files.read()
    assert len(files.stacks(NOBODY, "j1", None).ranks) == 1
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert reasons(files.stacks(NOBODY, "j1", None)) == ["its stacks cannot be read: Not a directory"]


def test_control_characters_reach_nobody(rank_dir: Path, start_rank: Start) -> None:
    rank = start_rank(rank=0)
    evil = Frame("\x1b]0;owned\x07f\n", "/a\u202eb", 1)
    leave(rank, threads=(Thread("\x1b[2J", (Counted(1, (evil,)),)),))
    (found,) = (sampled_of(each) for each in ask(rank_dir).ranks)
    told = found.training.name + "".join(frame.function + frame.file for frame in found.training.stacks[0].frames)
    assert told.isprintable() and "owned" in told


def test_an_answer_has_a_bound(rank_dir: Path, start_rank: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from laggard.agent.ranks import stacks

    monkeypatch.setattr(stacks, "MAX_ANSWER_BYTES", 60_000)
    wide = tuple(
        Counted(64 - i, tuple(Frame("f" * 190 + str(i), "/p" * 95 + str(j), j) for j in range(60))) for i in range(8)
    )
    for number in range(4):
        leave(start_rank(rank=number), number, threads=(Thread("MainThread", wide),))
    found = ask(rank_dir)
    assert len(encode_document(found)) < 62_000 < MAX_ANSWER_BYTES
    assert len(found.ranks) + len(found.missing) == 4 and found.ranks
    assert set(reasons(found)) <= {"the answer would be too long: ask for fewer ranks"}


@rows("agent/no_stack_files")
def test_no_other_file_can_be_named(tmp_path: Path, folder: str, name: str) -> None:
    file = StackFile(folder, name)
    assert not stack_files.is_stack_file(file)
    with pytest.raises(OSError, match="that names no file of stacks"):
        read_stack_file(str(tmp_path), file, 0)


AS_AGENT = """
import os, time
from laggard.agent.ranks.reader import RankFiles
files = RankFiles({directory!r}, "n0")
files.read()
found = files.stacks({owner}, "j1", None)
print([each.rank for each in found.ranks], [each.reason for each in found.missing])
"""


@pytest.mark.slow
@as_root
def test_an_agent_without_privileges_has_the_reader_read_them(
    rank_dir: Path,
    start_rank: Start,
    start_reader: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the capabilities that the reader's unit has, and no more."""
    monkeypatch.setenv("LAGGARD_RANK_DIR", str(rank_dir))
    rank = start_rank(rank=0, user=OTHER)
    leave(rank, owner=OTHER)
    code = AS_AGENT.format(directory=str(rank_dir), owner=OTHER)
    without = as_nobody(code, tmp_path / "none.sock")
    assert without.startswith("[] [") and "Permission denied; laggard's reader, which may, does not run" in without
    path = start_reader("--allow-user", str(NOBODY))
    assert as_nobody(code, path) == "[0] []\n"
    os.chown(beside(rank), 0, 0)  # a secret of root's with that name stays root's
    beside(rank).chmod(0o600)
    assert "it is another user's" in as_nobody(code, path)
    beside(rank).unlink()
    beside(rank).symlink_to("/etc/shadow")
    assert "Too many levels of symbolic links" in as_nobody(code, path)


def stopped(directory: Path, rank: RankProcess) -> StacksDocument:
    """What is answered once the kernel says that the rank's process is stopped."""
    rank.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: "T" in Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(")")[2].split()[0])
    return ask(directory)


def test_a_rank_without_stacks_is_told_by_its_place_in_the_kernel(rank_dir: Path, start_rank: Start) -> None:
    rank = start_rank(rank=0)
    assert ask(rank_dir).missing[0].kernel.startswith("in the kernel: "), "it reads its commands"
    (missing,) = stopped(rank_dir, rank).missing
    assert missing.kernel == "stopped by a signal"
    assert missing.reason == "its process is stopped, by a signal or a debugger"
    rank.kill()
    assert [it.kernel for it in ask(rank_dir).missing] == [""]


def test_a_rank_that_stands_still_is_told_by_both(rank_dir: Path, start_rank: Start) -> None:
    rank = start_rank(rank=0)
    leave(rank, why=STALLED, at=time.time())
    stopped(rank_dir, rank)
    assert [each.kernel for each in ask(rank_dir).ranks] == ["stopped by a signal"]
    leave(rank, why=STALLED, at=time.time() - 3600)
    assert [each.kernel for each in ask(rank_dir).ranks] == [""], "it has gone on since"
    leave(rank, why=ASKED, at=time.time())
    assert [each.kernel for each in ask(rank_dir).ranks] == [""], "its samples say that it goes on"
