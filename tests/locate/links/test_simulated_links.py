"""Slow links in simulated jobs: small ones in rows of transfers, those that show in other pairs, and ways between
machines."""

import json
from pathlib import Path
from typing import Any

import pytest
from simulator.case import Case, simulate
from simulator.faults import Fault, When
from simulator.recording import write
from support.simulated import located

from laggard.locate.describe import sentence
from laggard.locate.verdict import locate
from laggard.model import Culprit, Location, Verdict
from laggard.recording.reader import read_recording


def true_culprit(folder: Path) -> dict[str, Any]:
    (truth,) = json.loads((folder / "truth.json").read_text())["culprits"]
    return dict(truth)


def slow_link(folder: Path, layout: str, form: str, seed: int, steps: int, fault: Fault) -> Culprit:
    """The culprit that is found: one, and a link."""
    (culprit,) = located(folder, layout, form, seed, steps, fault).culprits
    assert culprit.kind == "slow_link"
    return culprit


def test_a_slow_rail_is_named_though_all_groups_go_through_it(tmp_path: Path) -> None:
    """The groups are slow together, so that none is slower than the others: the pairs show it."""
    layout = "dp=16,pp=3,schedule=interleaved,micro=3,chunks=2,blocks=1"
    culprit = slow_link(tmp_path, layout, "host", 4, 14, Fault("slow_rail", 0.1))
    assert culprit.ranks == tuple(true_culprit(tmp_path)["ranks"])


@pytest.mark.parametrize(
    "layout", ["hybrid_zero3_32,gpus_per_node=8,nics_per_node=4", "dp16_tp4,gpus_per_node=4,nics_per_node=2"]
)
def test_an_adapter_that_two_ranks_share_is_told_by_both_of_their_rings(tmp_path: Path, layout: str) -> None:
    """The job waits for either ring, so that neither saves anything by itself."""
    culprit = slow_link(tmp_path, layout, "device", 1, 16, Fault("slow_nic", 0.15, rank=9))
    assert {8, 9} <= set(culprit.ranks) and culprit.confidence <= 0.5
    assert culprit.recoverable_ratio == pytest.approx(true_culprit(tmp_path)["recoverable_ratio"], abs=0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_with_one_rank_a_machine_the_whole_network_is_no_rail(tmp_path: Path, seed: int) -> None:
    """A rail would hold all channels, and fit whichever is slow."""
    layout = "dp=4,pp=4,schedule=1f1b,micro=8,gpus_per_node=1"
    culprit = slow_link(tmp_path, layout, "host", seed, 14, Fault("slow_link", 0.1))
    assert set(true_culprit(tmp_path)["ranks"]) <= set(culprit.ranks) and len(culprit.ranks) == 4


def test_an_adapter_that_slows_most_pairs_of_a_pipeline_is_named(tmp_path: Path) -> None:
    """Rank 1 is an end of four of the six pairs: their median is slow."""
    layout = "pp=4,schedule=gpipe,micro=6,blocks=2,gpus_per_node=1,sends=later"
    assert slow_link(tmp_path, layout, "host", 3, 14, Fault("slow_nic", 0.1, rank=1)).ranks == (1,)


MACHINES = "dp=2,tp=4,pp=4,gpus_per_node=4,nics_per_node=1,micro=4"
"""Each machine has a tensor group, and one adapter for all of it."""


@pytest.mark.parametrize(("schedule", "seed", "size"), [("1f1b", 1, 0.1), ("gpipe", 2, 0.1), ("1f1b", 2, 0.5)])
def test_the_way_between_two_machines_is_one_culprit(tmp_path: Path, schedule: str, seed: int, size: float) -> None:
    """The pairs or groups of several ranks go through it, and the machines' other ways are no culprits."""
    location = located(tmp_path, f"{MACHINES},schedule={schedule}", "host", seed, 30, Fault("slow_link", size))
    first, last = sorted(end["node"] for end in true_culprit(tmp_path)["link"])
    (culprit,) = location.culprits
    assert culprit.kind == "slow_link" and culprit.link == ({"node": first}, {"node": last})
    assert culprit.recoverable_ratio == pytest.approx(size / (1 + size), abs=0.02)
    assert f"The link {first} to {last} is slow: " in sentence(location)


GRID = "dp=2,tp=2,gpus_per_node=1"
"""Two groups of each kind, each between two machines."""


@pytest.mark.parametrize(
    ("layout", "seed", "fault"), [(f"{MACHINES},schedule=1f1b", 3, ()), (GRID, 2, (Fault("slow_nic", 0.01),))]
)
def test_even_ways_and_what_costs_the_job_nothing_are_healthy(
    tmp_path: Path, layout: str, seed: int, fault: tuple[Fault, ...]
) -> None:
    location = located(tmp_path, layout, "host", seed, 30, *fault)
    assert (location.verdict, location.culprits) == (Verdict.OK, ()) and not (fault and location.notes)


def test_twice_as_long_as_its_only_equal_is_a_slow_link(tmp_path: Path) -> None:
    location = located(tmp_path, GRID, "host", 2, 30, Fault("slow_nic", 0.3))
    assert [(it.kind, it.ranks) for it in location.culprits] == [("slow_link", (1,))]
    assert not location.notes


# In a job without GPUs the CPUs move the data: a rank whose threads wait for one is named in place of its links.

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


TWO = "dp=2,tp=1,pp=1,gpus_per_node=1,nics_per_node=1,micro=1"


@pytest.mark.parametrize(("waits", "kind"), [(CALM, "slow_link"), (STARVED, None)], ids=["calm", "starved"])
def test_where_both_ends_of_the_only_way_wait_for_a_cpu_neither_is_named(
    tmp_path: Path, waits: dict[str, float], kind: str | None
) -> None:
    """No other way and no other rank is there to compare with, and the transfers grew in the run."""
    fault = Fault("slow_nic", 0.3, rank=1, when=When(onset=20))
    write(simulate(Case(TWO, "host", seed=1, faults=(fault,), steps=60)), tmp_path)
    for file in (tmp_path / "trace").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [{**line, "gpu": None} if line.get("kind") == "rank" else line for line in lines]
        known = {line["rank"] for line in lines if line.get("kind") == "rank"}
        lines += [{"kind": "cpu_wait", "rank": rank, "cpu_wait": waits} for rank in known]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    location = locate(read_recording([tmp_path / "trace"]).timings)
    assert [it.kind for it in location.culprits] == [kind] * bool(kind), location
    assert kind or (location.verdict is Verdict.UNKNOWN and "both ends wait for a CPU" in location.notes[0].text)
