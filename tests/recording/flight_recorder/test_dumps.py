"""Verdicts from Flight Recorder dumps of NCCL jobs; what is told of dumps that are damaged, missing or of two jobs."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.flight_recorder import DATA, TENSOR, WORLD, Group, dump, entry, groups_of, write_dumps
from support.rows import rows

from laggard.kit.errors import UsageError
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.recording.reader import read_recording


def nested(hung: int | None = 1) -> dict[int, Any]:
    """Four ranks, in pairs by tensor and by data: rank 1 stays outside its fourth all_reduce of tp, for which rank 0
    waits, for which rank 2 waits in dp; rank 3 waits in dp for rank 1."""
    dumps = {}
    for rank in range(4):
        tensor, data = TENSOR[rank // 2], DATA[rank % 2]
        entries = [entry(group, "all_reduce", seq) for seq in (1, 2, 3) for group in (tensor, data)]
        if rank == 0:
            entries.append(entry(tensor, "all_reduce", 4, "scheduled"))
        elif rank != hung:
            entries += [entry(tensor, "all_reduce", 4), entry(data, "all_reduce", 4, "scheduled")]
        dumps[rank] = dump(groups_of(rank), entries)
    return dumps


def judged(*paths: Path) -> tuple[Location, tuple[str, ...]]:
    recording = read_recording(paths)
    return locate(recording.timings), recording.gaps


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_rank_that_never_came_is_named_with_all_that_wait_in_consequence(tmp_path: Path, form: str) -> None:
    location, gaps = judged(write_dumps(tmp_path / "d", nested(), form))
    (culprit,) = location.culprits
    assert (culprit.kind, culprit.ranks, culprit.victims) == ("hung", (1,), (0, 2, 3))
    assert culprit.evidence == ("never came to all_reduce number 4 of dp:1-3/2, in which rank 3 stayed",)
    assert culprit.since_step is None and location.world_size == 4 and gaps == ()


def test_names_of_groups_may_differ_between_ranks(tmp_path: Path) -> None:
    dumps = nested()
    config = dumps[2]["pg_config"]
    config["77"] = {**config.pop("2"), "name": "77"}
    for record in dumps[2]["entries"]:
        name, description = record["process_group"]
        record["process_group"] = ("77" if name == "2" else name, description)
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    assert [culprit.ranks for culprit in location.culprits] == [(1,)]


def test_groups_of_the_same_members_and_description_match_in_order(tmp_path: Path) -> None:
    """Rank 1 has finished the first group's second collective, and not come to that of the second."""
    both: list[list[Group]] = [[("5", "undefined", [0, 1]), ("9", "undefined", [0, 1])],
                               [("6", "undefined", [0, 1]), ("10", "undefined", [0, 1])]]  # fmt: skip
    dumps = {
        rank: dump(groups, [entry(groups[0], "all_reduce", 1), entry(groups[1], "all_reduce", 1)])
        for rank, groups in enumerate(both)
    }
    dumps[0]["entries"].append(entry(both[0][0], "all_reduce", 2))
    dumps[0]["entries"].append(entry(both[0][1], "all_reduce", 2, "scheduled"))
    dumps[1]["entries"].append(entry(both[1][0], "all_reduce", 2))
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    (culprit,) = location.culprits
    assert culprit.ranks == (1,) and "number 2 of group:0-1#9" in culprit.evidence[0]


def test_a_rank_without_a_dump_is_named_as_what_the_others_wait_for(tmp_path: Path) -> None:
    dumps = nested()
    del dumps[1]
    location, gaps = judged(write_dumps(tmp_path / "d", dumps))
    assert location.verdict is Verdict.UNKNOWN and not location.culprits
    (note,) = (note for note in location.notes if note.kind == "unseen_ranks")
    assert note.ranks == (1,) and "rank 0 never finished all_reduce number 4 of tp:0-1" in note.text
    assert "3 ranks wait in all" in note.text
    assert any(gap.startswith("rank 1 left no dump") for gap in gaps)


@pytest.mark.parametrize("version", ["2.2", "2.10"])
def test_counts_speak_where_there_are_no_records(tmp_path: Path, version: str) -> None:
    """Group 0 is the world. Rank 2 has come to its seventh collective only."""
    counts = {0: (8, 7), 1: (8, 7), 2: (7, 7), 3: (8, 7)}
    dumps = {rank: dump([WORLD], (), {0: count}, version) for rank, count in counts.items()}
    location, gaps = judged(write_dumps(tmp_path / "d", dumps))
    (culprit,) = location.culprits
    assert culprit.ranks == (2,) and culprit.victims == (0, 1, 3)
    assert culprit.evidence == ("never came to collective number 8 of world:0-3, in which ranks 0-1 and 3 stayed",)
    assert any("hold no records" in gap for gap in gaps)


def test_who_is_far_ahead_is_not_missed_where_its_recorder_dropped_what_was_before(tmp_path: Path) -> None:
    """Rank 3 holds numbers 900 to 910 of tp alone; rank 2 waits in 5 with a device that stands still."""
    dumps = {
        2: dump([TENSOR[1]], [entry(TENSOR[1], "all_reduce", 5, "scheduled")]),
        3: dump([TENSOR[1]], [entry(TENSOR[1], "all_reduce", n, record_id=n) for n in range(900, 911)]),
    }
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    assert 3 not in [rank for culprit in location.culprits for rank in culprit.ranks]


def test_a_device_that_never_began_what_its_host_enqueued_is_named(tmp_path: Path) -> None:
    """All four enqueued number 2; with TORCH_NCCL_ENABLE_TIMING three devices are known to have begun it."""
    began = {"time_discovered_started_ns": 1}
    dumps = {}
    for rank in range(4):
        last = (
            entry(WORLD, "all_reduce", 2, "started", **began)
            if rank != 2
            else entry(WORLD, "all_reduce", 2, "scheduled")
        )
        dumps[rank] = dump([WORLD], [entry(WORLD, "all_reduce", 1, **began), last])
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    (culprit,) = location.culprits
    assert culprit.ranks == (2,) and "its device never began it" in culprit.evidence[0]


def test_a_receive_whose_sender_never_came_is_followed(tmp_path: Path) -> None:
    stage: Group = ("1", "pp", [0, 2])
    dumps = {
        0: dump([stage], [entry(stage, "send 0->1", 0, p2p_seq_id=1)]),
        2: dump([stage], [entry(stage, "recv 1<-0", 0, p2p_seq_id=1), entry(stage, "recv 1<-0", 0, "scheduled")]),
    }
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    (culprit,) = location.culprits
    assert culprit.ranks == (0,) and "from rank 0 to rank 2" in culprit.evidence[0]


@rows("recording/mismatches")
def test_a_mismatch_is_named_as_one(tmp_path: Path, call: dict[str, Any], told: str) -> None:
    dumps = {}
    for rank in range(4):
        last = entry(WORLD, **(call if rank == 2 else {"op": "all_reduce"}), seq=2, state="scheduled")
        dumps[rank] = dump([WORLD], [entry(WORLD, "all_reduce", 1), last])
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    assert location.verdict is Verdict.FAIL
    (note,) = (note for note in location.notes if note.kind == "mismatch")
    assert note.ranks == (2,) and note.text.startswith(told)


@pytest.mark.parametrize("op", ["all_to_all", "gather", "scatter"])
def test_sizes_that_may_differ_are_no_mismatch(tmp_path: Path, op: str) -> None:
    dumps = {
        rank: dump([WORLD], [entry(WORLD, op, 1, "scheduled", numel=100 * (rank + 1))] if rank != 2 else [])
        for rank in range(4)
    }
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    assert [culprit.ranks for culprit in location.culprits] == [(2,)]


def test_a_job_in_which_nothing_stands_still_is_unknown(tmp_path: Path) -> None:
    dumps = {rank: dump([WORLD], [entry(WORLD, "all_reduce", 1)]) for rank in range(4)}
    location, _ = judged(write_dumps(tmp_path / "d", dumps))
    assert location.verdict is Verdict.UNKNOWN
    assert [note.kind for note in location.notes] == ["no_steps"]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"state": 3}, "a name that is no text"),
        ({"collective_seq_id": -1}, "a number that is none"),
        ({"collective_seq_id": 2**63}, "a number that is none"),
        ({"process_group": ["a"]}, "unpack"),
        ({"profiling_name": "nccl:send"}, "without its peer"),
    ],
)
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_corrupt_record_costs_that_record(tmp_path: Path, broken: dict[str, Any], reason: str, form: str) -> None:
    dumps = nested()
    dumps[0]["entries"][2:2] = [{**dumps[0]["entries"][0], **broken}, "no record", {}]
    location, gaps = judged(write_dumps(tmp_path / "d", dumps, form))
    assert [culprit.ranks for culprit in location.culprits] == [(1,)]
    (gap,) = gaps
    assert gap.startswith("3 records of") and "record 3:" in gap and reason in gap, gap


def test_a_dump_that_is_cut_off_costs_that_rank_and_is_told(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "d", nested())
    whole = (folder / "nccl_trace_rank_1").read_bytes()
    (folder / "nccl_trace_rank_1").write_bytes(whole[: len(whole) // 2])
    location, gaps = judged(folder)
    assert location.verdict is Verdict.UNKNOWN and "rank 1" in location.notes[-1].text + location.notes[0].text
    assert any("nccl_trace_rank_1 is left out: cut off" in gap for gap in gaps)


def test_what_lies_beside_is_passed_over_and_told(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "d", nested())
    (folder / "README.md").write_text("What this is.\n")
    (folder / "model.pkl").write_bytes(b"\x80\x02cos\nsystem\n.")
    location, gaps = judged(folder)
    assert [culprit.ranks for culprit in location.culprits] == [(1,)]
    assert any("1 file passed over, no recording: README.md" in gap for gap in gaps)
    assert any("model.pkl is left out" in gap for gap in gaps)


def test_two_jobs_in_one_folder_are_refused_with_the_choices(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "d", nested())
    write_dumps(folder, nested(), prefix="older_")
    with pytest.raises(UsageError, match=r"more than one dump.*nccl_trace_rank_\* .*or .*older_\*") as caught:
        read_recording([folder])
    assert "\n" not in str(caught.value)
    eight: Group = ("0", "default_pg", list(range(8)))
    mixed = write_dumps(tmp_path / "m", {**nested(), 7: dump([eight])})
    with pytest.raises(UsageError, match="different sizes.*4 ranks.*or 8 ranks"):
        read_recording([mixed])


def test_a_file_of_brackets_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(b'{"entries": ' + b"[" * 100_000)
    with pytest.raises(UsageError, match="trace_0.*(truncated|nested|deep|recursion)") as caught:
        read_recording([tmp_path / "trace_0"])
    assert "\n" not in str(caught.value)


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "d", nested())
    (folder / "rank-0.jsonl").write_text('{"laggard_recording": 1, "job_id": "j"}\n')
    with pytest.raises(UsageError, match="files of one kind: there are 4 Flight Recorder dumps .* and 1 laggard"):
        read_recording([folder])


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_who_hangs_is_found_in_any_layout(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """A rank stays outside at some point; everybody goes on until they need who is waiting. By a simulation that
    knows nothing of how it is judged."""
    rng = random.Random(seed)
    tensor, data = rng.choice([(2, 2), (4, 2), (2, 4), (1, 6)])
    world = tensor * data
    groups: list[Group] = [(str(n), "tp", list(range(n * tensor, (n + 1) * tensor))) for n in range(data)]
    groups += [(str(data + n), "dp", list(range(n, world, tensor))) for n in range(tensor)]
    culprit, stop_at = rng.randrange(world), rng.randrange(1, 8)
    position = dict.fromkeys(range(world), 0)
    calls = {rank: [group for _ in range(6) for group in groups if rank in group[2]] for rank in range(world)}
    limit = {rank: stop_at if rank == culprit else len(calls[rank]) for rank in range(world)}
    moved = True
    while moved:  # a collective is over when all members stand before it
        moved = False
        for group in groups:
            ready = [position[r] < limit[r] and calls[r][position[r]] is group for r in group[2]]
            if all(ready):
                moved = True
                for rank in group[2]:
                    position[rank] += 1
    dumps = {}
    for rank in range(world):
        counts: dict[str, int] = {}
        entries = []
        last = min(position[rank] + 1, limit[rank])
        for number, group in enumerate(calls[rank][:last]):
            counts[group[0]] = counts.get(group[0], 0) + 1
            state = "completed" if number < position[rank] else "scheduled"
            entries.append(entry(group, "all_reduce", counts[group[0]], state))
        dumps[rank] = dump([group for group in groups if rank in group[2]], entries)
    location, _ = judged(write_dumps(tmp_path_factory.mktemp("d"), dumps))
    assert [each.ranks for each in location.culprits] == [(culprit,)]
    assert set(location.culprits[0].victims) <= set(range(world)) - {culprit}
