"""A slow way between two machines, through which the pairs or groups of several ranks go: it is one culprit, and the
machines' other ways are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.describe import sentence
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict
from laggard.recording.reader import read_recording

LAYOUT = "dp=2,tp=4,pp=4,gpus_per_node=4,nics_per_node=1,micro=4"
"""Each machine has a tensor group, and one adapter for all of it."""


def judged(folder: Path, layout: str, seed: int, *faults: Fault) -> Location:
    write(simulate(Case(layout, "host", seed=seed, faults=faults, steps=30)), folder)
    return locate(read_recording([folder / "trace"]).timings)


@pytest.mark.parametrize(("schedule", "seed", "size"), [("1f1b", 1, 0.1), ("gpipe", 2, 0.1), ("1f1b", 2, 0.5)])
def test_the_way_between_two_machines_is_one_culprit(tmp_path: Path, schedule: str, seed: int, size: float) -> None:
    location = judged(tmp_path, f"{LAYOUT},schedule={schedule}", seed, Fault("slow_link", size))
    (truth,) = json.loads((tmp_path / "truth.json").read_text())["culprits"]
    first, last = sorted(end["node"] for end in truth["link"])
    (culprit,) = location.culprits
    assert culprit.kind == "slow_link" and culprit.link == ({"node": first}, {"node": last})
    assert culprit.recoverable_ratio == pytest.approx(size / (1 + size), abs=0.02)
    assert f"The link {first} to {last} is slow: " in sentence(location)


def test_even_ways_between_machines_are_healthy(tmp_path: Path) -> None:
    location = judged(tmp_path, f"{LAYOUT},schedule=1f1b", 3)
    assert (location.verdict, location.culprits) == (Verdict.OK, ())
