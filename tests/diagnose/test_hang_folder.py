"""What ranks kept of a standstill is read: whose stack is in no collective, and what their own files say."""

import json
from pathlib import Path

import pytest
from support.diagnosed import answer_in_words

from laggard.cli import main
from laggard.stacks.fault_text import header
from laggard.stacks.kernel_side import SLEEPING, STOPPED, SUFFIX, UNINTERRUPTIBLE, KernelSide, Unanswered, encode
from laggard.stacks.sampled import ASKED, NO_FRAME, STALLED, Counted, Frame, Sampled, Thread, write

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
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1
    assert f"Rank {culprit}" in text
    assert "feed (/home/u/data.py:41)" in text
    assert "no known format" not in text.lower()


def test_dumps_of_faulthandler_are_of_their_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, frames in enumerate((WAIT, STUCK, WAIT)):
        lines = [f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in frames]
        text = "Current thread 0x0000000000000001 (most recent call first):\n" + "\n".join(lines) + "\n"
        (tmp_path / f"rank-{rank}.fault").write_bytes(header("j", rank, "n", 100 + rank, 1) + text.encode())
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and "Rank 1" in text and "feed (/home/u/data.py:41)" in text


def test_samples_of_ranks_that_go_on_are_no_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenize = (Frame("tokenize", "/home/u/train.py", 16), MODULE)
    for rank, slow in ((0, 0), (1, 148)):
        seen = (Counted(slow, tokenize), Counted(190 - slow, WAIT, "backward")) if slow else (Counted(190, WAIT),)
        sampled = Sampled("j", rank, "n", 100 + rank, ASKED, 1.0, 10.0, (Thread("MainThread", seen),))
        write(str(tmp_path / f"rank-{rank}.stacks"), sampled)
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 2 and "hung" not in text, text
    status, text = main(["locate", "--trace", str(tmp_path)]), capsys.readouterr().out
    assert status == 2
    told = "the processes go on, rank 1 differs: 78 % of the samples in tokenize (train.py:16)"
    assert text.startswith(f"Cannot tell: {told}"), text


def test_a_rank_that_stands_still_while_somebody_asks_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, frames in enumerate((WAIT, STUCK, WAIT)):
        thread = Thread("MainThread", (Counted(200, frames),))
        write(str(tmp_path / f"rank-{rank}.stacks"), Sampled("j", rank, "n", 100 + rank, ASKED, 1.0, 10.0, (thread,)))
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and "Rank 1 hung in feed (/home/u/data.py:41)" in text, text


def test_the_main_thread_counts_wherever_faulthandler_puts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    helper = [Frame("heartbeat", "/app/fh.py", 5), Frame("_bootstrap", "/usr/lib/python3.11/threading.py", 1002)]
    for rank, frames in enumerate((WAIT, STUCK, WAIT, WAIT)):
        lines = ["Timeout (0:05:00)!"]
        for number, thread in enumerate((helper, frames)):
            lines.append(f"Thread 0x{number + 10:016x} (most recent call first):")
            lines += [f'  File "{each.file}", line {each.line} in {each.function}' for each in thread]
        (tmp_path / f"rank{rank}.txt").write_text("\n".join([*lines, "", f"# {rank}", ""]))
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and "hung in feed (/home/u/data.py:41)" in text, text


def test_files_without_a_stack_accuse_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        (tmp_path / f"rank-{rank}.fault").write_bytes(header("j", rank, "n", 100 + rank, 1))
        stacks(tmp_path, rank, WAIT, "n")
    status, text = answer_in_words(capsys, tmp_path)
    assert status != 1, text


def unanswered(folder: Path, rank: int, side: KernelSide) -> None:
    seen = Unanswered("j", rank, f"n{rank}", 100 + rank, 1.0, 31.0, side)
    (folder / f"rank-{rank}{SUFFIX}").write_bytes(encode(seen))


@pytest.mark.parametrize(
    ("side", "told"),
    [
        (KernelSide(STOPPED, "do_signal_stop"), "was stopped: its process 102 is in state T in do_signal_stop"),
        (KernelSide(UNINTERRUPTIBLE, "rpc_wait_bit_killable"), "hangs in the kernel: its process 102 is in state D in"),
    ],
)
def test_a_rank_that_could_write_nothing_is_named_by_its_place_in_the_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: KernelSide, told: str
) -> None:
    for rank in (0, 1, 3):
        stacks(tmp_path, rank, WAIT, f"n{rank}")
    unanswered(tmp_path, 2, side)
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and "Rank 2 on n2" in text and told in text, text


def test_a_rank_that_sleeps_in_the_kernel_is_accused_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1, 3):
        stacks(tmp_path, rank, WAIT, f"n{rank}")
    unanswered(tmp_path, 2, KernelSide(SLEEPING, "futex_wait_queue"))
    status, text = answer_in_words(capsys, tmp_path)
    assert status != 1, text


def test_a_rank_outside_python_is_accused_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1, 3):
        stacks(tmp_path, rank, WAIT, f"n{rank}")
    stacks(tmp_path, 2, (NO_FRAME,), "n2")
    status, text = answer_in_words(capsys, tmp_path)
    assert status != 1, text
    assert "known format" not in text, text
