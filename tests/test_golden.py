"""The golden set: a part of its answers is as frozen, a changed one shows, and what is wrong is told in a line."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest
from golden import frozen, pack
from golden.answers import answers, everything
from golden.case import Case, Culprit, chosen, is_part, load
from golden.real import real_runs
from golden.row import Named, Row, alike, ranges, text
from support.paths import DATA

from laggard.locate.slow import ranks

main = importlib.import_module("golden.__main__").main

QUICK = (
    "stacks", "inspector", "kineto", "folders",
    "dumps/cpu/3", "dumps/deadlock/3", "dumps/gpu_compute/3", "dumps/gpu_ep/3", "dumps/mismatch/3", "dumps/slow/3",
    "dumps/two_gpus/3", "fluid/dead/1", "fluid/rank0/1", "fluid/thermal_all/1", "laggard_bench/death/1",
    "laggard_bench/port/1", "simulator/death_collective/1", "simulator/garbage_collection/1",
    "simulator/gpu_backward/1", "simulator/hang_collective/1", "simulator/input/1", "written/innocent/join_uneven",
    "written/innocent/preempted_well", "written/innocent/resumed_compile", "written/innocent/short_job",
    "written/innocent/two_ranks_well", "written/innocent/world_of_one", "written/recorded/killed_in_a_usual_wait",
    "written/recorded/negative_own_time", "written/slow/joined_just_now", "written/slow/long_steps_nine",
    "written/slow/one_node", "written/slow/one_pipeline_from_the_start", "written/slow/same_place_by_chance",
    "written/slow/two_ranks_slow",
)  # fmt: skip
"""Families and cases that together take some three seconds: 48 slow, stopped and healthy jobs."""
SLOW_RANK = "written/slow/one_node"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what is frozen."""
    for name in (frozen.RECORDINGS, frozen.MACHINES):
        shutil.copy(frozen.FOLDER / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", sorted({name.partition("/")[0] for name in QUICK}))
def test_quick_answers_are_as_frozen(source: str) -> None:
    asked = chosen(everything(), [name for name in QUICK if is_part(name, source)])
    now = dict(answers(asked, 1))
    found = frozen.differences(frozen.read_all(), now, lambda case: case in now)
    assert now and not found, "`make golden` tells all that differs:\n" + "\n".join(map(str, found))


def test_every_case_is_frozen_and_no_other() -> None:
    names = [each.name for each in everything()]
    was = frozen.read_all().keys()
    assert len(names) == len(set(names))
    assert not set(names) ^ was, '`make golden ARGS="--write --only NAME"` freezes what is new, and drops what is gone'


def test_a_changed_threshold_shows_as_a_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--only", SLOW_RANK, "--workers", "1"]
    assert main(flags, folder) == 0
    monkeypatch.setattr(ranks, "SLOW_RATIO", 0.5)
    capsys.readouterr()
    assert main(flags, folder) == 1
    row, summary = capsys.readouterr().out.splitlines()
    case, was, now = row.split(" | ")
    assert case == SLOW_RANK and was == text(frozen.read_all()[SLOW_RANK]) != now
    assert summary == "1 case, 1 differs from what is frozen"
    assert main([*flags, "--write"], folder) == 0 and main(flags, folder) == 0
    before, after = ((each / frozen.RECORDINGS).read_text().splitlines() for each in (frozen.FOLDER, folder))
    (changed,) = set(after) - set(before)
    cases = [each.partition(",")[0] for each in after]
    assert len(after) == len(before) and cases == sorted(cases) and SLOW_RANK in changed
    assert text(frozen.read(folder / frozen.RECORDINGS)[SLOW_RANK]) == now


@pytest.mark.parametrize(("name", "others"), [("fluid/nothing", "fluid/congestion, "), ("flute", "dumps, fluid, ")])
def test_an_unknown_case_is_told_in_a_line(
    name: str, others: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--only", name], folder) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"golden: no case or family {name!r}; there are {others}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"case":"fluid/nic/1","verdict":', "Input data was truncated"),
        ('{"case":"fluid/nic/1","prose":"slow"}', "unknown field `prose`"),
        ('{"verdict":"ok"}', "missing required field `case`"),
        ("<<<<<<< HEAD", "JSON is malformed"),
        ('{"case":"dumps/complete/1","verdict":"ok"}', "dumps/complete/1 comes twice"),
    ],
)
def test_a_damaged_file_is_told_in_a_line(
    line: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / frozen.RECORDINGS).open("a") as file:
        file.write(line + "\n")
    assert main(["--only", "stacks"], folder) == 64
    (told,) = capsys.readouterr().err.splitlines()
    count = len((folder / frozen.RECORDINGS).read_text().splitlines())
    assert told.startswith(f"golden: {folder / frozen.RECORDINGS}, line {count}: ") and said in told
    assert told.endswith(f"; bring it back by `git checkout {folder / frozen.RECORDINGS}`")


def test_a_file_that_is_not_there_is_told_in_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / frozen.MACHINES).unlink()
    assert main(["--only", "stacks"], folder) == 64
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"golden: {folder / frozen.MACHINES} has no frozen answers: ")


def test_a_case_that_is_not_frozen_and_one_that_is_gone_are_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / frozen.RECORDINGS
    path.write_text(path.read_text().replace("stacks/standing/all_wait", "stacks/standing/renamed"))
    assert main(["--only", "stacks", "--workers", "1"], folder) == 1
    assert capsys.readouterr().out.splitlines() == [
        "stacks/standing/all_wait | (not frozen) | unknown; notes: ended lacks no_waits",
        "stacks/standing/renamed | unknown; notes: ended lacks no_waits | (no such case)",
        "6 cases, 2 differ from what is frozen",
    ]
    assert main(["--only", "stacks", "--workers", "1", "--write"], folder) == 0
    assert path.read_text() == (frozen.FOLDER / frozen.RECORDINGS).read_text()


def test_an_exception_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(folder: Path) -> None:
        raise IndexError("no such rank")

    assert dict(answers([Case("a/b", fail)], 1)) == {"a/b": Row(error="IndexError")}  # type: ignore[arg-type]
    assert capsys.readouterr().err == "\na/b: IndexError: no such rank\n"


def test_a_cost_may_differ_by_a_unit_and_is_frozen_as_it_was(tmp_path: Path) -> None:
    was, unit, more = (
        Row("fail", (Named("slow_host", "8-15", ("n1",), "forward", cost),)) for cost in (0.1, 0.101, 0.102)
    )
    assert alike(was, unit) and not alike(was, more)
    assert not alike(was, Row("fail", (Named("slow_host", "8-15", ("n1",), "forward"),)))
    assert not alike(was, Row("fail")) and not alike(was, Row("fail", was.culprits, ("brief",)))
    assert text(was) == "fail; slow_host 8-15 on n1 in forward costs 10.0%"
    frozen.write_all({"a/1": was}, frozen.differences({"a/1": was}, {"a/1": unit}), tmp_path)
    assert frozen.read(tmp_path / frozen.RECORDINGS) == {"a/1": was}


def test_ranks_are_told_as_ranges() -> None:
    assert [ranges(each) for each in ((), (3,), (7, 0, 1, 2, 5), range(12))] == ["", "3", "0-2 5 7", "0-11"]


@pytest.mark.parametrize(
    "name",
    ["simulator/death_collective/1", "fluid/rank0/1", "laggard_bench/death/1", "written/innocent/two_ranks_well"],
)
def test_a_case_gives_the_same_recording_again(name: str, tmp_path: Path) -> None:
    (case,) = chosen(everything(), [name])
    assert isinstance(case, Case)
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = case.make(tmp_path / name)
        texts.append({path.name: path.read_bytes() for path in made.recording.iterdir()})
    assert texts[0] and texts[0] == texts[1]


def test_truths_have_ranks_and_laggards_kinds() -> None:
    """That of a switch has machines alone."""
    (leaf,) = chosen(everything(), ["laggard_bench/leaf/1"])
    loaded = load(leaf)  # type: ignore[arg-type]
    culprit = Culprit(("slow_link",), tuple(range(16)), within=tuple(range(32)))
    assert loaded.truth.culprits == (culprit,) and loaded.truth.verdicts == ("fail",)
    assert (loaded.family, loaded.truth.healthy) == ("laggard_bench/leaf", False)
    assert loaded.timings.ranks.tolist() == list(range(32))


@pytest.fixture
def real_run(tmp_path: Path) -> Path:
    """A folder of bench/real_quality.py with a run of which rank 1 was slow."""
    case = tmp_path / "real_runs" / "ddp-quota"
    shutil.copytree(DATA / "folders" / "oom-allocator" / "recording", case / "trace")
    (case / "truth.json").write_text('{"ranks": 4, "victims": [1], "kinds": ["slow_host"], "required": true}')
    return case.parent


def test_real_runs_are_packed_alike_and_read_again(
    real_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "packed"
    assert not list(real_runs(packed))
    assert pack.main([str(real_run)], packed) == 0
    (path,) = packed.iterdir()
    first = path.read_bytes()
    assert f"1 case packed into {packed}; all that is there is {len(first):,} bytes" in capsys.readouterr().out
    for file in (real_run / "ddp-quota" / "trace").iterdir():
        file.touch()
    assert pack.main([str(real_run)], packed) == 0 and path.read_bytes() == first
    (case,) = real_runs(packed)
    loaded = load(case)
    assert (case.name, loaded.truth.culprits) == ("real/ddp/quota", (Culprit(("slow_host",), (1,), (1,)),))
    assert loaded.timings.world_size == 4


def test_packing_says_what_is_wrong(
    real_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pack.main([str(tmp_path)], tmp_path / "packed") == 64
    assert "a case has truth.json and trace" in capsys.readouterr().err
    monkeypatch.setattr(pack, "MAX_BYTES", 1000)
    assert pack.main([str(real_run)], tmp_path / "packed") == 1
    assert "bytes are more than 1,000" in capsys.readouterr().err and not (tmp_path / "packed").exists()
