"""`laggard diagnose` on dumps of stacks as people paste them: cut, prefixed, of several tools; and nobody is accused
whose stack shows a wait."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.diagnosed import answer_in_words

Place = tuple[str, str, int]
MODULE: Place = ("<module>", "/w/train.py", 90)
WAIT: tuple[Place, ...] = (
    ("all_reduce", "torch/distributed/distributed_c10d.py", 9),
    ("step", "/w/train.py", 50),
    MODULE,
)
STUCK: tuple[Place, ...] = (("read", "/w/store.py", 9), ("fetch", "/w/data.py", 41), MODULE)


def spy(pid: int, frames: Sequence[Place], head: bool = True, rank: int | None = None) -> str:
    first = f"Process {pid}: python train.py\nPython v3.10.12 (/usr/bin/python3.10)\n\n" if head else ""
    held = "" if rank is None else f"        Arguments:\n            rank: {rank}\n"
    lines = "".join(f"    {name} ({file}:{line})\n" for name, file, line in frames)
    return f'{first}Thread {pid} (idle): "MainThread"\n{lines}{held}\n'


def pystack(pid: int, frames: Sequence[Place]) -> str:
    lines = "".join(
        f'    (Python) File "{file}", line {line}, in {name}\n        x = it()\n' for name, file, line in frames[::-1]
    )
    helper = '    (Python) File "/usr/lib/python3.10/threading.py", line 966, in _bootstrap\n'
    of_helper = f"Traceback for thread {pid + 9} (python) [] (most recent call last):\n{helper}\n"
    wait = '    (C) File "???", line 0, in pthread_cond_wait (/lib/libc.so.6)\n'
    return f"{of_helper}Traceback for thread {pid} (python) [] (most recent call last):\n{lines}{wait}\n"


def gdb(pid: int, frames: Sequence[Place]) -> str:
    text = f"Attaching to process {pid}\n(gdb) thread apply all bt\n\n"
    text += f'Thread 2 (Thread 0x7f0a (LWP {pid + 9}) "python"):\n'
    text += "#0  0x00007f05 in poll () from /lib/libc.so.6\n"
    text += "#1  0x00007f06 in ncclProxyService (_args=0x1)\n    at proxy.cc:1437\n\n"
    text += f'Thread 1 (Thread 0x7f0b (LWP {pid}) "python"):\n#0  0x00007f07 in futex_wait () from /lib/libc.so.6\n'
    for number, (name, file, line) in enumerate(frames, 1):
        frame = f"f=Frame 0x7f, for file {file}, line {line}, in {name} (x=1)"
        text += f"#{number}  0x00005603 in _PyEval_EvalFrameDefault ({frame}) at ceval.c:1\n"
    return text + "\n"


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def of_ranks(culprit: int = 2, ranks: int = 4) -> Mapping[int, Sequence[Place]]:
    return {rank: STUCK if rank == culprit else WAIT for rank in range(ranks)}


@pytest.mark.parametrize("dump", [spy, pystack, gdb])
def test_dumps_of_each_tool_name_the_rank_and_quote_the_frame_that_stands_still(
    dump: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(dump)
    for rank, frames in of_ranks().items():
        put(tmp_path / f"rank{rank}.txt", dump(100 + rank, frames))
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and text.startswith("Rank 2 hung in read (/w/store.py:9): it is in no collective"), text
    lines = (tmp_path / "rank2.txt").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if re.search(r"\bread\b", line))
    assert f"first rank2.txt:{number} (rank 2)" in text and "shows" not in text, text


@pytest.mark.parametrize("dump", [spy, pystack, gdb])
def test_several_dumps_in_one_file_are_of_several_processes(
    dump: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(dump)
    path = put(tmp_path / "all.txt", "".join(dump(100 + 20 * rank, frames) for rank, frames in of_ranks().items()))
    status, text = answer_in_words(capsys, path)
    assert status == 1 and "rocess 140 hung in read (/w/store.py:9)" in text and "the 3 others" in text, text


def test_heads_that_were_cut_off_are_no_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path / "x.txt", "".join(spy(100 + rank, it, head=False) for rank, it in of_ranks().items()))
    status, text = answer_in_words(capsys, path)
    assert status == 1 and text.startswith("Process 102 hung in read (/w/store.py:9)"), text


@pytest.mark.parametrize("head", ["[rank{}]:", "2026-11-26T05:17:21.608Z [rank{}]:", "{}: "])
def test_a_head_before_each_line_tells_the_rank(head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = zip(*(spy(100 + rank, it).splitlines() for rank, it in of_ranks().items()), strict=True)
    text = "".join(f"{head.format(rank)}{line}\n" for lines in mixed for rank, line in enumerate(lines))
    status, told = answer_in_words(capsys, put(tmp_path / "x.txt", text))
    assert status == 1 and told.startswith("Rank 2 hung in read (/w/store.py:9)"), told


def test_a_line_above_each_dump_tells_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"========rank{rank}========\n{spy(100, frames)}" for rank, frames in of_ranks().items())
    _, told = answer_in_words(capsys, put(tmp_path / "x.txt", text))
    assert told.startswith("Rank 2 hung in read (/w/store.py:9)"), told


def test_files_with_the_same_stack_count_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, frames in of_ranks().items():
        lines = "".join(f'  File "{file}", line {line} in {name}\n' for name, file, line in frames)
        put(tmp_path / f"rank{rank}.txt", f"Thread 0x00007f02b75edb80 (most recent call first):\n{lines}")
    _, text = answer_in_words(capsys, tmp_path)
    assert "ranks 0-1 and 3 are in all_reduce" in text, text


def test_ranks_in_one_collective_are_told_and_none_is_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "x.txt", "".join(spy(100 + rank, WAIT) for rank in range(4)))
    status, text = answer_in_words(capsys, path)
    assert status == 2 and "all 4 stand in all_reduce" in text and "hung" not in text, text


INNOCENT: Mapping[str, Place] = {
    "a launcher": ("_invoke_run", "torch/distributed/elastic/agent/server/api.py", 8),
    "a loader's worker": ("_worker_loop", "torch/utils/data/_utils/worker.py", 8),
    "an idle actor": ("main_loop", "ray/_private/worker.py", 8),
    "ZeRO's gather": ("all_gather_coalesced", "deepspeed/runtime/zero/partition_parameters.py", 8),
    "a pipeline's neighbour": ("_communicate", "megatron/core/pipeline_parallel/p2p_communication.py", 8),
    "a message": ("dequeue", "vllm/distributed/device_communicators/shm_broadcast.py", 8),
}


@pytest.mark.parametrize("who", INNOCENT)
def test_who_waits_or_trains_nothing_is_not_accused(
    who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(spy(100 + rank, WAIT) for rank in range(3)) + spy(103, (INNOCENT[who], MODULE))
    status, told = answer_in_words(capsys, put(tmp_path / "x.txt", text))
    assert status == 2 and "hung" not in told, told


BARRIER: tuple[Place, ...] = (
    ("barrier", "torch/distributed/distributed_c10d.py", 4),
    ("save", "/w/ckpt.py", 21),
    MODULE,
)
GATHER: tuple[Place, ...] = (
    ("all_gather", "torch/distributed/distributed_c10d.py", 3),
    ("_save_state_dict", "torch/distributed/checkpoint/state_dict_saver.py", 312),
    ("_worker", "concurrent/futures/thread.py", 83),
)
BACKWARD: tuple[Place, ...] = (
    ("_engine_run_backward", "torch/autograd/graph.py", 7),
    ("step", "/w/train.py", 50),
    MODULE,
)


def with_thread(pid: int, main: Sequence[Place], second: Sequence[Place]) -> str:
    frames = "".join(f"    {name} ({file}:{line})\n" for name, file, line in second)
    return spy(pid, main) + f'Thread {pid + 9} (active): "AsyncCheckpointExecutor_0"\n{frames}\n'


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("together", [False, True])
def test_two_threads_of_each_process_in_collectives_are_told(
    ranks: int, together: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = [with_thread(100 + 20 * rank, BARRIER, GATHER) for rank in range(ranks)]
    for rank, text in enumerate(["".join(dumps)] if together else dumps):
        put(tmp_path / f"rank{rank}.txt", text)
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and "in two collectives at once" in text, text
    assert "barrier at save (/w/ckpt.py:21)" in text and "all_gather at _save_state_dict" in text, text


@pytest.mark.parametrize("main", [BACKWARD, (("forward", "/w/model.py", 8), MODULE)])
def test_a_second_thread_that_alone_is_in_a_collective_is_by_design(
    main: Sequence[Place], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        put(tmp_path / f"rank{rank}.txt", with_thread(100 + 20 * rank, main, GATHER))
    status, text = answer_in_words(capsys, tmp_path)
    assert status != 1 and "at once" not in text, text


def test_one_process_of_four_with_two_waits_accuses_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        put(tmp_path / f"rank{rank}.txt", with_thread(100, WAIT, GATHER) if rank == 2 else spy(100 + 20 * rank, WAIT))
    status, text = answer_in_words(capsys, tmp_path)
    assert status != 1 and "at once" not in text, text


@pytest.mark.parametrize(
    ("place", "does"),
    [
        (("acquire", "/usr/lib/python3.11/threading.py", 5), "it waits for a lock"),
        (("get", "/usr/lib/python3.11/queue.py", 5), "it waits for a queue"),
        (("recv_into", "/usr/lib/python3.11/socket.py", 5), "it reads or writes"),
        (("get", "/w/cache.py", 5), "in no collective, while"),
        (("tokenize", "/w/data.py", 5), "in no collective, while"),
    ],
)
def test_the_innermost_frame_tells_what_who_is_elsewhere_does(
    place: Place, does: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        put(tmp_path / f"rank{rank}.txt", spy(100 + rank, (place, *STUCK[1:]) if rank == 1 else WAIT))
    status, text = answer_in_words(capsys, tmp_path)
    assert status == 1 and text.startswith("Rank 1 hung in") and does in text, text


def test_a_log_that_holds_a_traceback_is_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'Traceback (most recent call last):\n  File "/w/train.py", line 90, in <module>\n    go()\nKeyError: 3\n'
    _, told = answer_in_words(capsys, put(tmp_path / "x.txt", text))
    assert "KeyError" in told and "stack dump" not in told, told
