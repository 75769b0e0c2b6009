"""The heartbeat: what it reports, when it grows old, and that it never disturbs the training."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sessions
from support.rows import rows
from support.sessions import SESSION
from support.waiting import wait_for

from laggard.agent.ranks.reader import RankFiles
from laggard.rankfile import BeatRecord, GroupState, Lane, RankFileError, RankFileReader
from laggard.rankfile.layout import BEATS_OFFSET, FACTS_LIMIT, FILE_BYTES, SEQUENCE_MASK, WORD_PROGRESS
from laggard.rankfile.writer import RankFileWriter
from laggard.trainer_hooks.collectives.flight_recorder import FlightRecorderStatus
from laggard.trainer_hooks.output import rank_file as heartbeat_module
from laggard.trainer_hooks.output.rank_file import Heartbeat
from laggard.trainer_hooks.record.ending import Facts
from laggard.trainer_hooks.record.event_log import HotPathState
from laggard.trainer_hooks.record.events import PendingWork

pytestmark = pytest.mark.apart  # processes that wait

IDENTITY = {"job_id": "j", "rank": 0, "local_rank": 0, "world_size": 2, "node": "n", "attempt": 0}

TRAINER = f"""{SESSION}
from laggard.trainer_hooks.record.ending import FACTS
print("ready", flush=True)
"""


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        started.append(sessions.start(TRAINER + body, sessions.environ_of(tmp_path)))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def row(folder: Path) -> Any:
    (found,) = RankFiles(str(folder), "n0").read().ranks
    return found


def until(folder: Path, condition: Callable[[Any], bool]) -> Any:
    return wait_for(lambda: found if condition(found := row(folder)) else None, lambda: row(folder))


WAIT = "sys.stdin.readline()\n"


@pytest.mark.slow
def test_it_reports_how_far_each_lane_has_come(train: Any, tmp_path: Path) -> None:
    began = time.time()
    body = "for _ in range(100): collective()\nlog.next_word()\nFACTS.set('transport', {'net': 'IB'})\n"
    process = train(body + WAIT)
    found = until(tmp_path, lambda row: row.beat.lanes and row.beat.lanes[0].entered == 101)
    assert (found.beat.lanes[0].done, found.beat.lanes[0].group) == (100, "dp:0-1")
    assert found.beat.age_seconds >= 0 and found.beat.flight_recorder == "absent"
    groups = {"dp:0-1": [0, 2, 1]}
    told = dict(found.facts)
    assert began <= told.pop("started") <= time.time()
    told.pop("own_threads", None)  # of a process that is more than a second old
    assert told.pop("environment")["python"]
    assert told == {"transport": {"net": "IB"}, "flight_recorder": "absent", "groups": groups}, "`python -c`: no script"
    process.communicate("go\n", timeout=300)
    assert process.returncode == 0
    ended = row(tmp_path)
    assert ended.state == "finished" and ended.beat.lanes[0].entered == 101, "its last beat tells what it came to"
    assert began <= ended.last_beat_timestamp_seconds <= time.time()


@pytest.mark.slow
def test_it_grows_old_while_the_process_is_stopped(train: Any, tmp_path: Path) -> None:
    process = train(WAIT)
    assert not until(tmp_path, lambda row: row.beat).stopped
    process.send_signal(signal.SIGSTOP)
    stopped = until(tmp_path, lambda row: row.beat and row.beat.age_seconds > 2.0)
    assert stopped.stopped and stopped.state == "running"
    process.send_signal(signal.SIGCONT)
    until(tmp_path, lambda row: row.beat.age_seconds < 1.0 and not row.stopped)


@pytest.mark.slow
def test_it_grows_old_while_the_gil_is_held(train: Any, tmp_path: Path) -> None:
    """A call into C that reads from standard input stands in for one that waits for a GPU."""
    process = train("ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(3), 3)\n" + WAIT)
    assert not until(tmp_path, lambda row: row.beat and row.beat.age_seconds > 2.0).stopped
    process.stdin.write("go\n")
    process.stdin.flush()
    until(tmp_path, lambda row: row.beat.age_seconds < 1.0)


@pytest.mark.slow
@rows("hooks/exits")
def test_the_exit_is_the_trainers_own(train: Any, tmp_path: Path, body: str, status: int) -> None:
    process = train(body)
    _, errors = process.communicate(timeout=300)  # what would keep it keeps it for good
    assert process.returncode == status, errors
    assert "laggard" not in errors and "Fatal" not in errors
    with RankFileReader(str(next(tmp_path.rglob("*.rank")))) as file:
        assert file.lock_holder() is None and file.finished() == (status in (0, 1, 3))


@pytest.mark.slow
def test_exits_while_beating_are_clean(tmp_path: Path) -> None:
    """Beats without a pause, so that every exit comes during one."""
    hasty = "from laggard.trainer_hooks.output import open_outputs as it\nit._DRAINS_PER_BEAT = 1\n"
    body = f"{hasty}it.WriterThread._interval_seconds = lambda _: 1e-6\n{TRAINER}"
    environment = {**os.environ, "LAGGARD_RANK_DIR": str(tmp_path)}
    command = [sys.executable, "-c", body]
    for _ in range(10):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_forked_child_has_no_heartbeat_and_the_parent_keeps_its_own(train: Any, tmp_path: Path) -> None:
    body = """
import threading
child = os.fork()
if child == 0:
    os.write(1, b"%d\\n" % threading.active_count())
    for _ in range(50): collective()
    time.sleep(2.5)
    sys.exit(0)
os.waitpid(child, 0)
sys.stdin.readline()
"""
    process = train(body)  # under -W error: Python warns of forks in processes with several threads
    assert process.stdout.readline() == "1\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    frozen = row(tmp_path).beat
    assert frozen.age_seconds > 1.0 and frozen.lanes[0].entered == 0, "the child wrote in its parent's place"
    os.kill(process.pid, signal.SIGCONT)
    until(tmp_path, lambda row: row.beat.age_seconds < 1.0)
    _, errors = process.communicate("go\n", timeout=300)
    assert (process.returncode, errors) == (0, "")


# -- the cells


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankFileWriter]:
    folder = tmp_path_factory.mktemp("ranks")
    writer = RankFileWriter(str(folder), {**IDENTITY, "wall_ns": 1, "monotonic_ns": 1})
    writer.add_lane(Lane("all_reduce", "dp", "dp:0-1"))
    yield writer
    writer.close()


numbers = st.integers(-1, 1 << 62)
groups = st.builds(
    GroupState, st.text(st.characters(codec="ascii", categories=("L", "N", "P")), max_size=48), *[numbers] * 4
)
beats = st.builds(
    BeatRecord,
    numbers,
    numbers,
    st.integers(0, 2),
    st.lists(st.tuples(numbers, numbers), max_size=64).map(tuple),
    st.lists(groups, max_size=64).map(tuple),
    numbers,
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SEQUENCE_MASK, SEQUENCE_MASK)
    | st.text(st.characters(categories=("L",)), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=0), inner, max_size=3),
    max_leaves=6,
)


def copied(
    writer: RankFileWriter, folder: Path, change: Callable[[bytearray], None] = lambda _: None
) -> RankFileReader:
    """Another file with the same bytes: a process must not open and close its own rank file."""
    data = bytearray(writer._map)
    change(data)
    path = folder / "copy.rank"
    path.write_bytes(data)
    return RankFileReader(str(path))


@given(beats)
def test_a_beat_is_read_as_it_was_written(
    written: RankFileWriter, tmp_path_factory: pytest.TempPathFactory, beat: BeatRecord
) -> None:
    written.write_beat(beat)
    with copied(written, tmp_path_factory.mktemp("copy")) as file:
        assert file.beat() == beat


def test_a_beat_is_the_last_change_of_its_file(written: RankFileWriter) -> None:
    """Its end is told by that: in memory, a mapped file keeps the time of its first pages."""
    os.utime(written.path, (0, 0))
    written.write_beat(BeatRecord(0, 0, 0, (), ()))
    assert os.stat(written.path).st_mtime > 0


@pytest.fixture
def torch_status(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands in for torch: what its Flight Recorder reports, and that each read takes a millisecond of CPU time. Its
    last number is the collective enqueued last, the length counts the reads."""
    reads, spent = [0], [0]

    def read_status() -> FlightRecorderStatus:
        spent[0] += 10**6
        reads.append(reads[-1])
        return FlightRecorderStatus(1, (("#0", reads[-1], -1, reads[-1]),))

    monkeypatch.setattr(heartbeat_module, "read_status", read_status)
    monkeypatch.setattr(heartbeat_module.time, "thread_time_ns", lambda: spent[0])
    return reads


def heartbeat_of(writer: RankFileWriter, lanes: tuple[tuple[int, int], ...]) -> Heartbeat:
    live = HotPathState(writer.words, PendingWork(lambda _: None))
    return Heartbeat(live, lambda: lanes, Facts(), 1.0, [writer.write_beat], writer.write_facts)


def test_torch_is_asked_seldom_only_while_the_training_moves(
    written: RankFileWriter, tmp_path: Path, torch_status: list[int]
) -> None:
    heartbeat = heartbeat_of(written, ())

    def beat() -> BeatRecord:
        heartbeat.beat()
        with copied(written, tmp_path) as file:
            found = file.beat()
        assert found is not None
        return found

    def beat_of_a_moving_training() -> BeatRecord:
        torch_status[-1] += 1
        written.words[WORD_PROGRESS] += 1
        return beat()

    moving = [beat_of_a_moving_training() for _ in range(40)]
    reads = len(torch_status) - 1
    assert reads < 10, "slow reads hold the GIL of a training that moves"
    assert len({found.asked_ns for found in moving}) == reads
    assert all(found.groups[0].moved_ns == found.asked_ns <= found.at_ns for found in moving), "it moves at each look"

    standing = [beat() for _ in range(5)]
    assert len(torch_status) - 1 == reads + 5, "where training stands still, each beat asks"
    assert all(found.asked_ns == found.at_ns for found in standing)
    assert len({found.groups[0].moved_ns for found in standing}) == 1


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(BEATS_OFFSET, FILE_BYTES - 1), st.integers(0, 7)), min_size=1, max_size=20))
def test_damage_never_becomes_a_beat_or_a_fact(
    written: RankFileWriter, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    written_beats = [BeatRecord(at, 1, 1, ((at, at),), (GroupState("0", at, at, at, at),)) for at in (7, 8)]
    written_facts = [{"n": 7}, {"n": 8}]
    for beat, facts in zip(written_beats, written_facts, strict=True):
        written.write_beat(beat)
        written.write_facts(json.dumps(facts).encode())

    def damage(data: bytearray) -> None:
        for place, bit in flips:
            data[place] ^= 1 << bit

    with copied(written, tmp_path_factory.mktemp("copy"), damage) as file:
        assert file.beat() in (*written_beats, None) and file.facts() in (*written_facts, {})


@given(st.dictionaries(st.text(st.characters(categories=("L",)), max_size=9), json_values, max_size=5))
def test_facts_arrive_as_they_were_set(values: dict[str, Any]) -> None:
    facts = Facts()
    for name, value in values.items():
        facts.set(name, value)
    text = facts.changed_json()
    kept = {name: value for name, value in values.items() if value is not None}
    assert json.loads(text or b"{}") == kept and facts.changed_json() is None


def test_facts_are_bounded_and_the_largest_one_is_left_out() -> None:
    facts = Facts()
    facts.set("small", 1)
    facts.set("large", "x" * 9000)
    facts.set("odd", object())
    text = facts.changed_json()
    assert text is not None and len(text) <= FACTS_LIMIT
    assert json.loads(text) == {"small": 1, "odd": "<object>", "left_out": ["large"]}


HOSTILE = (b"[" * 4000, b'{"a":NaN,"b":1e999,"c":"\\u001b[31m"}', b"[1]", b"\xff", b'{"a":' + b"9" * 5000 + b"}")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_facts_are_harmless(
    written: RankFileWriter, tmp_path_factory: pytest.TempPathFactory, hostile: bytes
) -> None:
    written.write_facts(hostile)
    written.write_facts(hostile)  # in both cells
    with copied(written, tmp_path_factory.mktemp("copy")) as file:
        assert file.facts() in ({}, {"a": None}, {"a": None, "b": None, "c": "?[31m"})


def test_an_impossible_beat_is_rejected(written: RankFileWriter, tmp_path: Path) -> None:
    from laggard.agent.ranks.row import validate_beat

    for beat in (BeatRecord(-5, 1, 0, (), ()), BeatRecord(1, 1, 9, (), ()), BeatRecord(1, 1, 0, ((-1, 0),), ())):
        with pytest.raises(RankFileError, match="impossible beat"):
            validate_beat(beat)


@pytest.mark.slow
def test_a_beat_takes_little_of_the_gil(written: RankFileWriter) -> None:
    """CPU time of the thread that beats, with the most lanes and without torch: 42 us on a quiet machine, and some more
    where others use its caches. bench/beat.py holds all of it to 100 us."""
    lanes = tuple((number, number) for number in range(64))
    heartbeat = heartbeat_of(written, lanes)
    spent = []
    for _ in range(300):
        began = time.thread_time_ns()
        heartbeat.beat()
        spent.append(time.thread_time_ns() - began)
    assert sorted(spent)[150] < 2_000_000, f"{sorted(spent)[150] / 1e3} us"
