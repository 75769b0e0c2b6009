"""The rank file against damage: a writer killed anywhere, flipped bits, cut files, a full file system."""

import errno
import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laggard.rankfile import Lane, RankCounters, RankFileError, RankFileReader, Step
from laggard.rankfile.fact_names import MAX_RUNS, index_in, member_runs, members_of, parse_runs, size_of
from laggard.rankfile.layout import FILE_BYTES, LIVE_OFFSET, STEP_COUNT
from laggard.rankfile.writer import RankFileWriter

Start = Callable[..., Any]
MS = 10**6
PHASES = (100 * MS, 200 * MS, 300 * MS, 100 * MS, 0, 0, 0, 0, 50 * MS)
thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Content(NamedTuple):
    """Everything in a file that has a checksum."""

    identity: dict[str, Any]
    lanes: tuple[Any, ...]
    counters: RankCounters | None
    steps: list[Step]
    collectives: list[Any]


def read(path: Path) -> Content:
    with RankFileReader(str(path)) as file:
        file.live_state()
        file.lock_holder()
        file.finished()
        return Content(file.identity, file.lanes(), file.counters(), file.steps(), file.collectives())


def assert_whole(content: Content) -> None:
    """Every number is one that write_rank.py wrote."""
    for step in content.steps:
        assert step.phases == PHASES and step.end - step.start == 1000 * MS and step.waited == 250 * MS
    numbers = [step.step for step in content.steps]
    assert numbers == sorted(set(numbers))
    if content.counters:
        n = content.counters.steps
        assert (content.counters.last_step, content.counters.step_ns) == (n - 1, n * 1000 * MS)
        assert content.counters.phases_ns == tuple(n * phase for phase in PHASES)
        assert [lane[0] for lane in content.counters.lanes] == [4 * n] * 3


TEXT = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=16)


@thorough
@given(lanes=st.lists(st.builds(Lane, TEXT, TEXT, TEXT, st.integers(-1, (1 << 31) - 1)), max_size=64))
def test_lanes_are_read_as_they_were_written(tmp_path: Path, lanes: list[Lane]) -> None:
    identity = {"job_id": "j", "rank": 0, "local_rank": 0, "world_size": 1, "node": "n", "attempt": 0}
    writer = RankFileWriter(str(tmp_path), {**identity, "wall_ns": 1, "monotonic_ns": 1})
    assert [writer.add_lane(lane) for lane in lanes] == list(range(len(lanes)))
    with RankFileReader(writer.path) as file:
        assert file.lanes() == tuple(lanes)
    writer.close()
    Path(writer.path).unlink()


@pytest.mark.slow
def test_a_writer_that_is_killed_anywhere_leaves_whole_records(start_rank: Start) -> None:
    for _ in range(12):
        rank = start_rank()
        rank.send("run")
        time.sleep(random.uniform(0.0, 0.08))
        rank.kill()
        content = read(rank.path)
        assert_whole(content)
        if content.counters:
            steps = [step.step for step in content.steps]
            assert steps == list(range(steps[0], steps[-1] + 1))
            assert steps[-1] - content.counters.last_step in (0, 1)  # the step is written, then the counters


@pytest.mark.slow
def test_a_file_that_is_being_written_shows_whole_records(start_rank: Start) -> None:
    rank = start_rank()
    rank.send("run")
    began = time.monotonic()
    last = -1
    while time.monotonic() < began + 2.0 or (last <= STEP_COUNT and time.monotonic() < began + 240.0):
        content = read(rank.path)
        assert_whole(content)
        if content.steps:
            assert content.steps[-1].step >= last
            last = content.steps[-1].step
    assert last > STEP_COUNT  # the ring wrapped around while it was read


@pytest.fixture
def sample(start_rank: Start) -> tuple[Path, bytes, Content]:
    rank = start_rank()
    rank.do(*["step"] * 9, "block")
    rank.kill()
    return rank.path, rank.path.read_bytes(), read(rank.path)


def assert_is_part_of(found: Content, whole: Content) -> None:
    """Some of it may be missing, but nothing else is there."""
    assert found.identity == whole.identity
    assert found.lanes == whole.lanes[: len(found.lanes)]
    assert set(found.steps) <= set(whole.steps) and set(found.collectives) <= set(whole.collectives)
    assert_whole(found)


@thorough
@given(flips=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 7)), min_size=1, max_size=20))
def test_flipped_bits_never_become_numbers(sample: tuple[Path, bytes, Content], flips: list[tuple[int, int]]) -> None:
    path, whole, content = sample
    data = bytearray(whole)
    for place, bit in flips:
        data[place] ^= 1 << bit
    path.write_bytes(data)
    try:
        found = read(path)
    except RankFileError:
        assert any(place < LIVE_OFFSET for place, _ in flips)  # only the header can make a whole file unreadable
    else:
        assert_is_part_of(found, content)


@thorough
@given(place=st.integers(0, 34_000), junk=st.binary(min_size=1, max_size=5_000))
def test_overwritten_bytes_never_become_numbers(sample: tuple[Path, bytes, Content], place: int, junk: bytes) -> None:
    path, whole, content = sample
    path.write_bytes(whole[:place] + junk + whole[place + len(junk) :])
    try:
        assert_is_part_of(read(path), content)
    except RankFileError:
        assert place < LIVE_OFFSET


@thorough
@given(size=st.integers(0, FILE_BYTES - 1))
def test_a_truncated_file_is_rejected_also_while_it_is_open(sample: tuple[Path, bytes, Content], size: int) -> None:
    path, whole, content = sample
    path.write_bytes(whole)
    with RankFileReader(str(path)) as file:
        os.truncate(path, size)
        for read_part in (file.live_state, file.finished, file.steps):
            try:
                read_part()
            except RankFileError as error:
                assert error.reason == "truncated"
        assert file.lanes() == content.lanes[: len(file.lanes())]
        assert file.counters() is None or file.counters().steps in (8, 9)
        assert file.collectives() == []
        file.lock_holder()
    with pytest.raises(RankFileError, match="truncated"):
        RankFileReader(str(path))


@thorough
@given(head=st.binary(max_size=8_192))
def test_random_bytes_are_rejected(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "x.rank"
    path.write_bytes(head.ljust(FILE_BYTES, b"\xff"))
    with pytest.raises(RankFileError):
        RankFileReader(str(path))


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """Room for two rank files, and not for three."""
    place = tmp_path / "small"
    place.mkdir()
    size = f"size={2 * FILE_BYTES + FILE_BYTES // 2}"
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", size, "laggard-test", place]).returncode:
        pytest.skip("needs root and the right to mount: it fills a small tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_file_system_is_an_error_at_the_start(small_file_system: Path, start_rank: Start) -> None:
    script = f"""
import errno, sys, time
from laggard.rankfile.writer import RankFileWriter
identity = dict(job_id="j", rank=0, local_rank=0, world_size=1, node="n", attempt=0, wall_ns=1, monotonic_ns=1)
writers = []
try:
    for _ in range(3):
        writers.append(RankFileWriter({str(small_file_system)!r}, identity))
except OSError as error:
    assert error.errno == errno.ENOSPC, error
    print(len(writers))
for number in range(5000):  # the files that exist are allocated in full: no SIGBUS
    for writer in writers:
        writer.write_step(number, *range(13))
        writer.write_counters([0] * 17, [])
        writer.write_collectives(number, [0] * 320)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
    assert len(list(small_file_system.iterdir())) == 2  # no unfinished file is left


def test_everybody_can_read_the_file_and_only_its_owner_can_write_it(rank_dir: Path, start_rank: Start) -> None:
    before = os.umask(0o077)
    try:
        rank = start_rank()
    finally:
        os.umask(before)
    assert stat.S_IMODE(rank.path.stat().st_mode) == 0o644
    assert rank.path.stat().st_blocks * 512 >= FILE_BYTES  # no holes


def test_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        RankFileWriter(str(tmp_path / "file" / "ranks"), {})
    assert caught.value.errno == errno.ENOTDIR


def test_what_lies_beside_a_file_goes_with_it(rank_dir: Path, start_rank: Start) -> None:
    """Ten minutes after its writer ended, when the user's next rank starts here; the files take memory."""
    old, young, living = (start_rank(rank=rank, directory=rank_dir) for rank in range(3))
    for rank in (old, young, living):
        for suffix in (".stacks", ".fault"):
            rank.path.with_suffix(suffix).write_bytes(b"{}")
    old.kill()
    young.kill()
    for rank in (old, living):
        os.utime(rank.path, (1000.0, 1000.0))
    start_rank(rank=3, directory=rank_dir)
    assert not list(rank_dir.rglob(f"{old.path.stem}.*"))
    for rank in (young, living):
        assert len(list(rank_dir.rglob(f"{rank.path.stem}.*"))) == 3


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=60, unique=True))
def test_members_are_read_as_they_were_written(members: list[int]) -> None:
    runs = parse_runs(json.loads(json.dumps(member_runs(members))), 4001)
    assert members_of(runs) == tuple(members) and size_of(runs) == len(members)
    assert [index_in(runs, rank) for rank in members] == list(range(len(members)))
    assert index_in(runs, 4001) is None


def test_regular_members_are_one_run_however_many() -> None:
    assert member_runs(range(3, 100_003, 8)) == [3, 12_500, 8]
    assert member_runs((0, 1, 2, 3, 9)) == [0, 4, 1, 9, 1, 1]


def test_members_without_a_pattern_are_left_out() -> None:
    assert member_runs([number * number for number in range(2 * MAX_RUNS)]) is None


@pytest.mark.parametrize(
    "value",
    [None, "0-7", 5, {}, [0], [0, 4], [0, 4, 0], [0, 0, 1], [-1, 2, 1], [0, 9, 1], [0, 2, 8], [0.0, 2, 1],
     [True, 2, 1], [0, 10**30, 1], [0, 8, 1, 0, 8, 1], [0, 1, 1] * (MAX_RUNS + 1), [[0, 1, 1]]],
)  # fmt: skip
def test_what_is_no_list_of_members_of_the_job_is_none(value: Any) -> None:
    assert parse_runs(value, 8) == ()
