"""A rank's recording, however the rank ends: its lines are whole, and what it lacks is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laggard.collector.recording.reader import RecordedTimings, read_recording
from laggard.trainer_hooks.output.line_file import LineFile

pytestmark = pytest.mark.slow  # trainings with torch

TRAINER = """
import os, signal, sys, time
from laggard.rankfile import Lane
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.collectives.process_group import hook_calls
from laggard.trainer_hooks.record.recorder import BACKWARD, FORWARD, INPUT, OPTIMIZER
session = Session(); session.open(); recorder = session.recorder

class Groups:
    "Stands in for torch's process groups."
    def lane_logs(self, op):
        return {}

    def lane_log(self, recorder, op, group, peer=-1):
        return recorder.lane(Lane(op, "dp", "dp:0-1"), (0, 1))

class Tensor:
    nbytes = 4096

class Group:
    def allreduce(self, tensor, end=lambda: None):
        end()

hook_calls(Group, recorder, Groups())
reduce = Group().allreduce

def step(end=lambda: None):
    for phase in (INPUT, FORWARD, BACKWARD, OPTIMIZER):
        recorder.enter(phase); time.sleep(0.001)
        if phase == BACKWARD: reduce(Tensor()); reduce(Tensor(), end)
        recorder.leave()
    recorder.end_step(recorder.step + 1)

for _ in range(9): step()
"""


def train(
    folder: Path, body: str, recording: Path | None = None, hooks: bool = True
) -> subprocess.CompletedProcess[str]:
    extra = {"LAGGARD_RECORD_DIR": str(recording or folder / "recording"), "LAGGARD_RANK_DIR": str(folder / "ranks")}
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", **extra}
    return subprocess.run(
        [sys.executable, "-c", TRAINER + body], env=environment, capture_output=True, text=True, timeout=300
    )


def records(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "recording" / "rank-0.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in records(folder) if record.get("kind") == kind]


def trace(folder: Path) -> RecordedTimings:
    return read_recording([folder / "recording"])


def raises(error: str) -> str:
    return f"\ndef end(): raise {error}\nstep(end)"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 0),
        (raises("SystemExit(3)"), 3),
        (raises("RuntimeError('no peer')"), 1),
        ("raise SystemExit(4)", 4),
    ],
)
def test_it_is_complete_where_python_ends_the_process(tmp_path: Path, body: str, status: int) -> None:
    done = train(tmp_path, body)
    assert done.returncode == status, done.stderr
    assert [step["step"] for step in of_kind(tmp_path, "step")] == list(range(9))
    end = records(tmp_path)[-1]
    assert {name: end.pop(name) for name in ("kind", "rank", "lost")} == {"kind": "end", "rank": 0, "lost": 0}
    if "RuntimeError" in body:
        del end["at_seconds"]
        assert end == {"exit_code": 1, "exception": "RuntimeError", "others_failed": False}
    else:  # Python tells its hook of uncaught exceptions nothing of sys.exit(): `laggard run` alone sees that
        assert end == {}
    assert trace(tmp_path).gaps == ()
    unfinished = [record for record in of_kind(tmp_path, "collective") if record["step"] == 9]
    assert [record["end"] is None for record in unfinished] == ([False, True] if "end" in body else [])
    assert trace(tmp_path).timings.steps.tolist() == list(range(9))  # the unfinished step does not count


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.execv('/bin/true', ['true'])", 0),
    ],
)
def test_it_has_whole_steps_and_a_reported_loss_where_the_kernel_ends_the_process(
    tmp_path: Path, end: str, status: int
) -> None:
    done = train(tmp_path, f"\ndef end(): time.sleep(0.5); {end}\nstep(end)")
    assert done.returncode == status, done.stderr
    assert [step["step"] for step in of_kind(tmp_path, "step")] == list(range(9))
    assert len(of_kind(tmp_path, "collective")) == 2 * 9
    gap = "the recording of rank 0 has no end: its process was killed, and what it did after step 8 is lost"
    assert trace(tmp_path).gaps == (gap,)


def test_the_end_of_a_process_without_torch_does_not_import_it(tmp_path: Path) -> None:
    before = "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules))\n"  # runs after laggard's own
    done = subprocess.run(
        [sys.executable, "-c", before + TRAINER],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LAGGARD_RANK_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_rank_that_is_killed_at_once_leaves_a_recording(tmp_path: Path) -> None:
    body = """
import os
from laggard.trainer_hooks.output import line_file
line_file.LineFile._write_queue = lambda self: None  # the thread has not come to run yet
from laggard.trainer_hooks.session import Session
Session().open()
os._exit(3)
"""
    environment = {**os.environ, "LAGGARD_RECORD_DIR": str(tmp_path), "LAGGARD_RANK_DIR": str(tmp_path / "ranks")}
    assert subprocess.run([sys.executable, "-c", body], env=environment, timeout=300).returncode == 3
    (gap,) = (each for each in read_recording([tmp_path / "rank-0.jsonl"]).gaps if "killed" in each)
    assert gap.startswith(f"{tmp_path}/rank-0.jsonl holds no record")


def test_a_forked_child_that_exits_normally_writes_nothing_twice(tmp_path: Path) -> None:
    body = """
def fork():
    if os.fork() == 0:
        step(); step()
        sys.exit(0)
    os.wait()
step(fork)
"""
    assert train(tmp_path, body).returncode == 0
    assert [step["step"] for step in of_kind(tmp_path, "step")] == list(range(10))
    assert len(of_kind(tmp_path, "collective")) == 20 and len(of_kind(tmp_path, "end")) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for a few dozen steps."""
    place = tmp_path / "recording"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "laggard-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount).returncode:
        pytest.skip("needs root and the right to mount: it fills a small tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_one_line_and_the_training_goes_on(small_disk: Path, tmp_path: Path) -> None:
    body = "\nfor _ in range(100): step()\nrecorder.drain()\nprint(recorder.totals.lost, recorder.totals.errors)"
    done = train(tmp_path, body, small_disk)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.endswith("rank-0.jsonl ends here, the training goes on: No space left on device"), line
    there = [step["step"] for step in of_kind(tmp_path, "step")]
    assert there == list(range(len(there))) and 9 < len(there) < 109
    lost, errors = map(int, done.stdout.split())
    assert (lost, errors) == ((109 - len(there)) * 8, 0)  # a step has five spans, two collectives and itself
    assert "has no end" in trace(tmp_path).gaps[0]


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = train(tmp_path, "", tmp_path / "file" / "recording")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"laggard: no recording in {tmp_path}/file/recording: [Errno 20] Not a directory")


def test_a_recording_is_bounded_and_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = LineFile(str(tmp_path / "x.jsonl"), max_bytes=1000)
    for _ in range(30):
        for _ in range(3):
            file.write("x" * 19)
        file.flush()
    assert file.lost == 90 - 48 == file.newly_lost() and file.newly_lost() == 0
    file.close()
    assert (tmp_path / "x.jsonl").stat().st_size == 960  # 16 times 3 lines of 20
    assert len(caplog.records) == 1 and "960 bytes, and the limit is 1000" in caplog.text


def test_a_stuck_disk_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """os.write stands in for a disk on a file server that has gone away."""
    gone = threading.Event()
    monkeypatch.setattr("laggard.trainer_hooks.output.line_file.os.write", lambda *_: gone.wait(300) and 0)
    file = LineFile(str(tmp_path / "x.jsonl"))
    began = time.monotonic()
    for _ in range(80):
        file.write("x" * (1 << 20))
        file.flush()
    assert 0 < file.lost < 30, "the queue is bounded"
    file.close()
    assert time.monotonic() - began < 150
    assert len(caplog.records) == 1 and "its disk is too slow" in caplog.text
    monkeypatch.undo()
    gone.set()
