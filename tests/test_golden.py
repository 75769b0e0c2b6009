"""The golden set: a part of its answers is as frozen, a changed one shows, and what is wrong is told in a line."""

import importlib
import shutil
from pathlib import Path

import pytest
from golden import frozen
from golden.answers import answers, everything
from golden.case import Case, Culprit, chosen, is_part, load
from golden.row import text

from laggard.locate.slow import tested

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
    monkeypatch.setattr(tested, "MIN_COST", 0.9)
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
