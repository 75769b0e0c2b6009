"""A rank that seems to be slow now and then because its sequences take longer then, as on other stages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.timings import job

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict

STAGES, PER_STAGE, STEPS = 4, 8, 60
RANKS = STAGES * PER_STAGE
LONG = np.arange(3, STEPS, 6)
BACKWARD = PHASES.index("backward")


def pipeline(slow: tuple[int, ...]) -> JobTimings:
    """A pipeline with a stage on each machine, of which the ranks `slow` take longer in some steps."""
    timings = job(RANKS, STEPS, per_node=PER_STAGE, seed=2)
    for rank in slow:
        timings.phase_seconds[LONG, rank, BACKWARD] += 0.06
    timings.step_seconds[LONG] += 0.06
    stages = (np.arange(RANKS) // PER_STAGE).astype(np.int32)
    return dataclasses.replace(timings, positions=stages, stages=stages)


def test_a_rank_that_is_slow_alone_is_named() -> None:
    (culprit,) = locate(pipeline((3,))).culprits
    assert (culprit.ranks, culprit.persistence) == ((3,), "intermittent")


@pytest.mark.parametrize("others", [(11, 19, 27), (11, 27)], ids=["on each stage", "one is not recorded"])
def test_ranks_that_are_slow_in_the_same_steps_on_several_stages_share_their_data(others: tuple[int, ...]) -> None:
    lacking = dataclasses.replace(pipeline((3, *others)), world_size=RANKS + 1)
    location = locate(lacking)
    assert not location.culprits and location.verdict is Verdict.UNKNOWN


def test_where_all_are_recorded_they_are_named() -> None:
    """Else a fault that they share, as in power or storage, would be called healthy."""
    assert locate(pipeline((3, 11, 19, 27))).culprits
