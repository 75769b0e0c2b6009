"""Marks of processes that are not seen as ranks: what an agent tells of them, and what it does with hostile ones."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.rows import rows

from laggard.agent.ranks.reader import RankFiles
from laggard.kit.processes import own_identity
from laggard.rankfile.layout import own_directory
from laggard.rankfile.unseen import MAX_MARKS, STARTING, UNSEEN, UnseenMark, has_room, write_mark


def mark(kind: str = UNSEEN, **changes: Any) -> UnseenMark:
    found = UnseenMark(kind, "job", 1, 4, "n0", "train.py", "no collective", time.time(), own_identity())
    return found._replace(**changes)


def test_a_mark_is_told_while_its_process_runs_and_for_a_while_after(rank_dir: Path) -> None:
    own = own_directory(str(rank_dir))
    gone = {**own_identity(), "start_ticks": 1}
    write_mark(own, mark(), "runs")
    write_mark(own, mark(STARTING, why=""), "starts")
    write_mark(own, mark(process=gone, job_id="ended"), "ended")
    write_mark(own, mark(STARTING, process=gone, job_id="never"), "gone")
    document = RankFiles(str(rank_dir), "n0").read()
    found = {(each.kind, each.job_id, each.running, each.pid) for each in document.unseen}
    assert found == {
        ("unseen", "job", True, os.getpid()),
        ("starting", "job", True, os.getpid()),
        ("unseen", "ended", False, 0),
    }
    assert {each.owner for each in document.unseen} == {os.geteuid()} and document.ignored == ()


def rejected(rank_dir: Path, content: bytes) -> None:
    (Path(own_directory(str(rank_dir))) / "bad.unseen").write_bytes(content)
    document = RankFiles(str(rank_dir), "n0").read()
    assert document.unseen == ()
    (told,) = document.ignored
    assert told.count == 1 and told.example == "bad.unseen" and told.reason.startswith("no mark")


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 4000, b"{" + b" " * 5000])
def test_what_is_no_mark_is_rejected(rank_dir: Path, content: bytes) -> None:
    rejected(rank_dir, content)


@rows("agent/no_marks")
def test_a_mark_with_an_impossible_value_is_rejected(rank_dir: Path, change: dict[str, Any]) -> None:
    rejected(rank_dir, json.dumps({**mark()._asdict(), **change}).encode())


def test_links_pipes_and_floods_cost_nothing(rank_dir: Path) -> None:
    own = Path(own_directory(str(rank_dir)))
    os.mkfifo(own / "pipe.unseen")
    (own / "link.unseen").symlink_to(write_mark(str(rank_dir), mark(), "elsewhere"))
    (own / "folder.unseen").mkdir()
    assert [each.job_id for each in RankFiles(str(rank_dir), "n0").read().unseen] == ["job"], "the file alone"
    for number in range(2 * MAX_MARKS):
        write_mark(str(own), mark(job_id=f"job-{number}"), f"{number}")
    assert len(RankFiles(str(rank_dir), "n0").read().unseen) <= MAX_MARKS
    assert not has_room(str(own))


def test_old_marks_make_room(rank_dir: Path) -> None:
    own = own_directory(str(rank_dir))
    for number in range(MAX_MARKS):
        path = write_mark(own, mark(process={}), f"{number}")
        os.utime(path, (1, 1))
    assert has_room(own) and os.listdir(own) == []
