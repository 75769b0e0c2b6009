"""What ranks kept of a standstill is read: whose stack is in no collective, and what their own files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from laggard.cli import main
from laggard.stacks.fault_text import header
from laggard.stacks.frames import Frame
from laggard.stacks.sampled import STALLED, Counted, Sampled, Thread, write

MODULE = Frame("<module>", "/home/u/train.py", 120)
WAIT = (Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9), MODULE)
STUCK = (Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171), Frame("feed", "/home/u/data.py", 41), MODULE)


def stacks(folder: Path, rank: int, frames: tuple[Frame, ...], node: str) -> None:
    thread = Thread("MainThread", (Counted(1, frames),))
    write(str(folder / f"rank-{rank}.stacks"), Sampled("j", rank, node, 100 + rank, STALLED, 1.0, 0.0, (thread,), 31.0))


@pytest.mark.parametrize("culprit", [0, 2])
def test_the_rank_that_is_in_no_collective_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], culprit: int
) -> None:
    for rank in range(4):
        stacks(tmp_path, rank, STUCK if rank == culprit else WAIT, f"n{rank}")
        events = {"laggard_events": 1, "step": 7, "phase": "backward", "rank": rank, "lanes": []}
        (tmp_path / f"rank-{rank}.events.json").write_text(json.dumps(events))
    status, text = main(["diagnose", str(tmp_path)]), " ".join(capsys.readouterr().out.split())
    assert status == 1
    assert f"Rank {culprit}" in text
    assert "feed (/home/u/data.py:41)" in text
    assert "no known format" not in text.lower()


def test_dumps_of_faulthandler_are_of_their_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, frames in enumerate((WAIT, STUCK, WAIT)):
        lines = [f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in frames]
        text = "Current thread 0x0000000000000001 (most recent call first):\n" + "\n".join(lines) + "\n"
        (tmp_path / f"rank-{rank}.fault").write_bytes(header("j", rank, "n", 100 + rank, 1) + text.encode())
    status, text = main(["diagnose", str(tmp_path)]), " ".join(capsys.readouterr().out.split())
    assert status == 1 and "Rank 1" in text and "feed (/home/u/data.py:41)" in text


def test_files_without_a_stack_accuse_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        (tmp_path / f"rank-{rank}.fault").write_bytes(header("j", rank, "n", 100 + rank, 1))
        stacks(tmp_path, rank, WAIT, "n")
    status, text = main(["diagnose", str(tmp_path)]), " ".join(capsys.readouterr().out.split())
    assert status != 1, text
