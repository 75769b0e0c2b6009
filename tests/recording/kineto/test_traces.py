"""Verdicts from profiler traces, and what is told of those that are damaged, missing or of two jobs."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kineto import document, event, gpu_rank, nccl, write
from support.paths import SHARED

from laggard.kit.errors import UsageError
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.recording import kineto_stream as stream
from laggard.recording.kineto_stream import NoTrace, TraceStream
from laggard.recording.kineto_trace import read_trace
from laggard.recording.reader import read_recording

REAL = SHARED / "data" / "kineto"


def judged(*paths: Path) -> tuple[Location, tuple[str, ...]]:
    recording = read_recording(paths)
    return locate(recording.timings), recording.gaps


def gpu_job(folder: Path, slow: int = 2, ending: str = "json", **fields: Any) -> Path:
    folder.mkdir()
    for rank in range(4):
        events = gpu_rank(rank, 0.08 if rank == slow else 0.06, 0.08, **fields)
        write(folder / f"rank-{rank}.{ending}", document(rank, 4, events))
    return folder


@pytest.mark.parametrize("ending", ["json", "json.gz"])
@pytest.mark.parametrize("group", [(), (0, 1, 2, 3)])
def test_the_rank_whose_gpu_computes_longest_is_named(tmp_path: Path, ending: str, group: tuple[int, ...]) -> None:
    """Its wait is the shortest, and what is hidden behind computing is no wait."""
    location, gaps = judged(gpu_job(tmp_path / "d", ending=ending, group=group))
    (culprit,) = location.culprits
    assert (culprit.kind, culprit.ranks, culprit.victims) == ("slow_compute", (2,), (0, 1, 3))
    assert location.window.first_step == 5 and location.window.last_step == 24
    assert [gap for gap in gaps if "do not tell their process group" in gap] == ([] if group else list(gaps))


def test_a_healthy_job_has_no_culprit(tmp_path: Path) -> None:
    location, _ = judged(gpu_job(tmp_path / "d", slow=-1, group=(0, 1, 2, 3)))
    assert location.verdict is Verdict.OK and not location.culprits


def test_waits_are_the_time_beside_which_no_kernel_ran(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document(0, 2, gpu_rank(0, 0.06, 0.08, steps=1)))
    hidden, shown = sorted(read_trace(path).collectives, key=lambda each: each.start)
    assert hidden.waited == pytest.approx(0.0, abs=1e-9)
    assert shown.waited == pytest.approx(0.025)


@pytest.mark.parametrize("numbered", [True, False])
def test_a_slow_link_is_found_by_the_transfers(tmp_path: Path, numbered: bool) -> None:
    """Eight ranks in pairs; all collectives between ranks 2 and 3 take 9 ms longer, whoever waits."""
    folder = tmp_path / "d"
    folder.mkdir()
    for rank in range(8):
        first = rank - rank % 2
        slow = {"transfer": 0.014} if first == 2 else {"transfer": 0.005}
        events = gpu_rank(rank, 0.06, 0.06, group=(first, first + 1), numbered=numbered, **slow)
        write(folder / f"rank-{rank}.json", document(rank, 8, events, host_name=f"n{first}"))
    location, _ = judged(folder)
    (culprit,) = location.culprits
    assert culprit.kind == "slow_link" and set(culprit.ranks) <= {2, 3}, culprit


def test_ranks_that_were_not_profiled_are_named(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path / "d", group=(0, 1, 2, 3))
    (folder / "rank-3.json").unlink()
    location, _ = judged(folder)
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]
    (note,) = (note for note in location.notes if note.kind == "partial")
    assert note.ranks == (3,)


def test_too_few_steps_are_a_hint_and_no_verdict(tmp_path: Path) -> None:
    location, _ = judged(gpu_job(tmp_path / "d", steps=3))
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    (hint,) = (note for note in location.notes if note.kind == "least_wait")
    assert hint.ranks == (2,) and "in 3 steps, rank 2 waited least" in hint.text


def test_a_rank_may_have_several_traces_of_different_steps(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for rank in range(4):
        busy = 0.08 if rank == 2 else 0.06
        for first in (5, 105):
            events = gpu_rank(rank, busy, 0.08, steps=10, first_step=first, group=(0, 1, 2, 3), numbered=False)
            write(folder / f"host_{rank}.{first}.pt.trace.json", document(rank, 4, events))
    location, _ = judged(folder)
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]
    assert location.window.last_step == 114


@pytest.mark.parametrize("world", [4, 8])
def test_two_jobs_are_refused_with_the_choices(tmp_path: Path, world: int) -> None:
    folder = gpu_job(tmp_path / "d")
    write(folder / "other.json", document(1, world, gpu_rank(1, 0.06, 0.08)))
    with pytest.raises(
        UsageError, match=r"different sizes.*name those" if world == 8 else "two traces of step 5"
    ) as caught:
        read_recording([folder])
    assert "other.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("damage", ['{"ph": "X", "ts": }', '{"ph": "X" "cat"', '{"a":' * 3000, "nul", '"text"'])
def test_a_damaged_event_costs_that_event(tmp_path: Path, damage: str, indent: int | None) -> None:
    folder = gpu_job(tmp_path / "d", group=(0, 1, 2, 3))
    value = json.loads((folder / "rank-1.json").read_text())
    value["traceEvents"].insert(40, "HERE")
    text = json.dumps(value, indent=indent).replace('"HERE"', damage)
    (folder / "rank-1.json").write_text(text)
    location, gaps = judged(folder)
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]
    assert any("events of" in gap and "rank-1.json left out: damaged" in gap for gap in gaps), gaps


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_trace_that_is_cut_off_counts_up_to_there(tmp_path: Path, ending: str) -> None:
    folder = gpu_job(tmp_path / "d", ending=ending, group=(0, 1, 2, 3), steps=40)
    path = folder / f"rank-1.{ending}"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * 0.7)])
    location, gaps = judged(folder)
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]
    assert any("rank-1" in gap and "cut off" in gap for gap in gaps), gaps


def test_phases_are_those_of_the_annotations(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#3", 0.0, 1.0),
        event("user_annotation", "## forward ##", 0.1, 0.4),
        event("user_annotation", "DistributedDataParallel.forward", 0.15, 0.35),
        event("user_annotation", "## backward ##", 0.4, 0.8),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.0, 0.1),
        event("user_annotation", "Optimizer.step#AdamW.step", 0.8, 0.9),
        event("user_annotation", "forward_backward", 0.92, 0.95),
        event("user_annotation", "gloo:all_reduce", 0.5, 0.7),
        event("cpu_op", "aten::mm", 0.5, 0.6),
        event("cpu_op", "c10d::allreduce_", 0.5, 0.7),
    ]
    write(tmp_path / "rank-0.json", document(0, 1, events))
    timings = read_recording([tmp_path]).timings
    assert timings.phase_seconds[0, 0].tolist() == pytest.approx([0.1, 0.3, 0.3, 0.1, 0, 0, 0, 0, 0.1])
    assert timings.waited_seconds[0, 0] == pytest.approx(0.1), "aten::mm ran beside half of it"


def test_traces_without_steps_or_collectives_say_so(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank-{rank}.json", document(rank, 2, [event("cpu_op", "aten::mm", 0.0, 1.0)]))
    location, gaps = judged(tmp_path)
    assert location.verdict is Verdict.UNKNOWN
    assert any("have no steps" in gap for gap in gaps) and any("no kernel of NCCL" in gap for gap in gaps)


@pytest.mark.skipif(not REAL.is_dir(), reason="two ranks' traces of a real job are not on this machine")
def test_the_waits_in_a_real_jobs_traces_are_those_counted_by_hand() -> None:
    """By a sweep over the sorted ends of all its kernels: for how long an NCCL kernel ran alone, in each step."""
    location, gaps = judged(REAL)
    timings = read_recording([REAL]).timings
    assert (location.verdict, location.world_size, location.ranks_seen) == (Verdict.UNKNOWN, 128, 2)
    expected = [[0.171780, 0.133804], [0.164253, 0.165691]]
    assert timings.waited_seconds.tolist() == [pytest.approx(row, abs=2e-6) for row in expected]
    assert timings.step_seconds[0].tolist() == pytest.approx([0.607312, 0.607904], abs=2e-6)
    assert any("do not tell their process group" in gap for gap in gaps)


def test_the_metadata_of_either_age_is_read(tmp_path: Path) -> None:
    events = [event("user_annotation", "ProfilerStep#1", 0.0, 1.0), nccl(0.1, 0.2), nccl(0.3, 0.4, (0, 4), 17)]
    old, new = read_trace(write(tmp_path / "rank-0.json", document(0, 8, events))).collectives
    assert (old.group, old.op, old.number, old.size) == ("", 0, -1, -1)
    assert (new.group, new.op, new.number, new.size) == ("0-4", 0, 17, 4 << 20)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)

EVENTS = st.lists(st.dictionaries(st.text(max_size=6), JSON, max_size=4), max_size=6)


def read(path: Path) -> tuple[list[Any], TraceStream]:
    found = TraceStream(path)
    return list(found.events()), found


@given(EVENTS, st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=3), st.integers(1, 40), st.booleans())
def test_pieces_of_any_size_make_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], head: dict[str, Any], chunk: int, indented: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    head.pop("traceEvents", None)
    path.write_text(json.dumps({**head, "traceEvents": events, "end": 1}, indent=2 if indented else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        found, reader = read(path)
    assert found == events and reader.head == {**head, "end": 1}
    assert reader.damaged == 0 and reader.cut_off == ""


@given(st.binary(max_size=120), st.integers(1, 30))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, chunk: int) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        for content in (data, b'{"traceEvents": [' + data, b'{"traceEvents": [{"ph": "X"}, ' + data + b', {"a": 1}]}'):
            path.write_bytes(content)
            try:
                read(path)
            except NoTrace as error:
                assert "\n" not in str(error)


def peak_bytes(path: Path) -> int:
    tracemalloc.start()
    try:
        for _ in TraceStream(path).events():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 16)
    one = json.dumps({"ph": "X", "name": "n" * 80, "args": {"External id": 1}}) + ",\n"
    sizes = []
    for count in (5_000, 50_000):
        path = tmp_path / str(count)
        path.write_text('{"traceEvents": [' + one * count + "{}]}")
        sizes.append(peak_bytes(path))
    assert sizes[1] < 2 * sizes[0]


def test_an_event_without_end_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1 << 14)
    monkeypatch.setattr(stream, "MAX_EVENT_CHARS", 1 << 16)
    path = tmp_path / "t"
    path.write_text('{"traceEvents": [{"a": 1}, {"name": "' + "x" * 3_000_000)
    events, found = read(path)
    assert events == [{"a": 1}] and found.damaged == 1 and found.cut_off


@given(EVENTS, st.integers(1, 60), st.data())
def test_packed_traces_are_read_in_one_or_several_members(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], chunk: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    text = json.dumps({"traceEvents": events}).encode()
    middle = data.draw(st.integers(0, len(text)))
    path.write_bytes(gzip.compress(text[:middle]) + gzip.compress(text[middle:]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_BYTES", chunk)
        assert read(path)[0] == events
