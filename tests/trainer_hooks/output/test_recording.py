"""A rank's recording, however the rank ends: its lines are whole, and what it lacks is reported."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.rows import rows
from support.sessions import SESSION
from support.waiting import wait_for

from laggard.locate.describe import sentence
from laggard.rankfile import RankFileReader
from laggard.recording.judged import judge_recording
from laggard.recording.reader import RecordedTimings, read_recording
from laggard.trainer_hooks.output.recording import LineFile

pytestmark = pytest.mark.apart

TRAINER = (
    SESSION
    + """
from laggard.trainer_hooks.collectives.process_group import hook_calls

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

def wait_for_steps(count):
    "Until what came before is in the recording: the end of its last step is written behind the rest of it."
    import glob
    def written():
        files = glob.glob(os.path.join(os.environ["LAGGARD_RECORD_DIR"], "rank-" + os.environ["RANK"] + ".jsonl"))
        return sum(open(file).read().count('"kind": "step"') for file in files)
    until = time.monotonic() + 240
    while written() < count:
        assert time.monotonic() < until, "the recording lacks steps"
        time.sleep(0.01)

for _ in range(9): step()
"""
)


def environment_of(folder: Path, rank: int = 0, recording: Path | None = None) -> dict[str, str]:
    kept = str(recording or folder / "recording")
    return sessions.environ_of(folder / "ranks", rank, LAGGARD_RECORD_DIR=kept)


def train(folder: Path, body: str, recording: Path | None = None) -> subprocess.CompletedProcess[str]:
    return sessions.train(TRAINER + body, environment_of(folder, 0, recording))


def records(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "recording" / "rank-0.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def trains(folder: Path, rank: int, body: str) -> Iterator[None]:
    """A rank that trains until it is killed, at the end."""
    process = subprocess.Popen([sys.executable, "-c", TRAINER + body], env=environment_of(folder, rank))
    try:
        yield
        assert process.poll() is None, "the rank ended by itself"
    finally:
        process.kill()
        process.wait()


def lines_of(folder: Path, rank: int, kind: str) -> list[dict[str, Any]]:
    """Its lines of that kind, as far as they are written."""
    file = folder / "recording" / f"rank-{rank}.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else ()
    return [record for record in map(json.loads, lines) if record.get("kind") == kind]


def beats(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The lines about where the rank stands."""
    return lines_of(folder, rank, "beat")


def trace(folder: Path) -> RecordedTimings:
    return read_recording([folder / "recording"])


def raises(error: str) -> str:
    return f"\ndef end(): raise {error}\nstep(end)"


@pytest.mark.slow
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
    assert [step["step"] for step in lines_of(tmp_path, 0, "step")] == list(range(9))
    end = records(tmp_path)[-1]
    assert {name: end.pop(name) for name in ("kind", "rank", "lost")} == {"kind": "end", "rank": 0, "lost": 0}
    assert end.pop("at_seconds") > 0.0
    if "RuntimeError" in body:
        assert end == {"exit_code": 1, "exception": "RuntimeError", "others_failed": False}
    else:  # Python tells its hook of uncaught exceptions nothing of sys.exit(): `laggard run` alone sees that
        assert end == {}
    assert trace(tmp_path).gaps == ()
    unfinished = [record for record in lines_of(tmp_path, 0, "collective") if record["step"] == 9]
    assert [record["end"] is None for record in unfinished] == ([False, True] if "end" in body else [])
    assert trace(tmp_path).timings.steps.tolist() == list(range(9))  # the unfinished step does not count


@pytest.mark.slow
@rows("hooks/kernel_ends")
def test_it_has_whole_steps_and_a_reported_loss_where_the_kernel_ends_the_process(
    tmp_path: Path, end: str, status: int
) -> None:
    done = train(tmp_path, f"\nwait_for_steps(9)\ndef end(): {end}\nstep(end)")
    assert done.returncode == status, done.stderr
    assert [step["step"] for step in lines_of(tmp_path, 0, "step")] == list(range(9))
    assert len(lines_of(tmp_path, 0, "collective")) == 2 * 9
    gap = "the recording of rank 0 has no end: its process was killed, or left by os._exit, and what "
    gap += "it did after step 8 is lost"
    assert trace(tmp_path).gaps == (gap,)


@pytest.mark.slow
def test_of_a_job_that_is_killed_the_recordings_tell_who_was_stopped(tmp_path: Path) -> None:
    more = "\nfor _ in range(20): step()\nwait_for_steps(29)\n"
    stopped, waits = (
        more + "step(lambda: os.kill(os.getpid(), signal.SIGSTOP))",
        more + "step(lambda: time.sleep(1000))",
    )
    with trains(tmp_path, 0, waits), trains(tmp_path, 1, stopped):
        wait_for(lambda: any(it["quiet_seconds"] > 7 for it in beats(tmp_path, 0)))
        living = judge_recording([str(tmp_path / "recording")]).location
    assert sentence(living).startswith("Rank 1 on "), sentence(living)
    assert "is hung, stopped by a signal or a debugger: the others wait for it." in sentence(living)
    (so_far,) = (note.text for note in living.notes if "so far" in note.text)
    assert so_far == "ranks 0-1 have not ended, their processes run: this is what was recorded so far"
    last = beats(tmp_path, 0)[-1]
    assert (last["last_step"], last["phase"]) == (28, "backward")
    flight = last["in_flight"]
    assert (flight["op"], flight["group"], flight["seq"]) == ("all_reduce", "dp:0-1", 60)
    assert 0 <= last["quiet_seconds"] - flight["seconds"] < 120, "it has waited since soon after its last step"
    assert len(beats(tmp_path, 0)) < 4 + last["quiet_seconds"] / 2 and not beats(tmp_path, 1)

    location = judge_recording([str(tmp_path / "recording")]).location
    (culprit,) = location.culprits
    assert sentence(location).startswith(f"Rank 1 on {culprit.node} is hung, stopped by a signal or a debugger")
    assert (culprit.kind, culprit.ranks, culprit.stopped, culprit.victims) == ("hung", (1,), True, (0,))
    assert (culprit.phase, culprit.group) == ("collective", "dp:0-1"), "where its rank file says that it stood"

    for file in (tmp_path / "recording").iterdir():  # nobody saw it, as on another machine
        lines = [line for line in file.read_text().splitlines(keepends=True) if '"kind": "saw"' not in line]
        file.write_text("".join(lines))
    location = judge_recording([str(tmp_path / "recording")]).location
    (culprit,) = location.culprits
    said = f"Rank 1 on {culprit.node} fell silent first, stopped or killed: the others waited for it."
    assert sentence(location) == said
    assert (culprit.kind, culprit.ranks, culprit.silent, culprit.victims) == ("hung", (1,), True, (0,))


@pytest.mark.slow
def test_a_rank_that_looks_at_the_others_keeps_the_lock_by_which_its_agent_knows_that_it_lives(tmp_path: Path) -> None:
    stopped, waits = "step(lambda: os.kill(os.getpid(), signal.SIGSTOP))", "step(lambda: time.sleep(1000))"
    with trains(tmp_path, 0, waits), trains(tmp_path, 1, stopped):
        wait_for(lambda: lines_of(tmp_path, 0, "saw"))
        for path in (tmp_path / "ranks").rglob("*.rank"):
            with RankFileReader(str(path)) as file:
                assert file.lock_holder(), "each rank holds the lock of its file"
        assert len(list((tmp_path / "ranks").rglob("*.rank"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_a_rank_that_fails_tells_which_other_of_its_machine_is_gone(tmp_path: Path, number: signal.Signals) -> None:
    """The last tenth of a second of the one that is killed is lost, and with it where it stood."""
    fails = """
def gone():
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    while open(f"/proc/{open(sys.argv[1]).read()}/stat").read().rpartition(")")[2].split()[0] != "Z": time.sleep(0.01)
    raise RuntimeError("Connection reset by peer")
wait_for_steps(9)
step(gone)
"""
    dies = "\nwait_for_steps(9); open(sys.argv[1] + '.new', 'w').write(str(os.getpid()))"
    dies += f"\nos.rename(sys.argv[1] + '.new', sys.argv[1]); step(lambda: os.kill(os.getpid(), {int(number)}))"
    mark = str(tmp_path / "mark")
    ranks = [
        subprocess.Popen([sys.executable, "-c", TRAINER + body, mark], env=environment_of(tmp_path, rank))
        for rank, body in enumerate((fails, dies))
    ]
    ended = [process.wait(240) for process in ranks]
    assert ended == [1, -number]
    (line,) = lines_of(tmp_path, 0, "saw")
    assert (line["of"], line["state"], line["in_flight"]["seq"]) == (1, "gone", 20)
    location = judge_recording([str(tmp_path / "recording")]).location
    if number == signal.SIGKILL:
        (culprit,) = location.culprits
        assert (culprit.kind, culprit.ranks, culprit.phase) == ("dead", (1,), "collective")
    if "signal" in line:  # newer kernels tell it to anybody, older ones to root
        assert line["signal"] == number.name
        assert any(number.name in note.text for note in location.notes)


@pytest.mark.slow
def test_a_second_run_is_recorded_beside_the_first_and_read_in_its_place(tmp_path: Path) -> None:
    assert not train(tmp_path, "").stderr
    done = train(tmp_path, "\nfor _ in range(7): step()")
    folder = tmp_path / "recording"
    said = f"laggard: {folder} holds the recording of another run: this run is recorded in {folder}/run-2\n"
    assert (done.returncode, done.stderr) == (0, said)
    newest = trace(tmp_path)
    assert newest.timings.steps.tolist() == list(range(16))
    assert newest.gaps == (f"several runs are recorded in {folder}: this is the newest, in {folder}/run-2",)
    assert newest.timings.script is None and newest.timings.started_at  # python -c has no script


@pytest.mark.slow
def test_of_a_recording_from_elsewhere_without_an_end_no_death_is_told(tmp_path: Path) -> None:
    """It was copied here, while the job ran or after it was killed."""
    train(tmp_path, "\nwait_for_steps(9); os._exit(0)")
    (tmp_path / "copy").mkdir()
    for rank in (0, 1):
        text = (tmp_path / "recording" / "rank-0.jsonl").read_text().replace('"rank": 0', f'"rank": {rank}')
        file = tmp_path / "copy" / f"rank-{rank}.jsonl"
        file.write_text(text.replace('"boot_id": "', '"boot_id": "other-').replace('"unix_minus_clock": ', '"x": '))
    location = judge_recording([str(tmp_path / "copy")]).location
    texts = [note.text for note in location.notes]
    assert "none of the 2 recordings has an end: the job was killed, or it still runs" in texts
    assert any("were killed, or still run and this machine cannot see it" in text for text in texts), texts


@pytest.mark.slow
def test_the_end_of_a_process_without_torch_does_not_import_it(tmp_path: Path) -> None:
    before = "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules))\n"  # runs after laggard's own
    done = sessions.train(before + TRAINER, sessions.environ_of(tmp_path))
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.slow
def test_a_rank_that_is_killed_at_once_leaves_a_recording(tmp_path: Path) -> None:
    body = """
import os
from laggard.trainer_hooks.output.recording import LineFile
LineFile._write_queue = lambda self: None  # the thread has not come to run yet
from laggard.trainer_hooks.session import Session
Session().open()
os._exit(3)
"""
    environment = {**os.environ, "LAGGARD_RECORD_DIR": str(tmp_path), "LAGGARD_RANK_DIR": str(tmp_path / "ranks")}
    assert subprocess.run([sys.executable, "-c", body], env=environment, timeout=300).returncode == 3
    (gap,) = (each for each in read_recording([tmp_path / "rank-0.jsonl"]).gaps if "killed" in each)
    assert gap.startswith(f"{tmp_path}/rank-0.jsonl holds no step")


@pytest.mark.slow
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
    assert [step["step"] for step in lines_of(tmp_path, 0, "step")] == list(range(10))
    assert len(lines_of(tmp_path, 0, "collective")) == 20 and len(lines_of(tmp_path, 0, "end")) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("words", "told"), [((), True), (("--quiet",), False)])
def test_at_the_end_of_a_run_rank_0_says_what_was_recorded(tmp_path: Path, words: Sequence[str], told: bool) -> None:
    script, recording = tmp_path / "train.py", tmp_path / "recording"
    script.write_text(TRAINER)
    command = [sys.executable, "-m", "laggard", "run", "--record", str(recording), *words, str(script)]
    for rank in (1, 0):
        environment = {**environment_of(tmp_path, rank), "LAGGARD_RECORD_DIR": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        if rank == 1 or not told:
            assert done.stderr == ""
    if told:
        answer, command_line = done.stderr.splitlines()
        assert answer.startswith("laggard: Cannot tell: 9 steps seen")
        assert command_line == f"laggard: all of it: laggard locate --trace {recording}"


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


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_full_disk_is_one_line_and_the_training_goes_on(small_disk: Path, tmp_path: Path, killed: bool) -> None:
    """The recording's end has room all the same, and so has the line that says why it stops before the rank."""
    body = "\nfor _ in range(100): step()\nrecorder.drain()\nprint(recorder.totals.errors, flush=True)"
    done = train(tmp_path, body + "\nos.kill(os.getpid(), 9)" * killed, small_disk)
    assert (done.returncode, done.stdout) == (-9 if killed else 0, "0\n")
    (line,) = done.stderr.splitlines()
    assert line.endswith("rank-0.jsonl ends here, the training goes on: No space left on device"), line
    there = [step["step"] for step in lines_of(tmp_path, 0, "step")]
    assert there == list(range(len(there))) and 4 < len(there) < 109
    (gap, *_) = trace(tmp_path).gaps
    if killed:
        assert gap.startswith(f"the recording of rank 0 could not go on after step {there[-1]}: No space left")
        return
    (end,) = lines_of(tmp_path, 0, "end")
    # A step has six spans, two collectives and itself; the last lines made room for the end's.
    assert (109 - len(there)) * 9 <= end["lost"] + 9 and end["at_seconds"] > 0
    assert f"lacks {end['lost']} records" in gap


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = train(tmp_path, "", tmp_path / "file" / "recording")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"laggard: no recording in {tmp_path}/file/recording: Not a directory")


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


def test_the_last_lines_of_a_recording_have_room_beyond_its_bound(tmp_path: Path) -> None:
    file = LineFile(str(tmp_path / "x.jsonl"), "head", max_bytes=100, stopped=lambda why: f"stopped: {why[:6]}")
    for _ in range(30):
        file.write("x" * 19)
        file.flush()
    file.write_last("left")
    file.write_last("end")
    file.close()
    words = (tmp_path / "x.jsonl").read_text().split()
    assert words == ["head", *["x" * 19] * 4, "stopped:", "it", "has", "left", "end"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_recording_is_there_once_its_head_is_in_it(
    hard_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank that looks meanwhile would take a file without a head for another run's. Where os.link fails, it
    stands in for a file system without hard links."""
    path, write = tmp_path / "rank-0.jsonl", os.write
    seen: list[bool] = []

    def watched(descriptor: int, data: Any) -> int:
        seen.append(path.exists())
        return write(descriptor, data)

    def refused(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("laggard.trainer_hooks.output.recording.os.write", watched)
    if not hard_links:
        monkeypatch.setattr("laggard.trainer_hooks.output.recording.os.link", refused)
    LineFile(str(path), "head").close()
    assert seen == ([False] if hard_links else [False, True]) and path.read_text() == "head\n"
    with pytest.raises(FileExistsError):
        LineFile(str(path), "head of another")
    assert path.read_text() == "head\n" and [each.name for each in tmp_path.iterdir()] == ["rank-0.jsonl"]


def test_a_stuck_disk_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """os.write stands in for a disk on a file server that has gone away."""
    gone = threading.Event()
    monkeypatch.setattr("laggard.trainer_hooks.output.recording.os.write", lambda *_: gone.wait(300) and 0)
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
