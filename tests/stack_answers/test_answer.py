"""`laggard stacks`: what it says of ranks' stacks, which job it means, and which ranks."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agents import RankProcess
from support.collectors import rank_row
from support.readers import NOBODY, OTHER, as_root
from support.stack_documents import TRAIN, sampled

from laggard.agent.ranks.reader import RankFiles
from laggard.kit.errors import UsageError
from laggard.stack_answers.answer import Answers, answer_lines
from laggard.stack_answers.command import _ranks
from laggard.stack_answers.node import LocalJob, ask_node, choose_job
from laggard.stacks.ask import read_ask
from laggard.stacks.difference import differences
from laggard.stacks.sampled import STALLED, Counted, Frame, Sampled, Thread, encode
from laggard.wire.stacks import MissingStacks


def told(*ranks: Sampled, missing: tuple[MissingStacks, ...] = ()) -> list[str]:
    return answer_lines(Answers("j1 of ada", {each.rank: each for each in ranks}, missing))


def standing(rank: int, function: str, line: int) -> Sampled:
    stack = Counted(1, (Frame(function, "/home/u/ckpt.py", line), TRAIN))
    return sampled(rank, why=STALLED, seconds=0.0, stalled_seconds=31.0, threads=(Thread("MainThread", (stack,)),))


def test_a_slow_job_is_answered_by_what_the_slow_rank_does_more() -> None:
    lines = told(*(sampled(rank, 0.71 if rank == 2 else 0.02) for rank in range(4)))
    assert lines == [
        "Rank 2 on n0 differs: forward: 71 % of the samples in tokenize (data.py:88); peers 2 %.",
        "Rank 2: 71 % tokenize (data.py:88); 29 % all_reduce, called in train (train.py:20)",
        "Ranks 0-1 and 3 (3): as rank 0: 98 % all_reduce, called in train (train.py:20); 2 % tokenize (data.py:88)",
        "Job j1 of ada: stacks of 4 ranks, 200 samples of each over 10 s.",
    ]


def test_a_job_that_stands_still_is_answered_by_where_its_ranks_stand() -> None:
    waiting = [sampled(rank, why=STALLED, seconds=0.0, stalled_seconds=31.0) for rank in (0, 1, 3)]
    assert told(*waiting, standing(2, "save", 41)) == [
        "Rank 2 on n0 stands still for 31 s or more in save (ckpt.py:41): ranks 0-1 and 3 wait in all_reduce.",
        "Rank 2: save (ckpt.py:41) (made no progress for 31 s)",
        "Ranks 0-1 and 3 (3): all_reduce, called in train (train.py:20) (made no progress for 31 s)",
        "Job j1 of ada: stacks of 4 ranks.",
    ]
    silent = (MissingStacks(4, "it has ended"),)
    assert told(*waiting, standing(2, "save", 41), missing=silent)[0].endswith(" in all_reduce; rank 4 told nothing.")


def test_a_standstill_is_told_in_one_sentence_whoever_stands_where() -> None:
    def first(*ranks: Sampled) -> str:
        return told(*ranks)[0]

    wait = [sampled(rank, why=STALLED, seconds=0.0, stalled_seconds=31.0) for rank in range(4)]
    since = "for 31 s or more"
    place = "all_reduce, called in train (train.py:20)"
    assert first(*wait) == f"All 4 ranks wait {since} in {place}: none of them stands in its own code."
    assert first(wait[0]) == f"Rank 0 stands still {since} in {place}."
    own = [standing(rank, "save", 41) for rank in range(4)]
    assert first(*own) == f"The ranks stand still {since} in save (ckpt.py:41), none of them in a collective."
    assert first(wait[0], *own[1:]) == f"3 ranks stand in their own code, at 1 place; 1 waits {since}."
    assert first(own[0], own[1], *wait[2:]) == (
        f"Ranks 0-1 stand still {since} in save (ckpt.py:41): ranks 2-3 wait in all_reduce."
    )


def test_ranks_that_go_on_alike_are_told_in_one_sentence() -> None:
    ranks = [sampled(rank, 0.5) for rank in range(3)]
    assert told(*ranks)[0] == "The ranks go on, and none does more of anything than the others."
    assert told(ranks[0])[0] == "Rank 0 goes on; there is no other to compare it with."


def test_healthy_ranks_differ_in_nothing() -> None:
    ranks = [sampled(rank, 0.5 + 0.01 * (rank % 2)) for rank in range(8)]
    assert differences({each.rank: each for each in ranks}) == {}
    assert not [line for line in told(*ranks) if "differs" in line]


def test_who_has_not_answered_is_told_once_a_reason() -> None:
    missing = tuple(MissingStacks(rank, "it has ended") for rank in range(100)) + (
        MissingStacks(100, "\x1b[2Jstopped"),
    )
    lines = told(missing=missing)
    assert lines[0] == "No rank has told its stacks."
    assert lines[-1] == "Job j1 of ada: stacks of 0 of 101 ranks."
    assert lines[1] == "No stacks of ranks 0-99: it has ended."
    assert all(line.isprintable() for line in lines)


def test_four_thousand_ranks_are_answered_in_a_few_lines() -> None:
    began = time.monotonic()
    lines = told(*(sampled(rank, 0.7 if rank == 4000 else 0.02) for rank in range(4096)))
    assert lines[0].startswith("Rank 4000 on n0 differs: ") and len(lines) == 4
    assert time.monotonic() - began < 120


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0]), ("0,3-5", [0, 3, 4, 5]), ("5,5,4", [5, 4]), ("0-4095", list(range(4096)))]
)
def test_a_list_of_ranks_is_read(text: str, ranks: list[int]) -> None:
    assert list(_ranks(text)) == ranks


def test_which_job_is_meant() -> None:
    rows = [
        rank_row(0, owner=7, job_id="a"),
        rank_row(0, owner=8, job_id="a"),
        rank_row(0, owner=7, job_id="b", state="finished"),
    ]
    assert choose_job(rows, "a", 7) == LocalJob(7, "a")
    assert choose_job(rows, None, 7) == LocalJob(7, "a")  # the one that runs
    assert choose_job(rows, "b", 7) == LocalJob(7, "b")
    assert choose_job(rows, "8:a", 0) == LocalJob(8, "a")
    uuid = "1e3cf4d3-6886-4887-8784-f55cca61a5f5"
    known = [
        rank_row(0, owner=7, job_id=uuid, facts={"script": "train.py"}),
        rank_row(0, owner=7, job_id="2e", state="finished", facts={"script": "train.py"}),
    ]
    for name in ("train.py", "7:train.py", "1e3c", "7:1e3c", uuid):
        assert choose_job(known, name, 7) == LocalJob(7, uuid), name
    for name, user, text in (
        ("a", 0, "name one of them: 7:a and 8:a"),
        (None, 0, "2 jobs run here"),
        ("a", 9, "its user asks, or root"),
        ("c", 7, "no job c of this user is seen on this machine; a runs, 1 job has ended"),
        (None, 9, "no job of this user runs here"),
    ):
        with pytest.raises(UsageError, match=text):
            choose_job(rows, name, user)


Start = Callable[..., RankProcess]


@pytest.fixture
def ask_folder(rank_dir: Path) -> Path:
    """The folder that `laggard run` made, in which this user asks."""
    folder = rank_dir if os.geteuid() == 0 else rank_dir / str(os.geteuid())
    folder.mkdir(exist_ok=True)
    return folder


def answering(rank_dir: Path, rank: RankProcess, number: int, folder: Path) -> Callable[[float, str], None]:
    """What plays the rank's part: it answers when it sees the ask."""

    def look(_: float, text: str) -> None:
        ask = read_ask(str(folder / ".ask"), frozenset({0, os.geteuid()}))
        if ask is not None:
            document = sampled(number, 0.5, pid=int(rank.path.name.partition("-")[0]), ask=ask.ident)
            rank.path.with_suffix(".stacks").write_bytes(encode(document))

    return look


@as_root
def test_root_asks_every_users_ranks_in_the_nodes_folder(rank_dir: Path, start_rank: Start) -> None:
    mine, other = start_rank(rank=0, user=OTHER), start_rank(rank=1, user=NOBODY)
    assert other.path.exists()
    files = RankFiles(str(rank_dir), "n0")

    def look(share: float, text: str) -> None:
        answering(rank_dir, mine, 0, rank_dir)(share, text)
        os.chown(mine.path.with_suffix(".stacks"), OTHER, OTHER)

    found = ask_node(files, f"{OTHER}:j1", (), 20, 1.0, look)
    assert sorted(found.sampled) == [0] and not found.missing
    assert (rank_dir / ".ask").stat().st_uid == 0


def test_a_rank_that_ended_and_one_that_is_stopped_are_told_with_what_they_left(
    rank_dir: Path, ask_folder: Path, start_rank: Start
) -> None:
    import signal

    ended, stopped, runs = (start_rank(rank=number) for number in range(3))
    left = sampled(0, pid=int(ended.path.name.partition("-")[0]), why="failed")
    ended.path.with_suffix(".stacks").write_bytes(encode(left))
    ended.kill()
    stopped.process.send_signal(signal.SIGSTOP)
    files = RankFiles(str(rank_dir), "n0")
    try:
        deadline = time.monotonic() + 60
        while not any(row.stopped for row in files.read().ranks):
            assert time.monotonic() < deadline
        found = ask_node(files, "j1", (0, 1, 2, 9), 20, 1.0, answering(rank_dir, runs, 2, ask_folder))
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    assert found.sampled[0] == left and sorted(found.sampled) == [0, 2]
    assert {it.rank: it.reason for it in found.missing} == {
        1: "its process is stopped, by a signal or a debugger",
        9: "it does not run on this machine",
    }


def test_a_rank_that_does_not_answer_is_told(
    rank_dir: Path, ask_folder: Path, start_rank: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from laggard.stack_answers import node

    monkeypatch.setattr(node, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(node, "_LATE_SECONDS", 0.5)
    start_rank(rank=0)
    files = RankFiles(str(rank_dir), "n0")
    shown: list[Any] = []
    found = ask_node(files, "j1", (), 20, 0.5, lambda share, text: shown.append(text))
    assert not found.sampled and "did not answer within 1 s" in found.missing[0].reason
    assert shown and shown[0] == "0 of 1 ranks have answered"


def test_a_rank_without_stacks_is_told_with_its_place_in_the_kernel() -> None:
    silent = "it did not answer within 25 s: its laggard hangs"
    missing = (
        MissingStacks(1, "its process is stopped, by a signal or a debugger", "stopped by a signal"),
        MissingStacks(2, silent, "uninterruptible: rpc_wait_bit_killable (system call read, NFS)"),
        MissingStacks(3, "it has ended"),
    )
    assert told(missing=missing)[1:-1] == [
        "No stacks of rank 1: its process is stopped by a signal.",
        f"No stacks of rank 2: {silent}; it is uninterruptible: rpc_wait_bit_killable (system call read, NFS).",
        "No stacks of rank 3: it has ended.",
    ]


def test_a_rank_that_stands_in_a_file_is_told_with_its_place_in_the_kernel() -> None:
    lines = told(standing(2, "save", 41)._replace(kernel="uninterruptible: nfs_wait_on_request (NFS)"))
    assert lines[1] == (
        "Rank 2: save (ckpt.py:41) (made no progress for 31 s); uninterruptible: nfs_wait_on_request (NFS)"
    )
