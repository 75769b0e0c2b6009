"""Slow links in simulated jobs: small ones in rows of transfers, those that show in other pairs, one group of two."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.verdict import locate
from laggard.recording.reader import read_recording


def test_a_slow_rail_is_named_though_all_groups_go_through_it(tmp_path: Path) -> None:
    """The groups are slow together, so that none is slower than the others: the pairs show it."""
    layout = "dp=16,pp=3,schedule=interleaved,micro=3,chunks=2,blocks=1"
    simulated = simulate(Case(layout, "host", seed=4, faults=(Fault("slow_rail", 0.1),), steps=14))
    write(simulated, tmp_path)
    (truth,) = simulated.truth["culprits"]
    (culprit,) = locate(read_recording([tmp_path / "trace"]).timings).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_link", tuple(truth["ranks"]))


@pytest.mark.parametrize(
    "layout", ["hybrid_zero3_32,gpus_per_node=8,nics_per_node=4", "dp16_tp4,gpus_per_node=4,nics_per_node=2"]
)
def test_an_adapter_that_two_ranks_share_is_told_by_both_of_their_rings(tmp_path: Path, layout: str) -> None:
    """The job waits for either ring, so that neither saves anything by itself."""
    simulated = simulate(Case(layout, "device", seed=1, faults=(Fault("slow_nic", 0.15, rank=9),), steps=16))
    write(simulated, tmp_path)
    (truth,) = simulated.truth["culprits"]
    (culprit,) = locate(read_recording([tmp_path / "trace"]).timings).culprits
    assert culprit.kind == "slow_link" and {8, 9} <= set(culprit.ranks) and culprit.confidence <= 0.5
    assert culprit.recoverable_ratio == pytest.approx(truth["recoverable_ratio"], abs=0.02)
    assert any("an adapter that several of a machine share" in line for line in culprit.evidence)


@pytest.mark.parametrize("seed", [1, 2])
def test_with_one_rank_a_machine_the_whole_network_is_no_rail(tmp_path: Path, seed: int) -> None:
    """A rail would hold all channels, and fit whichever is slow."""
    layout = "dp=4,pp=4,schedule=1f1b,micro=8,gpus_per_node=1"
    simulated = simulate(Case(layout, "host", seed=seed, faults=(Fault("slow_link", 0.1),), steps=14))
    write(simulated, tmp_path)
    (truth,) = simulated.truth["culprits"]
    (culprit,) = locate(read_recording([tmp_path / "trace"]).timings).culprits
    assert culprit.kind == "slow_link" and set(truth["ranks"]) <= set(culprit.ranks) and len(culprit.ranks) == 4


@pytest.mark.parametrize("sends", ["together", "later"])
def test_an_adapter_that_slows_most_pairs_of_a_pipeline_is_named(tmp_path: Path, sends: str) -> None:
    """Rank 1 is an end of four of the six pairs: their median is slow."""
    layout = f"pp=4,schedule=gpipe,micro=6,blocks=2,gpus_per_node=1,sends={sends}"
    simulated = simulate(Case(layout, "host", seed=3, faults=(Fault("slow_nic", 0.1, rank=1),), steps=14))
    write(simulated, tmp_path)
    (culprit,) = locate(read_recording([tmp_path / "trace"]).timings).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_link", (1,))
