"""`laggard locate --perfetto`: a recording as a trace that Perfetto opens."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.recordings import lines, write

from laggard.cli import main
from laggard.recording.judged import judge_recording
from laggard.recording.perfetto import PARTS, STEPS, trace_of


def _recording(tmp_path: Path) -> Path:
    return write(tmp_path / "recording.jsonl", lines(0) + lines(1, 0.15))


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, Any]]:
    file = tmp_path / "trace.json"
    assert main(["locate", "--trace", str(_recording(tmp_path)), "--perfetto", str(file)]) == 1
    found: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return found


def _told(events: list[dict[str, Any]], what: str) -> dict[tuple[int, int], Any]:
    return {(it["pid"], it["tid"]): next(iter(it["args"].values())) for it in events if it["name"] == what}


def test_a_process_for_each_rank_the_culprits_first(events: list[dict[str, Any]]) -> None:
    assert _told(events, "process_name") == {(0, STEPS): "rank 0 on n0", (1, STEPS): "rank 1 on n1, the culprit"}
    assert _told(events, "process_sort_index") == {(1, STEPS): 0, (0, STEPS): 1}
    threads = _told(events, "thread_name")
    assert threads[1, STEPS] == "steps" and "collectives of g" in threads.values()
    assert _told(events, "thread_sort_index") == {(pid, tid): tid for pid, tid in threads}, "else tid == pid is first"


def test_slices_have_the_formats_keys_and_nest(events: list[dict[str, Any]]) -> None:
    tracks = _tracks(events)
    assert len(tracks) == 6
    for rank in (0, 1):
        low, high = tracks[rank, STEPS][0][0], tracks[rank, STEPS][-1][1]
        assert all(low <= start and end <= high for start, end in tracks[rank, PARTS])
    assert min(start for found in tracks.values() for start, _ in found) == 0


def _tracks(events: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The slices of each thread in nanoseconds, as Perfetto's importer takes them without an error."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event.keys() == {"ph", "name", "pid", "tid", "ts", "dur", "args"}
            start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            assert start >= 0 and length >= 0
            tracks[event["pid"], event["tid"]].append((start, start + length))
    for found in tracks.values():
        found.sort()
        assert all(end <= start for (_, end), (start, _) in zip(found, found[1:], strict=False))
    return tracks


def test_what_clocks_have_overlap_does_not(tmp_path: Path) -> None:
    """Steps that begin some nanoseconds before the last has ended, phases longer than their step, and a collective that
    began before the first step."""
    records = lines(0) + lines(1, 0.15)
    for each in records:
        if each["kind"] == "step":
            each["start"] -= 2e-9
        if each["kind"] == "span" and each["name"] == "backward":
            each["end"] += 0.4
        if each["kind"] == "collective" and each["step"] == 0:
            each["start"] = each["issued"] = each["start"] - 1.0
    judged = judge_recording([str(write(tmp_path / "recording.jsonl", records))])
    assert len(_tracks(trace_of(judged).events)) == 6


def test_clocks_apart_by_1000_s_have_one_zero_in_microseconds(events: list[dict[str, Any]]) -> None:
    steps = {(it["pid"], it["args"]["step"]): it for it in events if it["ph"] == "X" and it["tid"] == STEPS}
    last = max(step for _, step in steps)
    assert steps[0, last]["ts"] == pytest.approx(steps[1, last]["ts"], abs=1.0)
    assert steps[1, last]["dur"] == pytest.approx(0.3e6, abs=1.0)
    forward = [it for it in events if it["name"] == "forward" and it["pid"] == 1]
    assert forward[-1]["dur"] == pytest.approx(0.25e6, abs=1.0)


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    judged = judge_recording([str(_recording(tmp_path))])
    whole, cut = trace_of(judged), trace_of(judged, 30)
    slices = [it for it in cut.events if it["ph"] == "X"]
    assert len(slices) <= 30 and 0 < cut.steps < whole.steps
    assert max(it["args"]["step"] for it in slices) == judged.timings.steps[-1]
    assert min(it["args"]["step"] for it in slices) == judged.timings.steps[-cut.steps]


def test_what_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "missing" / "trace.json"
    assert main(["locate", "--trace", str(_recording(tmp_path)), "--perfetto", str(file)]) == 64
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1 and f"cannot write {file}" in told.err


def test_it_goes_with_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["locate", "--perfetto", "trace.json"]) == 64
    assert "name one with --trace" in capsys.readouterr().err
