"""Where in the code: real jobs of two ranks over gloo, each with a fault of its own, told from their recording."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.torch_version import GLOO_CAN_BE_RECORDED

from laggard.recording.judged import judge_recording

pytestmark = [pytest.mark.slow, pytest.mark.apart]

TRAIN = """
import ctypes, os, queue, re, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

def tokenize(text):
    until = time.monotonic() + 0.06
    while time.monotonic() < until:
        re.findall("a+b", text)

def keep_forever():
    queue.Queue().get()

def hold_the_gil():
    ctypes.PyDLL(None).sleep(600)

class Slow(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        if rank == 1 and fault == "getitem": self.decode()
        return torch.ones(64)
    def decode(self): time.sleep(0.02)

fault, rank = os.environ["FAULT"], int(os.environ["RANK"])
if fault == "start":
    from torch.utils.file_baton import FileBaton
    open("lock", "w").close()
    FileBaton("lock").wait()
    if "NEVER" in os.environ: raise TimeoutError("the store did not answer")
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(DataLoader(Slow(), batch_size=4, num_workers=1 if fault == "getitem" else 0))
for step in range(int(os.environ.get("STEPS", "1000000"))):
    batch = next(batches)
    if rank == 1:
        if fault == "tokenize": tokenize("aaab" * 99)
        if fault == "queue" and step == 12: keep_forever()
        if fault == "gil" and step == 12: time.sleep(1); hold_the_gil()
        if fault == "raise" and step == 12: raise OSError("no such thing")
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
    time.sleep(0.01)
dist.barrier()
"""


def at(function: str, text: str) -> str:
    """A place in the script: that of its line with this text."""
    (line,) = (number for number, line in enumerate(TRAIN.split("\n"), 1) if text in line)
    return f"{function} (train.py:{line})"


@contextmanager
def job(folder: Path, fault: str, extra: Mapping[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The two ranks of a job, recorded into folder/recording."""
    (folder / "train.py").write_text(TRAIN)
    port = free_port()
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"},
            **{"OMP_NUM_THREADS": "1", "LAGGARD_RANK_DIR": str(folder / "ranks"), "LAGGARD_JOB_ID": "j"},
            **{"LAGGARD_NODE": f"n{rank}", "LAGGARD_STACKS": "5", "FAULT": fault, **extra},
        }
        words = [sys.executable, "-m", "laggard", "run", "--record", str(folder / "recording"), "train.py"]
        with open(folder / f"{rank}.log", "wb") as log:
            ranks.append(subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log))
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def wait_for(files: str, folder: Path, count: int = 2) -> None:
    until = time.monotonic() + 240
    while len(list(folder.glob(files))) < count:
        assert time.monotonic() < until, f"no {files}: {(folder / '1.log').read_text()[-2000:]}"
        time.sleep(0.2)


def culprit(folder: Path) -> Any:
    location = judge_recording([str(folder / "recording")]).location
    (found,) = location.culprits
    assert found.ranks == (1,), location
    return found


@pytest.mark.parametrize(("fault", "place"), [("tokenize", "tokenize (train.py:"), ("getitem", "decode (train.py:")])
def test_the_line_of_a_slow_rank_is_told(tmp_path: Path, fault: str, place: str) -> None:
    with job(tmp_path, fault, {"STEPS": "60"}) as ranks:
        assert [process.wait(240) for process in ranks] == [0, 0], (tmp_path / "1.log").read_text()
    stack = culprit(tmp_path).stack
    assert stack is not None and stack.place.startswith(place)
    assert stack.frames[0].split(" ")[0].rpartition(".")[2] in ("decode", "tokenize", "findall")


@pytest.mark.parametrize(
    ("fault", "place"),
    [("queue", at("keep_forever", "Queue().get()")), ("gil", at("hold_the_gil", "sleep(600)"))],
)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_line_of_a_hung_rank_outlives_the_job(
    tmp_path: Path, fault: str, place: str, end: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    with job(tmp_path, fault, {}) as ranks:
        wait_for("recording/hang-*/rank-0.stacks", tmp_path, 1)
        left = "rank-1.fault" if fault == "gil" else "hang-*/rank-1.stacks"
        until = time.monotonic() + 60  # a busy machine may have made them stand still before
        while not any(place.split()[0].encode() in it.read_bytes() for it in (tmp_path / "recording").glob(left)):
            assert time.monotonic() < until
            time.sleep(0.2)
        for process in ranks:
            process.send_signal(end)
        assert [process.wait(60) for process in ranks] == [-end, -end]
    location = judge_recording([str(tmp_path / "recording")]).location
    told = " ".join([*(note.text for note in location.notes), *(str(each.stack) for each in location.culprits)])
    assert place in told, location
    from laggard.cli import main

    main(["diagnose", str(tmp_path / "recording")])
    assert place.partition(" ")[0] in capsys.readouterr().out


def recorded(folder: Path) -> list[str]:
    """What the two ranks have recorded so far."""
    files = [folder / "recording" / f"rank-{rank}.jsonl" for rank in range(2)]
    return [file.read_text() if file.exists() else "" for file in files]


def test_a_rank_that_is_stopped_is_told_by_the_one_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with job(tmp_path, "none", {}) as ranks:
        until = time.monotonic() + 240
        while not all('"kind": "step"' in text for text in recorded(tmp_path)):
            assert time.monotonic() < until, recorded(tmp_path)
            time.sleep(0.2)
        ranks[1].send_signal(signal.SIGSTOP)
        wait_for("recording/hang-*/rank-1.kernel", tmp_path, 1)
        (seen,) = (tmp_path / "recording").glob("hang-*/rank-1.kernel")
        assert not list(seen.parent.glob("rank-0.kernel")), "it writes for itself"
        for process in ranks:
            process.kill()
    from laggard.cli import main

    assert main(["diagnose", str(seen.parent)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert f"Rank 1 on n1 was stopped: its process {ranks[1].pid} is in state T" in told, told


@pytest.mark.skipif(not GLOO_CAN_BE_RECORDED, reason="this torch's Flight Recorder does not hold gloo's collectives")
def test_the_flight_recorder_of_a_hung_job_is_kept_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with job(tmp_path, "queue", {"TORCH_FR_BUFFER_SIZE": "200"}) as ranks:
        wait_for("recording/hang-*/flight_recorder_*.json", tmp_path)
        for process in ranks:
            process.kill()
    dumps = sorted((tmp_path / "recording").glob("hang-*/flight_recorder_*.json"))
    from laggard.cli import main

    assert main(["locate", "--trace", str(dumps[0].parent)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("Rank 1"), told
    assert main(["diagnose", str(dumps[0].parent)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "Rank 1" in told and "keep_forever" in told and "no known format" not in told, told


def test_an_exceptions_line_is_told(tmp_path: Path) -> None:
    with job(tmp_path, "raise", {}) as ranks:
        assert ranks[1].wait(240) == 1
        ranks[0].wait(240)
    stack = culprit(tmp_path).stack
    assert stack is not None and stack.place == at("<module>", "raise OSError")


def test_a_job_that_comes_to_no_step_says_where_it_stands(tmp_path: Path) -> None:
    with job(tmp_path, "start", {}) as ranks:
        wait_for("recording/*.stacks", tmp_path)
        wait_for("ranks/*/*.unseen", tmp_path)
        (mark, _) = (json.loads(path.read_text()) for path in (tmp_path / "ranks").glob("*/*.unseen"))
        assert "FileBaton.wait (file_baton.py:" in mark["why"] or "wait (file_baton.py:" in mark["why"]
        for process in ranks:
            process.kill()
    location = judge_recording([str(tmp_path / "recording")]).location
    (note,) = location.notes
    assert note.kind == "stacks" and "ranks 0-1 in" in note.text and at("<module>", "FileBaton(") in note.text
    (folder,) = (tmp_path / "recording").glob("hang-*")
    (of_folder,) = judge_recording([str(folder)]).location.notes
    assert of_folder.text == note.text


def test_a_start_that_was_only_slow_leaves_nothing_of_it(tmp_path: Path) -> None:
    with job(tmp_path, "start", {"STEPS": "30"}) as ranks:
        wait_for("recording/hang-*/*.stacks", tmp_path)
        (tmp_path / "lock").unlink()
        assert [process.wait(240) for process in ranks] == [0, 0], (tmp_path / "1.log").read_text()
    assert not [*(tmp_path / "recording").glob("hang-*"), *(tmp_path / "recording").glob("*.stacks")]
    assert "stacks" not in [note.kind for note in judge_recording([str(tmp_path / "recording")]).location.notes]


def test_a_start_that_an_exception_ended_keeps_where_it_stood(tmp_path: Path) -> None:
    with job(tmp_path, "start", {"NEVER": ""}) as ranks:
        wait_for("recording/hang-*/*.stacks", tmp_path)
        (tmp_path / "lock").unlink()
        assert [process.wait(240) for process in ranks] == [1, 1]
    assert len([*(tmp_path / "recording").glob("hang-*/*.stacks")]) == 2
    assert not list((tmp_path / "ranks").glob("*/*.stacks"))


def test_a_healthy_job_is_told_no_line(tmp_path: Path) -> None:
    with job(tmp_path, "none", {"STEPS": "60"}) as ranks:
        assert [process.wait(240) for process in ranks] == [0, 0], (tmp_path / "1.log").read_text()
    location = judge_recording([str(tmp_path / "recording")]).location
    assert not any(each.stack for each in location.culprits)
    assert "stacks" not in [note.kind for note in location.notes]
    assert not list((tmp_path / "recording").glob("*.fault")) and not list((tmp_path / "recording").glob("hang-*"))
    assert not list((tmp_path / "ranks").glob("*/*.stacks"))


def test_stacks_can_be_switched_off(tmp_path: Path) -> None:
    with job(tmp_path, "none", {"STEPS": "20", "LAGGARD_STACKS": "0"}) as ranks:
        assert [process.wait(240) for process in ranks] == [0, 0]
    lines = (tmp_path / "recording" / "rank-1.jsonl").read_text()
    assert '"kind": "step"' in lines and '"kind": "stacks"' not in lines
