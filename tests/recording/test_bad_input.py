"""Recordings that are damaged, incomplete or contradict themselves: what is lost is told, and nothing is called healthy
for lack of records."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.recordings import lines, write
from support.rows import rows

from laggard.kit.errors import UsageError
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.recording.reader import read_recording
from laggard.recording.recorded_timings import RecordedTimings

SLOW = lines(0) + lines(1, 0.15)


def judged(*paths: Path) -> tuple[Location, RecordedTimings]:
    recording = read_recording(paths)
    return locate(recording.timings), recording


def named(location: Location) -> list[tuple[int, ...]]:
    return [culprit.ranks for culprit in location.culprits]


@rows("recording/corrupt_lines")
def test_a_corrupt_line_costs_that_line_and_is_told(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path / "t", SLOW)
    head, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([head, *rest[:30], line.encode("latin-1") + b"\n", *rest[30:]]))
    location, recording = judged(path)
    assert named(location) == [(1,)] and recording.timings.world_size == 2
    (gap,) = recording.gaps
    assert gap.startswith(f"1 line of {path} left out") and "line 32" in gap and re.search(reason, gap), gap


@rows("recording/impossible_records")
def test_an_impossible_record_is_left_out_and_told(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    extra = {**next(record for record in SLOW if record["kind"] == "collective"), "seq": 999, **fields}
    location, recording = judged(write(tmp_path / "t", [*SLOW, extra]))
    assert named(location) == [(1,)]
    assert recording.gaps == (f"{told}: left out",)


def test_a_byte_order_mark_windows_line_ends_and_empty_lines_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path / "t", SLOW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    location, recording = judged(path)
    assert named(location) == [(1,)] and recording.gaps == ()


def test_what_lies_beside_recordings_is_passed_over_and_told(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.jsonl", lines(0))
    write(tmp_path / "rank-1.jsonl", lines(1, 0.15))
    (tmp_path / "README.md").write_text("What this is.\n")
    (tmp_path / "core").write_bytes(bytes(range(256)) * 4)
    location, recording = judged(tmp_path)
    assert named(location) == [(1,)]
    assert recording.gaps == (f"{tmp_path}: 2 files passed over, no recording: README.md, core",)


def test_a_directory_without_any_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("What this is.\n")
    with pytest.raises(UsageError, match="holds no recording"):
        read_recording([tmp_path])


def test_doubled_lines_change_nothing_but_a_note(tmp_path: Path) -> None:
    once, _ = judged(write(tmp_path / "once", SLOW))
    twice, recording = judged(write(tmp_path / "twice", SLOW + SLOW))
    assert twice == once
    (gap,) = recording.gaps
    assert gap.endswith("there more than once, and counted once")


def test_the_order_of_lines_changes_nothing(tmp_path: Path) -> None:
    forward, _ = judged(write(tmp_path / "forward", SLOW))
    backward, _ = judged(write(tmp_path / "backward", SLOW[::-1]))
    assert backward == forward


def test_of_two_jobs_in_one_file_the_larger_is_judged_and_the_other_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t", SLOW)
    other = json.dumps({"laggard_recording": 1, "job_id": "other"}) + "\n"
    path.write_text(path.read_text() + other + "".join(json.dumps(each) + "\n" for each in lines(0, 0.1, steps=12)))
    location, recording = judged(path)
    assert named(location) == [(1,)] and location.job_id == "j"
    assert recording.gaps == (f"left out: {path}, which holds another job, other",)


def test_an_attempt_that_is_over_is_left_out(tmp_path: Path) -> None:
    def attempt(number: int, slow: int) -> list[dict[str, Any]]:
        records = lines(0, 0.15 if slow == 0 else 0.0) + lines(1, 0.15 if slow == 1 else 0.0)
        return [{**each, "attempt": number} if each["kind"] == "rank" else each for each in records]

    write(tmp_path / "first", attempt(0, slow=0))
    write(tmp_path / "second", attempt(1, slow=1))
    location, recording = judged(tmp_path)
    assert named(location) == [(1,)]
    assert recording.gaps == (f"left out: {tmp_path}/first, which holds attempt 0, which is over",)


@pytest.mark.parametrize("declared", [True, False])
def test_one_number_for_two_ranks_is_told_and_judged_by_neither(tmp_path: Path, declared: bool) -> None:
    """A third rank reports as rank 1, from another machine with another clock."""
    liar = [{**record, "rank": 1} for record in lines(5)]
    write(tmp_path / "a", SLOW)
    write(tmp_path / "b", liar if declared else [record for record in liar if record["kind"] != "rank"])
    location, recording = judged(tmp_path)
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    assert any(gap.startswith("rank 1 recorded twice") for gap in recording.gaps)


def test_a_span_of_no_length_beside_one_that_begins_with_it_is_no_contradiction(tmp_path: Path) -> None:
    """As of a wait for a collective that was over before."""
    empty = [{**record, "end": record["start"]} for record in SLOW if record["kind"] == "span"]
    once, _ = judged(write(tmp_path / "once", SLOW))
    with_empty, recording = judged(write(tmp_path / "with", SLOW + empty))
    assert (with_empty, recording.gaps) == (once, ())


def only(*kinds: str) -> Callable[[dict[str, Any]], bool]:
    return lambda record: record["kind"] in ("rank", *kinds)


@pytest.mark.parametrize("kinds", [("span",), ("step",), ("span", "step")])
def test_without_collectives_nothing_is_called_healthy(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    location, _ = judged(write(tmp_path / "t", list(filter(only(*kinds), lines(0) + lines(1)))))
    assert location.verdict is Verdict.UNKNOWN and location.culprits == ()
    assert [note.kind for note in location.notes] == ["no_waits"]


def test_collectives_without_a_step_are_no_verdict(tmp_path: Path) -> None:
    records = [{**record, "step": None} for record in filter(only("collective"), SLOW)]
    location, recording = judged(write(tmp_path / "t", records))
    assert location.verdict is Verdict.UNKNOWN and recording.gaps == ("no record carries a step",)


def test_with_collectives_alone_the_work_before_the_first_one_belongs_to_its_step(tmp_path: Path) -> None:
    """A step begins where the one before it ended: all computing of a step lies before its first collective."""
    location, recording = judged(write(tmp_path / "t", list(filter(only("collective"), SLOW))))
    assert named(location) == [(1,)]
    assert location.culprits[0].confidence < 0.95, "without spans the verdict is less sure"
    assert any("no step records" in gap for gap in recording.gaps)


def test_a_wait_that_ends_where_a_span_begins_is_not_taken_out_of_that_span(tmp_path: Path) -> None:
    """Both ranks wait through the gap between two spans; rank 1 computes for 0.05 s more than rank 0 after it."""
    records: list[dict[str, Any]] = []
    for rank, slow in ((0, 0.0), (1, 0.05)):
        records.append({"kind": "rank", "rank": rank, "node": f"n{rank}"})
        for step in range(20):
            start = step * 1.0
            shared = {"rank": rank, "step": step}
            records += [
                {"kind": "step", **shared, "start": start, "end": start + 1.0},
                {"kind": "span", **shared, "name": "forward", "start": start, "end": start + 0.2},
                {"kind": "collective", **shared, "group": "g", "op": "all_reduce", "seq": 2 * step,
                 "start": start + 0.2, "end": start + 0.5},
                {"kind": "span", **shared, "name": "backward", "start": start + 0.5, "end": start + 0.8 + slow},
                {"kind": "collective", **shared, "group": "g", "op": "all_reduce", "seq": 2 * step + 1,
                 "start": start + 0.8 + slow, "end": start + 1.0},
            ]  # fmt: skip
    location, recording = judged(write(tmp_path / "t", records))
    assert [(culprit.ranks, culprit.phase) for culprit in location.culprits] == [((1,), "backward")]
    assert recording.timings.phase_seconds[5, 0].tolist() == pytest.approx([0, 0.2, 0.3, *[0] * 6])
    assert recording.timings.waited_seconds[5, 0] == pytest.approx(0.5)


def test_waits_for_several_sends_and_receives_at_once_are_one_wait(tmp_path: Path) -> None:
    records = [
        {"kind": "step", "rank": 0, "step": 3, "start": 0.0, "end": 1.0},
        {"kind": "span", "rank": 0, "step": 3, "name": "forward", "start": 0.0, "end": 1.0},
    ]
    for seq, (start, end) in enumerate(((0.2, 0.6), (0.3, 0.6), (0.3, 0.7), (0.9, 0.95))):
        records.append({"kind": "collective", "rank": 0, "step": 3, "group": "pp", "op": "recv", "peer": seq,
                        "seq": 0, "start": start, "end": end})  # fmt: skip
    timings = read_recording([write(tmp_path / "t", records)]).timings
    assert timings.waited_seconds[0, 0] == pytest.approx(0.55)
    assert timings.phase_seconds[0, 0].tolist() == pytest.approx([0, 0.45, *[0] * 7])


def test_a_far_rank_number_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    far = [{**record, "rank": 1_000_000} for record in lines(0, steps=3)]
    location, recording = judged(write(tmp_path / "t", SLOW + far))
    assert named(location) == [(1,)] and recording.timings.phase_seconds.nbytes < 1 << 20
