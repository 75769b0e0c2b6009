"""Reading recordings: gaps are reported, and files that are no recording are refused in one line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import DEMO_TRAINING
from support.recordings import HEAD, lines, write

from laggard.kit.constants import PHASES
from laggard.kit.errors import UsageError
from laggard.kit.processes import own_identity
from laggard.locate.verdict import locate
from laggard.model import Verdict
from laggard.recording.reader import read_recording
from laggard.stacks.fault_text import header


def test_one_file_a_rank_and_one_for_all_give_the_same_verdict(tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    directory.mkdir()
    for rank, slow in ((0, 0.0), (1, 0.15)):
        write(directory / f"rank-{rank}.jsonl", lines(rank, slow))
    whole = write(tmp_path / "all.jsonl", lines(1, 0.15) + lines(0))
    apart, together = (locate(read_recording([path]).timings) for path in (directory, whole))
    assert apart == together
    assert [(culprit.ranks, culprit.phase, culprit.node) for culprit in apart.culprits] == [((1,), "forward", "n1")]


def test_without_spans_the_rank_is_still_named(tmp_path: Path) -> None:
    records = [record for record in lines(0) + lines(1, 0.15) if record["kind"] != "span"]
    location = locate(read_recording([write(tmp_path / "t", records)]).timings)
    assert [(culprit.ranks, culprit.phase) for culprit in location.culprits] == [((1,), None)]


def test_without_step_records_a_steps_times_come_from_its_spans_and_collectives(tmp_path: Path) -> None:
    records = [record for record in lines(0) + lines(1, 0.15) if record["kind"] != "step"]
    location = locate(read_recording([write(tmp_path / "t", records)]).timings)
    assert [culprit.ranks for culprit in location.culprits] == [(1,)]


def test_waited_is_taken_out_in_place_of_the_collectives_length(tmp_path: Path) -> None:
    records = lines(0) + lines(1)
    for record in records:
        if record["kind"] == "collective":
            record["waited"] = 0.0 if record["rank"] == 1 else 0.08
    timings = read_recording([write(tmp_path / "t", records)]).timings
    assert timings.waited_seconds[5] == pytest.approx([0.08, 0.0])
    assert timings.phase_seconds[5, :, PHASES.index("backward")] == pytest.approx([0.12, 0.2])


def test_unfinished_and_null_fields_are_normal(tmp_path: Path) -> None:
    barrier = {"kind": "collective", "rank": 0, "group": "g", "op": "barrier", "start": 1.0}
    extra: list[dict[str, Any]] = [
        {**barrier, "step": 3, "seq": 9, "end": None},
        {**barrier, "step": None, "seq": 8, "end": 2.0},
        {"kind": "rank", "rank": 0, "node": None, "gpu": None, "groups": None, "position": None},
        {"kind": "something new", "of": "a later version"},
    ]
    location = locate(read_recording([write(tmp_path / "t", lines(0) + lines(1, 0.15) + extra)]).timings)
    assert [culprit.ranks for culprit in location.culprits] == [(1,)]


def beat(rank: int, entered: int, is_inside: bool) -> dict[str, Any]:
    """The last that the rank said, 87 s after its last step; it entered so many all_reduces of the group."""
    flight = {"op": "all_reduce", "group": "dp:0-2", "seq": entered, "seconds": 86.0} if is_inside else None
    lane = {"op": "all_reduce", "group": "dp:0-2", "entered": entered, "done": entered - is_inside}
    told = {"age_seconds": 0.0, "interval_seconds": 5.0, "flight_recorder": "off", "lanes": [lane], "groups": []}
    return {"kind": "beat", "rank": rank, "last_step": 19, "quiet_seconds": 87.0, "phase": "forward",
            "in_flight": flight, "beat": {**told, "groups_age_seconds": None}}  # fmt: skip


def write_hung(folder: Path, kinds: tuple[str, ...] = ("step", "span", "collective"), lost_steps: int = 0) -> None:
    """Rank 2 of three hung in step 20. Of rank 0 the records of the last `lost_steps` were lost."""
    folder.mkdir()
    for rank in range(3):
        records = [it for it in lines(rank, steps=20) if it["kind"] in (*kinds, "rank")]
        records = [it for it in records if rank or it.get("step", 0) < 20 - lost_steps]
        last = beat(rank, 20 if rank == 2 else 21, is_inside=rank != 2)
        for each in records:
            if each["kind"] == "collective":
                each["group"] = "dp:0-2"
        write(folder / f"rank-{rank}.jsonl", [*records, last], ends=True, beats=True)


@pytest.mark.parametrize("lost", [1, 3])
def test_records_that_were_lost_make_no_rank_the_first_to_fall_silent(tmp_path: Path, lost: int) -> None:
    write_hung(tmp_path / "recording", lost_steps=lost)
    (culprit,) = locate(read_recording([tmp_path / "recording"]).timings).culprits
    assert (culprit.kind, culprit.ranks, culprit.since_step) == ("hung", (2,), 20)


def test_a_rank_that_stops_before_any_step_is_named(tmp_path: Path) -> None:
    """A loop with an optimizer of its own may have no step for minutes; its ranks say where they stand all the same."""
    for rank in range(3):
        last = beat(rank, 20 if rank == 2 else 21, is_inside=rank != 2) | {"last_step": None}
        write(tmp_path / f"rank-{rank}.jsonl", [last], ends=True, beats=True)
    (culprit,) = locate(read_recording([tmp_path]).timings).culprits
    assert (culprit.kind, culprit.ranks) == ("hung", (2,))


def test_a_groups_members_are_those_that_are_declared_whatever_its_name_looks_like(tmp_path: Path) -> None:
    """`dp:0-2` are two ranks here, and not all from 0 to 2."""
    (tmp_path / "recording").mkdir()
    for rank in range(4):
        group, members = f"dp:{rank % 2}-{rank % 2 + 2}", [rank % 2, rank % 2 + 2]
        records = [it for it in lines(rank, steps=20) if it["kind"] in ("step", "span", "collective", "rank")]
        last = beat(rank, 20 if rank == 0 else 21, is_inside=rank != 0)
        for each in (*records, last["in_flight"] or {}, last["beat"]["lanes"][0]):
            each.update({"group": group} if "group" in each else {})
        about = {"kind": "rank", "rank": rank, "world_size": 4, "node": f"n{rank}", "gpu": None, "local_rank": 0}
        about |= {"attempt": 0, "unix_minus_clock": 1.7e9, "groups": {group: {"role": "dp", "ranks": members}}}
        write(tmp_path / "recording" / f"rank-{rank}.jsonl", [about, *records, last], ends=True, beats=True)
    (culprit,) = locate(read_recording([tmp_path / "recording"]).timings).culprits
    assert (culprit.kind, culprit.ranks) == ("hung", (0,))


@pytest.mark.parametrize("kinds", [("step", "span", "collective"), ("span", "collective")])
def test_who_hung_is_named_with_step_records_and_without(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    write_hung(tmp_path / "recording", kinds)
    (culprit,) = locate(read_recording([tmp_path / "recording"]).timings).culprits
    assert (culprit.kind, culprit.ranks, culprit.phase) == ("hung", (2,), "forward")


def test_a_last_line_that_is_cut_off_is_left_out_and_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "t", lines(0) + lines(1, 0.15))
    path.write_text(path.read_text() + '{"kind": "step", "rank": 0, "st')
    recording = read_recording([path])
    assert [culprit.ranks for culprit in locate(recording.timings).culprits] == [(1,)]
    assert len(recording.gaps) == 1 and "cut off" in recording.gaps[0]


def test_no_steps_is_no_verdict(tmp_path: Path) -> None:
    recording = read_recording([write(tmp_path / "t", lines(0, steps=0) + lines(1, steps=0))])
    assert locate(recording.timings).verdict is Verdict.UNKNOWN
    assert recording.gaps == ("no record carries a step",)


@given(st.lists(st.binary(max_size=60), max_size=8))
@settings(max_examples=200)
def test_no_file_makes_it_crash(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(json.dumps(HEAD).encode() + b"\n" + b"\n".join(rows))
    try:
        locate(read_recording([path]).timings)
    except UsageError as error:
        assert "\n" not in str(error)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})


@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["rank", "step", "span", "collective"])},
            optional={
                name: VALUES | st.integers(0, 3)
                for name in (
                    "rank",
                    "step",
                    "start",
                    "end",
                    "issued",
                    "waited",
                    "name",
                    "node",
                    "gpu",
                    "groups",
                    "world_size",
                )
            },
        ),
        max_size=8,
    )
)
@settings(max_examples=200)
def test_no_record_makes_it_crash(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "file", records)
    try:
        locate(read_recording([path]).timings)
    except UsageError as error:
        assert "\n" not in str(error)


def laggard(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "laggard", *map(str, words)], capture_output=True, text=True)


def test_the_command_prints_the_answer_first(tmp_path: Path) -> None:
    path = write(tmp_path / "t", lines(0) + lines(1, 0.15))
    text = laggard("locate", "--trace", path)
    assert text.returncode == 1 and text.stderr == ""
    assert text.stdout.startswith("Rank 1 on n1 is slow in forward")
    document = laggard("locate", "--trace", path, "--format", "json")
    assert json.loads(document.stdout)["culprits"][0]["ranks"] == [1] and document.returncode == 1


@pytest.mark.slow
def test_a_real_recording_names_the_rank_that_was_slowed(launch: Callable[..., Any], tmp_path: Path) -> None:
    words = ["--steps", "14", "--slow-rank", "1", "--slow-phase", "backward", "--slow-by", "0.3"]
    launch(DEMO_TRAINING, words, ranks=3, extra={"LAGGARD_RECORD_DIR": str(tmp_path / "recording")})
    location = locate(read_recording([tmp_path / "recording"]).timings)
    assert [(culprit.ranks, culprit.phase, culprit.node) for culprit in location.culprits] == [((1,), "backward", "n1")]


GONE = {**own_identity(), "start_ticks": 1}


def on_one_node(rank: int) -> list[dict[str, Any]]:
    return [{**line, "node": "n0"} if line["kind"] == "rank" else line for line in lines(rank)]


def test_a_rank_that_told_of_anothers_end_outlived_it(tmp_path: Path) -> None:
    """The launcher then killed it as well, so that neither recording has an end."""
    saw = {"kind": "saw", "rank": 0, "of": 1, "state": "gone", "at_unix": 1000.0, "signal": "SIGKILL"}
    for rank, more in ((0, [saw]), (1, [])):
        write(tmp_path / f"rank-{rank}.jsonl", [*on_one_node(rank), *more], ends=True, process=GONE)
    location = locate(read_recording([tmp_path]).timings)
    assert [(culprit.kind, culprit.ranks) for culprit in location.culprits] == [("dead", (1,))]


@pytest.mark.parametrize(("terminated", "dead"), [((0, 2), [(1,)]), ((0, 1, 2), []), ((), [])])
def test_who_was_told_to_end_did_not_die_first(
    tmp_path: Path, terminated: tuple[int, ...], dead: list[tuple[int, ...]]
) -> None:
    """A launcher ends the others by SIGTERM, at which Python's faulthandler writes where each of them stands. Who was
    killed writes nothing."""
    stood = b'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in main\n'
    for rank in range(3):
        write(tmp_path / f"rank-{rank}.jsonl", on_one_node(rank), ends=True, process=GONE, job_id="j")
        faults = header("j", rank, "n0", 5, 1) + (stood if rank in terminated else b"")
        (tmp_path / f"rank-{rank}.fault").write_bytes(faults)
    location = locate(read_recording([tmp_path]).timings)
    assert [culprit.ranks for culprit in location.culprits] == dead
    if not dead:
        assert "ended" in [note.kind for note in location.notes]


def test_who_was_told_to_end_did_not_die_first_though_a_peer_saw_it_run_last(tmp_path: Path) -> None:
    """A launcher ended ranks one by one: rank 0 first, at which rank 1 failed, and saw rank 2 still run."""
    saw = {"kind": "saw", "rank": 1, "of": 0, "state": "gone", "at_unix": 1000.0, "signal": "SIGTERM"}
    runs = {"kind": "saw", "rank": 1, "of": 2, "state": "runs", "at_unix": 1000.0, "phase": "backward"}
    failed = {"exit_code": 1, "exception": "RuntimeError", "others_failed": True}
    end = {"kind": "end", "rank": 1, "lost": 0, "at_seconds": 10.0, **failed}
    stood = b'Thread 0x1 (most recent call first):\n  File "train.py", line 7 in main\n'
    for rank, more in ((0, []), (1, [saw, runs, end]), (2, [])):
        write(tmp_path / f"rank-{rank}.jsonl", [*on_one_node(rank), *more], ends=True, process=GONE, job_id="j")
        (tmp_path / f"rank-{rank}.fault").write_bytes(header("j", rank, "n0", 5, 1) + (stood if rank == 2 else b""))
    location = locate(read_recording([tmp_path]).timings)
    assert location.culprits == () and "ended" in [note.kind for note in location.notes]


@pytest.mark.parametrize("killed", [(1,), ()])
def test_who_was_killed_after_the_last_collective_of_all_is_missed_by_nobody(
    tmp_path: Path, killed: tuple[int, ...]
) -> None:
    """Without step records its last step is not known to be over; the others finished theirs, and left in order."""
    for rank in range(3):
        known = [line for line in on_one_node(rank) if line["kind"] != "step"]
        end = [] if rank in killed else [{"kind": "end", "rank": rank, "lost": 0, "at_seconds": 9000.0}]
        write(tmp_path / f"rank-{rank}.jsonl", [*known, *end], ends=True, process=GONE)
    location = locate(read_recording([tmp_path]).timings)
    assert not location.culprits and [note.kind for note in location.notes] == ["lacks"] * len(killed)


def test_a_beat_without_groups_is_read_as_one_of_a_rank_without_flight_recorder(tmp_path: Path) -> None:
    """Who writes recordings of another tool knows of no Flight Recorder."""
    beat = {"age_seconds": 0.0, "interval_seconds": 5.0, "flight_recorder": "off", "lanes": []}
    line = {"kind": "beat", "rank": 0, "last_step": 19, "quiet_seconds": 60.0, "phase": "forward", "beat": beat}
    write(tmp_path / "rank-0.jsonl", [*lines(0), line], ends=True, beats=True)
    found = read_recording([tmp_path])
    assert not [gap for gap in found.gaps if "left out" in gap]
    (beat,) = found.timings.last_beats
    assert beat is not None and (beat.quiet_seconds, beat.beat.groups) == (60.0, ())


def test_of_steps_that_went_back_to_a_checkpoint_what_was_done_last_counts(tmp_path: Path) -> None:
    """One process loads the checkpoint of step 30 after step 49, and its clock goes on."""
    for rank in (0, 1, 2):
        before, after = lines(rank, steps=50), lines(rank, 0.1 * (rank == 1), steps=100)[1 + 4 * 30 :]
        for line in after:
            for name in {"start", "end", "issued"} & set(line):
                line[name] += 60.0
            if line["kind"] == "collective":
                line["seq"] += 100
        write(tmp_path / f"rank-{rank}.jsonl", before + after)
    found = read_recording([tmp_path])
    assert found.timings.steps.tolist() == list(range(100)) and not any("twice" in gap for gap in found.gaps)
    (culprit,) = locate(found.timings).culprits
    assert (culprit.ranks, culprit.since_step) == ((1,), 30)
