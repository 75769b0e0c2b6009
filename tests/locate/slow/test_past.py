"""Ranks that nobody does the work of, the stages of a single pipeline, are compared with what they were: the pure
part."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.timings import job

from laggard.locate.job_timings import FIRST_STEPS, JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict

STAGES = 4
UNEVEN = (1.0, 1.6, 0.8, 1.2)


def pipeline(steps: int = 120, seen_from: int = 0, load: Sequence[float] = UNEVEN, **options: Any) -> JobTimings:
    """A pipeline of stages with such a load, of which the steps from index `seen_from` on are still held."""
    timings = job(STAGES, steps, load=np.array(load), per_node=1, **options)
    first = timings.phase_seconds[:FIRST_STEPS]
    held = slice(seen_from, None)
    return dataclasses.replace(
        timings,
        positions=np.arange(STAGES, dtype=np.int32),
        alone=np.ones(STAGES, np.bool_),
        first_phases=first,
        steps=timings.steps[held],
        step_seconds=timings.step_seconds[held],
        phase_seconds=timings.phase_seconds[held],
        waited_seconds=timings.waited_seconds[held],
        work=None,
    )


@pytest.mark.parametrize("phase", ["forward", "backward", "input"])
@pytest.mark.parametrize("seen_from", [0, 90])  # since when, and whether the window still holds what was before
def test_a_stage_that_becomes_slower_is_named(phase: str, seen_from: int) -> None:
    location = locate(pipeline(seen_from=seen_from, slow=[((1,), 0.2)], phase=phase, since=40))
    (culprit,) = location.culprits
    assert (culprit.ranks, culprit.phase) == ((1,), phase)
    assert culprit.since_step == max(42, seen_from + 4)  # after the first two that are seen
    assert any(f"a step in {phase}, in its first steps " in line for line in culprit.evidence), culprit.evidence
    assert not any("peers" in line for line in culprit.evidence), "it has none"


@pytest.mark.parametrize("load", [UNEVEN, (1.0, 1.0, 1.0, 1.0)])
def test_stages_that_stay_as_they_are_accuse_nobody_and_the_longest_is_told(load: Sequence[float]) -> None:
    location = locate(pipeline(load=load))
    assert not location.culprits
    assert location.verdict is (Verdict.UNKNOWN if load is UNEVEN else Verdict.OK), "a slow machine looks the same"
    told = [note for note in location.notes if note.kind == "longest_stage"]
    assert [note.ranks for note in told] == ([(1,)] if load is UNEVEN else [])


def test_what_all_stages_do_more_of_is_no_stages_fault() -> None:
    """Longer sequences from the middle on: each stage takes half as long again."""
    timings = pipeline()
    phases = timings.phase_seconds.copy()
    phases[60:] *= 1.5
    location = locate(dataclasses.replace(timings, phase_seconds=phases))
    assert not location.culprits, location


def test_a_stage_that_stays_as_it_was_while_the_others_become_faster_is_not_slow() -> None:
    """As where ranks share CPUs, and those that wait longer for a slow link leave them to the others."""
    timings = pipeline(load=(1.0, 1.0, 1.0, 1.0))
    phases = timings.phase_seconds.copy()
    phases[20:, :3] *= 0.85
    location = locate(dataclasses.replace(timings, phase_seconds=phases))
    assert not location.culprits, location


def test_moments_and_a_slow_start_of_one_stage_accuse_nobody() -> None:
    timings = pipeline()
    phases = timings.phase_seconds.copy()
    phases[70:74, 1] *= 4
    first = timings.first_phases.copy() if timings.first_phases is not None else None
    assert first is not None
    first[:4, 3] *= 5
    location = locate(dataclasses.replace(timings, phase_seconds=phases, first_phases=first))
    assert not [culprit for culprit in location.culprits if culprit.persistence == "persistent"], location


def test_a_stage_whose_first_steps_are_not_known_is_compared_with_nothing() -> None:
    slow = pipeline(slow=[((2,), 0.2)], since=40)
    for first in (None, slow.first_phases[:4] if slow.first_phases is not None else None):
        location = locate(dataclasses.replace(slow, first_phases=first))
        assert not location.culprits


def test_among_many_calm_pipelines_no_stage_is_accused() -> None:
    accused = [seed for seed in range(200) if locate(pipeline(steps=128, seed=seed)).culprits]
    assert not accused
