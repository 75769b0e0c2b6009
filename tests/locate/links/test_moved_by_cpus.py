"""In a job without GPUs the CPUs move the data: a rank whose threads wait for one is named in place of its links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.verdict import locate
from laggard.model import Location
from laggard.recording.reader import read_recording

LAYOUT = "dp=1,tp=1,pp=4,gpus_per_node=1,nics_per_node=1,micro=8,schedule=gpipe"
CALM = {"seconds": 5.0, "running_seconds": 2.0, "queued_seconds": 0.05, "throttled_seconds": 0.0}
STARVED = {"seconds": 5.0, "running_seconds": 1.0, "queued_seconds": 3.5, "throttled_seconds": 0.0}


def judged(folder: Path, waits: dict[int, dict[str, float]], gpus: bool = False) -> Location:
    """A pipeline of four ranks whose last one has a slow adapter, or seems to: it has one neighbour alone. `waits`: the
    CPU time of ranks, as the hooks record it."""
    write(simulate(Case(LAYOUT, "host", seed=1, faults=(Fault("slow_nic", 1.0, rank=3),), steps=40)), folder)
    for file in (folder / "trace").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line.get("kind") == "rank" and not gpus:
                line["gpu"] = None
        known = {line["rank"] for line in lines if line.get("kind") == "rank"}
        lines += [{"kind": "cpu_wait", "rank": rank, "cpu_wait": waits[rank]} for rank in known & waits.keys()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return locate(read_recording([folder / "trace"]).timings)


def all_but(rank: int) -> dict[int, dict[str, float]]:
    return {each: STARVED if each == rank else CALM for each in range(4)}


@pytest.mark.parametrize("starved", [2, 3])
def test_an_end_of_all_slow_transfers_whose_threads_wait_for_a_cpu_is_named(tmp_path: Path, starved: int) -> None:
    (culprit,) = judged(tmp_path, all_but(starved)).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_host", (starved,))
    assert "waited for a CPU for 3.50 s in 5.00 s" in culprit.evidence[0]
    assert any("transfers take" in line for line in culprit.evidence[1:])


@pytest.mark.parametrize("starved", [0, 1])
def test_a_rank_elsewhere_that_waits_for_a_cpu_takes_no_blame_from_the_link(tmp_path: Path, starved: int) -> None:
    (culprit,) = judged(tmp_path, all_but(starved)).culprits
    assert culprit.kind == "slow_link" and 3 in culprit.ranks


def test_where_every_rank_waits_for_a_cpu_alike_the_link_stays(tmp_path: Path) -> None:
    (culprit,) = judged(tmp_path, dict.fromkeys(range(4), STARVED)).culprits
    assert culprit.kind == "slow_link" and 3 in culprit.ranks


def test_in_a_job_with_gpus_the_link_stays(tmp_path: Path) -> None:
    (culprit,) = judged(tmp_path, all_but(3), gpus=True).culprits
    assert culprit.kind == "slow_link" and 3 in culprit.ranks


def test_a_recording_without_cpu_times_is_judged_as_ever(tmp_path: Path) -> None:
    (culprit,) = judged(tmp_path, {}).culprits
    assert culprit.kind == "slow_link" and 3 in culprit.ranks
