"""Ranks whose experts nobody else has: a slow GPU shows in the update as well, a hot expert in the passes alone."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from simulator.faults import Fault
from support.simulated import located
from support.timings import job, with_phases

from laggard.kit.constants import PHASES
from laggard.locate.verdict import locate
from laggard.model import Location, Verdict

FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
RANKS = 8


def judged(passes: float, update: float, rank: int = 5, ranks: int = RANKS) -> Location:
    """A job of which each rank has experts of its own; one takes longer for its passes and its update."""
    made = job(ranks, 60, per_node=ranks)
    for phase, times in ((FORWARD, passes), (BACKWARD, passes), (OPTIMIZER, update)):
        made.phase_seconds[:, rank, phase] *= times
    own = np.arange(ranks, dtype=np.int32)
    return locate(dataclasses.replace(with_phases(made), positions=own, stages=np.zeros(ranks, np.int32)))


@pytest.mark.parametrize("slower", [1.1, 1.5])
def test_a_rank_that_takes_longer_for_all_it_does_is_named(slower: float) -> None:
    (culprit,) = judged(slower, slower).culprits
    assert (culprit.kind, culprit.ranks) == ("slow_compute", (5,))


@pytest.mark.parametrize(("passes", "update"), [(1.5, 1.0), (1.1, 1.0), (1.0, 1.0), (1.0, 1.3)])
def test_a_hot_expert_and_a_slow_update_alone_accuse_nobody(passes: float, update: float) -> None:
    assert judged(passes, update).culprits == ()


def test_beside_a_few_ranks_nobody_is_accused() -> None:
    assert judged(1.5, 1.5, rank=1, ranks=3).culprits == ()


@pytest.mark.parametrize(("faults", "named"), [((Fault("slow_gpu", 0.1, rank=3),), [(3,)]), ((), [])])
def test_a_simulated_job_of_experts(tmp_path: Path, faults: tuple[Fault, ...], named: list[tuple[int, ...]]) -> None:
    layout = "dp=8,ep=8,gpus_per_node=8,nics_per_node=1,micro=2"
    location = located(tmp_path, layout, "host", 1, 40, *faults)
    assert [culprit.ranks for culprit in location.culprits] == named
    assert (location.verdict is Verdict.OK) == (not named)
