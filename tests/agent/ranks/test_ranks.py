"""Reading a rank directory: real files by real processes, and everything else that may lie there."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.agents import IDENTITY
from support.steps import StepRow, step_rows
from support.waiting import wait_for

from laggard.agent.jobs import hook_blind_findings
from laggard.agent.ranks import directory as directory_module
from laggard.agent.ranks.directory import MAX_FILES, list_files
from laggard.agent.ranks.reader import EXPIRE_AFTER_NS, MAX_RANKS, RankFiles
from laggard.agent.ranks.row import MAX_STEP_NS, Now
from laggard.catalogue.rank_metrics import MAX_PAIRS
from laggard.collector.scrape.validation import validate_ranks, validate_ranks_answer
from laggard.rankfile import BeatRecord
from laggard.rankfile.fact_names import UNNAMED_COLLECTIVES, UNNAMED_REASONS
from laggard.rankfile.layout import FILE_BYTES
from laggard.rankfile.writer import RankFileWriter
from laggard.wire import encode
from laggard.wire.ranks import RanksDocument

Start = Callable[..., Any]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes other users")
USER, OTHER = 61_001, 61_002


@pytest.fixture
def files(rank_dir: Path) -> RankFiles:
    return RankFiles(str(rank_dir), "n0")


def rejected(document: RanksDocument) -> dict[str, int]:
    return {it.reason: it.count for it in document.ignored}


def test_a_running_rank(files: RankFiles, start_rank: Start) -> None:
    began, began_at = time.monotonic(), time.time()
    rank = start_rank(rank=3, local_rank=1, gpu="GPU-1", attempt=2)
    rank.do("step", "step", "block")
    document = files.read()
    (row,) = document.ranks
    assert (row.job_id, row.rank, row.local_rank, row.world_size, row.gpu, row.attempt) == ("j1", 3, 1, 8, "GPU-1", 2)
    assert (row.state, row.pid, row.owner) == ("running", rank.process.pid, os.geteuid())
    assert row.node == "n0"  # the node on which the file lies, not the one that it names
    assert row.cgroup in Path("/proc/self/cgroup").read_text()
    assert (row.steps, row.step_seconds, row.own_seconds, row.lost) == (2, 2.0, 1.3, 3)
    assert row.phase_seconds == pytest.approx((0.2, 0.4, 0.6, 0.2, 0, 0, 0, 0, 0.1))
    assert began_at - 0.1 < row.last_progress_timestamp_seconds <= time.time() + 0.1
    assert [(it.op, it.group, it.count) for it in row.collectives] == [
        ("all_reduce", "dp", 8),
        ("all_gather", "dp", 8),
        ("send", "pp", 8),
    ]
    assert [it.bytes for it in row.collectives] == [2 << 20, 4 << 20, 6 << 20]
    assert row.in_flight is not None
    assert (row.in_flight.op, row.in_flight.group, row.in_flight.seq) == ("all_gather", "dp:0-3", 7)
    assert 0 <= row.in_flight.seconds <= time.monotonic() - began
    assert row.phase == "backward"
    assert document.steps is None and document.ignored == ()
    validate_ranks(encode(document))


def test_the_gpu_of_a_ranks_tensors_is_its_gpu(files: RankFiles, start_rank: Start, tmp_path: Path) -> None:
    """The identity is written before the rank has tensors."""
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"gpu": "GPU-1"}))
    start_rank(gpu="GPU-0").do(f"facts {facts}")
    start_rank(rank=1, gpu="GPU-0")
    assert [row.gpu for row in validate_ranks(encode(files.read())).ranks] == ["GPU-1", "GPU-0"]


def test_sends_and_receives_report_their_peer(files: RankFiles, start_rank: Start) -> None:
    start_rank([["all_reduce", "dp", "dp:0-1"], ["recv", "pp", "pp:0-3", 3]]).do("beat", "block")
    (row,) = validate_ranks(encode(files.read())).ranks
    assert row.in_flight is not None and row.beat is not None
    assert (row.in_flight.op, row.in_flight.seq, row.in_flight.peer) == ("recv", 7, 3)
    assert [(lane.op, lane.entered, lane.peer) for lane in row.beat.lanes] == [("all_reduce", 1, -1), ("recv", 2, 3)]


@pytest.mark.parametrize("peer", [-2, 1 << 20])
def test_an_impossible_peer_costs_no_other_rank_its_row(files: RankFiles, start_rank: Start, peer: int) -> None:
    start_rank([["send", "pp", "pp:0-3", peer]])
    start_rank(rank=1)
    document = validate_ranks(encode(files.read()))
    assert [row.rank for row in document.ranks] == [1]
    assert rejected(document) == {"impossible peer": 1}


def test_only_steps_that_are_new(files: RankFiles, start_rank: Start) -> None:
    rank = start_rank()
    rank.do("step", "step")
    before = time.monotonic()
    first = files.read(since=0)
    after = time.monotonic()
    _, row = steps_in(first)
    assert row.step == 1 and row.end - row.start == pytest.approx(1.0) == pytest.approx(sum(row.phases) + row.waited)
    assert before - 1.0 <= first.next <= after - 1.0, "the margin by which it lies in the past"
    now = time.monotonic()
    rank.do("step")
    assert [row.step for row in steps_in(files.read(since=now))] == [2]
    assert [row.step for row in steps_in(files.read(since=row.end))] == [1, 2]
    assert files.read(since=time.monotonic() + 1).steps == files.read(since=0).steps


def steps_in(document: RanksDocument) -> list[StepRow]:
    """Those of the first rank."""
    return [*step_rows(validate_ranks_answer(encode(document)).steps[0])]


def test_a_rank_that_finished_and_one_that_died(files: RankFiles, start_rank: Start) -> None:
    good, bad = start_rank(rank=0), start_rank(rank=1)
    for rank in (good, bad):
        rank.do("step", "block", "beat")
    good.finish()
    bad.kill()
    finished, died = files.read().ranks
    assert (finished.state, finished.pid, finished.in_flight, finished.phase) == ("finished", 0, None, None)
    assert finished.end and finished.end.exit_code == 0 and finished.beat, "how far it had come"
    assert [(lane.op, lane.entered) for lane in finished.beat.lanes] == [
        (lane.op, lane.entered) for lane in died.beat.lanes
    ]
    assert (died.state, died.pid, died.phase) == ("died", 0, "backward")
    assert died.in_flight is not None and died.in_flight.op == "all_gather"
    validate_ranks(encode(files.read(since=0)))


@pytest.mark.parametrize("jump_seconds", [3600, -3600])
def test_a_clock_that_is_set_makes_nothing_older_or_younger(
    jump_seconds: int, rank_dir: Path, start_rank: Start
) -> None:
    """As by `date -s` or a first answer of NTP, while ranks run and after one has died."""
    set_by = [0]
    files = RankFiles(str(rank_dir), "n0", lambda: Now(time.monotonic_ns(), time.time_ns() + set_by[0]))
    start_rank(rank=0).do("step")
    dead = start_rank(rank=1)
    dead.do("step")
    dead.kill()
    before = files.read()
    set_by[0] = jump_seconds * 10**9
    after = files.read()
    assert before.now is not None and after.now is not None
    assert [row.state for row in after.ranks] == ["running", "died"]
    for was, row in zip(before.ranks, after.ranks, strict=True):
        moved = row.last_progress_timestamp_seconds - was.last_progress_timestamp_seconds
        assert moved == pytest.approx(jump_seconds, abs=0.01), "its age is what it was"
    ends = [row.end for document in (before, after) for row in document.ranks if row.end]
    assert ends[1].at_seconds - ends[0].at_seconds == pytest.approx(jump_seconds, abs=0.01)


def test_ranks_that_ended_expire(rank_dir: Path, start_rank: Start) -> None:
    shift = [0]
    files = RankFiles(str(rank_dir), "n0", lambda: Now(time.monotonic_ns() + shift[0], time.time_ns() + shift[0]))
    start_rank(rank=0).do("step")
    gone = start_rank(rank=1)
    gone.do("step")
    gone.finish()
    assert [row.rank for row in files.read().ranks] == [0, 1]
    shift[0] = EXPIRE_AFTER_NS
    assert [row.rank for row in files.read().ranks] == [0]
    shift[0] = -(10**12)  # as after a reboot: the file's times are in the future
    assert [row.rank for row in files.read().ranks] == [0]


def test_a_file_that_was_last_changed_before_this_boot(
    rank_dir: Path, start_rank: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, _ = start_rank(rank=0), start_rank(rank=1)
    dead.kill()
    monkeypatch.setattr(time, "clock_gettime", lambda _: -10.0)  # booted ten seconds from now
    files = RankFiles(str(rank_dir), "n0")  # of the agent that begins with that boot
    assert [row.rank for row in files.read().ranks] == [1]


def test_the_newest_living_attempt_counts(files: RankFiles, start_rank: Start) -> None:
    start_rank(attempt=0).kill()
    assert [(row.attempt, row.state) for row in files.read().ranks] == [(0, "died")]
    living = start_rank(attempt=1)
    start_rank(attempt=2).kill()
    assert [(row.attempt, row.state) for row in files.read().ranks] == [(1, "running")]
    start_rank(attempt=3)
    assert [(row.attempt, row.state) for row in files.read().ranks] == [(3, "running")]
    living.kill()
    assert [(row.attempt, row.state) for row in files.read().ranks] == [(3, "running")]


def test_operations_are_summed_by_role_and_bounded(files: RankFiles, start_rank: Start) -> None:
    lanes = [["all_reduce", "dp", "a"], ["all_reduce", "dp", "b"], ["made_up", "dp", "c"]]
    lanes += [["all_reduce", f"role{number}", "d"] for number in range(40)]
    start_rank(lanes).do("step")
    totals = files.read().ranks[0].collectives
    assert [(it.op, it.group, it.count) for it in totals[:2]] == [("all_reduce", "dp", 8), ("other", "dp", 4)]
    assert (totals[-1].op, totals[-1].group) == ("other", "other") and len(totals) == MAX_PAIRS + 1
    assert sum(it.count for it in totals) == 4 * len(lanes)


def test_other_files_are_counted_and_logged_once(
    rank_dir: Path, files: RankFiles, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    good = start_rank(rank=5)
    good.do("step")
    whole = good.path.read_bytes()
    (rank_dir / "short.rank").write_bytes(whole[: FILE_BYTES // 2])
    (rank_dir / "long.rank").write_bytes(whole + b"x")
    (rank_dir / "version.rank").write_bytes(whole[:8] + b"\x63\0\0\0" + whole[12:])
    (rank_dir / "magic.rank").write_bytes(bytes(FILE_BYTES))
    (rank_dir / "flip.rank").write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    (rank_dir / "link.rank").symlink_to(good.path)
    (rank_dir / "dangling.rank").symlink_to("nowhere")
    (rank_dir / "directory.rank").mkdir()
    (rank_dir / "not a suffix").write_text("x")
    (rank_dir / "half made.rank.new").write_text("x")
    os.mkfifo(rank_dir / "fifo.rank")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(rank_dir / "s.rank"))
    with caplog.at_level(logging.WARNING, "laggard.agent"):
        document = files.read()
    assert [row.rank for row in document.ranks] == [5]
    assert rejected(document) == {
        "truncated": 1,
        "another layout": 1,
        "another version": 1,
        "not a rank file": 1,
        "damaged header": 1,
        "symlink": 2,
        "not a regular file": 2,
        os.strerror(6): 1,  # a socket cannot be opened
    }
    assert {it.reason: it.example for it in document.ignored}["truncated"] == "short.rank"
    assert len(caplog.records) == 8 + 1  # at most eight, with a line for the rest
    caplog.clear()
    files.read()
    assert caplog.records == []
    (rank_dir / "new\n.rank").write_bytes(b"")
    files.read()
    assert [record.getMessage() for record in caplog.records] == [f"ignoring new?.rank in {rank_dir}: truncated"]


def test_a_directory_that_is_missing_or_unreadable(tmp_path: Path) -> None:
    nowhere = RankFiles(str(tmp_path / "nowhere"), "n0").read(since=0)
    assert nowhere.ranks == nowhere.ignored == ()
    (tmp_path / "file").write_text("")
    assert rejected(RankFiles(str(tmp_path / "file"), "n0").read()) == {"the directory: Not a directory": 1}


def test_a_file_that_vanishes_between_listing_and_reading(rank_dir: Path, files: RankFiles) -> None:
    for number in range(200):
        (rank_dir / f"{number}.rank").write_bytes(b"")
    remover = subprocess.Popen(["rm", "-rf", str(rank_dir)])
    while remover.poll() is None:
        assert files.read().ranks == ()
    assert rejected(files.read()) == {}


def writer_of(rank_dir: Path, **changed: Any) -> RankFileWriter:
    """A rank file of this process, which drops its own lock when it reads it: a rank that has finished or died."""
    clocks = {"wall_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
    return RankFileWriter(str(rank_dir), {**IDENTITY, **clocks, **changed})


def test_impossible_numbers_are_rejected(rank_dir: Path, files: RankFiles, start_rank: Start) -> None:
    """The checksums are right and the numbers made up. One of them would make a collector reject the whole node."""
    start_rank(job_id="")
    start_rank(attempt=-1)
    start_rank(attempt=10**300)
    start_rank(local_rank=1 << 40)
    start_rank(world_size=1 << 22)
    start_rank(wall_ns=10**3000)
    start_rank(monotonic_ns=-1)
    start_rank(job_id="x" * 3000, rank=1)
    start_rank(job_id="esc\x1b[31m\ud800", rank=2, gpu=["not", "text"])
    document = files.read(since=0)
    assert [(row.job_id, row.gpu) for row in document.ranks] == [("esc?[31m?", None), ("x" * 256, None)]
    assert rejected(document) == {"impossible rank": 7}
    validate_ranks(encode(document))


def test_no_beat_makes_a_collector_refuse_the_node(tmp_path: Path, rank_dir: Path, files: RankFiles) -> None:
    bad, good = writer_of(rank_dir, rank=0), writer_of(rank_dir, rank=1)
    bad.write_beat(BeatRecord(time.monotonic_ns(), 1 << 61, 0, (), ()))
    good.write_beat(BeatRecord(time.monotonic_ns(), MAX_STEP_NS, 0, (), ()))
    document = validate_ranks(encode(files.read(since=0)))
    assert [row.rank for row in document.ranks] == [1]
    assert rejected(document) == {"impossible beat": 1}


def test_a_step_of_the_longest_time_is_not_longer_in_seconds(rank_dir: Path, files: RankFiles) -> None:
    """Its start and end are rounded when they become seconds, and their difference may grow by that."""
    rank = writer_of(rank_dir)
    starts = [start for start in range(0, 1 << 62, 10**14 + 1234567) if (start + MAX_STEP_NS) / 1e9 - start / 1e9 > 1e7]
    for number, start in enumerate(starts[:100]):
        rank.write_step(number, start, start + MAX_STEP_NS, *[0] * 11)
    rank.write_step(101, 5, 5 + MAX_STEP_NS // 2, *[0] * 11)
    assert starts and [step.step for step in steps_in(files.read(since=0))] == [101]


def test_findings_about_jobs_are_no_longer_than_a_collector_takes(rank_dir: Path, files: RankFiles) -> None:
    name = "j" * 256
    reason = next(iter(UNNAMED_REASONS))
    writer_of(rank_dir, job_id=name).write_facts(json.dumps({UNNAMED_COLLECTIVES: reason}).encode())
    document = files.read()
    row = structs.replace(document.ranks[0], state="running")
    found = hook_blind_findings([row])
    validate_ranks(encode(structs.replace(document, findings=found)))
    assert found[0].device.startswith("job jjj")


@ROOT
def test_the_owner_must_be_the_writer(rank_dir: Path, files: RankFiles, start_rank: Start) -> None:
    mine, theirs = start_rank(rank=1, user=USER), start_rank(rank=2, user=USER)
    assert [(row.rank, row.owner, row.pid) for row in files.read().ranks] == [
        (1, USER, mine.process.pid),
        (2, USER, theirs.process.pid),
    ]
    os.chown(theirs.path, OTHER, OTHER)
    document = files.read()
    assert [row.rank for row in document.ranks] == [1]
    assert rejected(document) == {"not its owner's process": 1}


@ROOT
def test_a_strangers_lock_keeps_no_rank_alive(files: RankFiles, start_rank: Start) -> None:
    rank = start_rank(user=USER)
    rank.kill()
    script = f"""
import fcntl, os, sys
os.setresuid({OTHER}, {OTHER}, {OTHER})
fcntl.lockf(os.open({str(rank.path)!r}, os.O_RDONLY), fcntl.LOCK_SH)
print(flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline()
        assert [row.state for row in files.read().ranks] == ["died"]


@ROOT
def test_users_with_one_job_name_are_told_apart(files: RankFiles, start_rank: Start) -> None:
    start_rank(user=USER)
    start_rank(user=OTHER)
    assert [(row.job_id, row.rank, row.owner) for row in files.read().ranks] == [("j1", 0, USER), ("j1", 0, OTHER)]


@pytest.mark.slow
@ROOT
@pytest.mark.parametrize("names", ["0{}.rank", "zz{}.rank"])
def test_junk_does_not_hide_another_users_rank(
    rank_dir: Path, files: RankFiles, start_rank: Start, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "MAX_STATS", 2 * MAX_FILES)
    known = start_rank(rank=1, user=USER)
    assert [row.rank for row in files.read().ranks] == [1]
    for number in range(3 * MAX_FILES):
        path = rank_dir / names.format(number)
        path.touch()
        os.chown(path, OTHER, OTHER)
    late = start_rank(rank=2, user=USER)
    began = time.process_time()
    document = files.read()
    assert time.process_time() - began < 60.0  # a tenth of a second on a quiet machine
    assert 1 in {row.rank for row in document.ranks} and known.process.poll() is None
    counts = rejected(document)
    assert counts["truncated"] <= MAX_FILES
    assert counts["truncated"] + counts["too many files"] >= 3 * MAX_FILES
    scans = [files.read() for _ in range(30)]  # each takes another sample: the late rank is found, and then kept
    assert [row.rank for row in scans[-1].ranks] == [1, 2] and late.process.poll() is None


@ROOT
def test_one_user_cannot_take_every_place(rank_dir: Path, files: RankFiles, start_rank: Start) -> None:
    flood = start_rank(user=OTHER)
    flood.do("step")
    for number in range(MAX_RANKS + 10):
        copy = rank_dir / f"copy{number}.rank"
        shutil.copy(flood.path, copy)
        _rename_job(copy, f"k{number % 90:02}")
        os.chown(copy, OTHER, OTHER)
    victim = start_rank(rank=4, user=USER)
    victim.do("step")
    victim.kill()
    document = files.read(since=0)
    assert len(document.ranks) == MAX_RANKS and rejected(document) == {"too many ranks": 12}
    assert (USER, 4) in {(row.owner, row.rank) for row in document.ranks}
    validate_ranks(encode(document))


def _rename_job(path: Path, name: str) -> None:
    """Gives the file another job_id of the same length, and a new checksum."""
    import struct
    import zlib

    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<I", data, 24)
    text = bytes(data[64 : 64 + length]).replace(b'"j1"', f'"{name}"'.encode())
    text = text.ljust(length)
    data[24:32] = struct.pack("<II", len(text), zlib.crc32(text))
    data[64 : 64 + len(text)] = text
    path.write_bytes(data)


def test_every_name_is_sampled_sooner_or_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "MAX_STATS", 20)
    for number in range(200):
        (tmp_path / f"{number:03}.rank").touch()
    random.seed(1)
    sampled = {file.path for _ in range(100) for file in list_files(str(tmp_path), ()).files}
    assert len(sampled) == 200
    assert list_files(str(tmp_path), ()).left_out == 180


def test_reading_leaves_no_file_open(rank_dir: Path, files: RankFiles, start_rank: Start) -> None:
    start_rank().do("step")
    (rank_dir / "junk.rank").write_bytes(bytes(FILE_BYTES))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        files.read(since=0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_writer_in_another_pid_namespace(rank_dir: Path, files: RankFiles, start_rank: Start) -> None:
    """As for an agent in a container: the lock is held, and the kernel gives no pid."""
    rank = start_rank()
    rank.do("step")
    script = f"""
from laggard.agent.ranks.reader import RankFiles
from laggard.wire import encode
print(encode(RankFiles({str(rank_dir)!r}, "pod").read().ranks[0]).decode())
"""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare: it makes a pid namespace")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert '"pid":0,"cgroup":"","state":"running"' in done.stdout


@pytest.mark.parametrize("ahead", [100_000, -100])
def test_a_writer_in_another_time_namespace(files: RankFiles, start_rank: Start, ahead: int) -> None:
    """Its CLOCK_MONOTONIC is another than the agent's, as after CRIU: its beat and its steps are told by the agent's,
    also once it is gone."""
    own_time = ["unshare", "--time", "--monotonic", str(ahead), "--fork", "--kill-child"]
    if os.geteuid() != 0 or subprocess.run([*own_time, "true"], capture_output=True).returncode:
        pytest.skip("needs root and unshare: it makes a time namespace")
    rank = start_rank(started_by=own_time)
    rank.do("step", "beat", "block", "collectives")
    asked = time.monotonic()
    document = files.read(since=asked - 60)
    (row,) = document.ranks
    assert row.beat is not None and 0 <= row.beat.age_seconds < 60
    assert row.in_flight is not None and 0 <= row.in_flight.seconds < 60
    (step,) = step_rows(validate_ranks_answer(encode(document)).steps[0])
    assert asked - 60 < step.end <= asked
    (found,) = files.collectives(row.owner, "j1", [0]).ranks
    assert found.rows and all(asked - 60 < each.start < each.end <= asked for each in found.rows)
    rank.kill()
    (row,) = wait_for(lambda: [it for it in files.read().ranks if it.state == "died"])
    assert time.time() - 60 < row.last_progress_timestamp_seconds <= time.time()
