"""Two equal ways of which one takes longer: nobody is accused, and the job is not called healthy."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.describe import sentence
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.recording.reader import read_recording

GRID = "dp=2,tp=2,gpus_per_node=1"
"""Two groups of each kind, each between two machines."""


def judged(folder: Path, seed: int, *faults: Fault, layout: str = GRID) -> Location:
    write(simulate(Case(layout, "host", seed=seed, faults=faults, steps=30)), folder)
    return locate(read_recording([folder / "trace"]).timings)


@pytest.mark.parametrize(("seed", "rank"), [(2, 1), (3, 2)])
@pytest.mark.parametrize("size", [0.05, 0.1])
def test_an_adapter_that_two_slower_groups_share_is_told_and_not_accused(
    tmp_path: Path, seed: int, rank: int, size: float
) -> None:
    location = judged(tmp_path, seed, Fault("slow_nic", size))
    assert (location.verdict, location.culprits) == (Verdict.UNKNOWN, ())
    (note,) = location.notes
    assert (note.kind, note.ranks) == ("slow_transfers", (rank,))
    assert "times as long as those of group" in note.text and ", its only equal" in note.text
    assert sentence(location).startswith("Cannot tell: group ") and "a longer way by design" in sentence(location)


def test_twice_as_long_is_a_slow_link(tmp_path: Path) -> None:
    location = judged(tmp_path, 2, Fault("slow_nic", 0.3))
    assert [(it.kind, it.ranks) for it in location.culprits] == [("slow_link", (1,))]
    assert not location.notes


def test_what_costs_the_job_nothing_is_not_told(tmp_path: Path) -> None:
    location = judged(tmp_path, 2, Fault("slow_nic", 0.01))
    assert (location.verdict, location.notes) == (Verdict.OK, ())


PIPELINE = "dp=1,pp=4,schedule=gpipe,micro=8,gpus_per_node=1"


@pytest.mark.parametrize("seed", [1, 2])
def test_an_adapter_in_the_middle_of_a_pipeline_slows_most_pairs_and_is_told(tmp_path: Path, seed: int) -> None:
    location = judged(tmp_path, seed, Fault("slow_nic", 0.05), layout=PIPELINE)
    assert (location.verdict, location.culprits) == (Verdict.UNKNOWN, ())
    (note,) = location.notes
    assert (note.kind, note.ranks) == ("slow_transfers", (1,))
    assert "times as long as those of the fastest third of its equals" in note.text
