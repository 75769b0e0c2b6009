"""A machine that has all ranks of its stages: nobody elsewhere does their work, so that it may have more of it."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.timings import job

from laggard.kit.constants import PHASES
from laggard.locate.describe import sentence
from laggard.locate.job_timings import JobTimings
from laggard.locate.verdict import locate
from laggard.model import Verdict

PER_NODE, STEPS = 8, 40
INPUT, FORWARD, BETWEEN = PHASES.index("input"), PHASES.index("forward"), PHASES.index("between_steps")


def pipeline(stages_a_node: int, nodes: int = 4, **more: Any) -> tuple[JobTimings, np.ndarray]:
    """A job of which each machine has so many whole stages, and the stage of each rank."""
    ranks = nodes * PER_NODE
    stage = (np.arange(ranks) // (PER_NODE // stages_a_node)).astype(np.int32)
    return job(ranks, STEPS, per_node=PER_NODE, positions=stage, **more), stage


def slow(timings: JobTimings, columns: Any, phase: int, seconds: float) -> JobTimings:
    """All others wait for them."""
    timings.phase_seconds[:, columns, phase] += seconds
    waits = np.ones(timings.phase_seconds.shape[1], np.bool_)
    waits[columns] = False
    timings.waited_seconds[:, waits] += seconds
    timings.step_seconds[:] += seconds
    return timings


def node_of(number: int) -> slice:
    return slice(number * PER_NODE, (number + 1) * PER_NODE)


@pytest.mark.parametrize("node", [0, 1, 3])
def test_one_stage_alone_may_log_or_load_by_design(node: int) -> None:
    timings, stage = pipeline(2)
    location = locate(slow(timings, np.flatnonzero(stage == 2 * node + node % 2), BETWEEN, 0.3))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN
    assert [note.kind for note in location.notes] == ["longest_stage"]


@pytest.mark.parametrize("phase", [INPUT, BETWEEN])
def test_a_machine_of_one_stage_may_load_or_log_by_design(phase: int) -> None:
    timings, _ = pipeline(1)
    timings.phase_seconds[:, :, BETWEEN] += 0.01
    location = locate(slow(timings, node_of(3), phase, 0.4))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN


def test_what_other_stages_do_not_load_at_all_is_not_compared() -> None:
    timings, _ = pipeline(1)
    timings.phase_seconds[:, :, INPUT] = 0.0
    location = locate(slow(slow(timings, node_of(3), INPUT, 0.2), node_of(3), BETWEEN, 0.2))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN


def test_a_stage_of_a_machine_that_takes_longer_has_more_layers_or_a_slow_machine() -> None:
    timings, _ = pipeline(1)
    location = locate(slow(timings, node_of(2), FORWARD, 1.0))
    assert not location.culprits and location.verdict is Verdict.UNKNOWN
    (note,) = location.notes
    assert (note.kind, note.node, note.ranks) == ("longest_stage", "n2", tuple(range(16, 24)))
    assert "no rank elsewhere does the same work: it has more layers, or its machine" in sentence(location)


@pytest.mark.parametrize("node", [0, 3])
def test_the_first_and_the_last_stage_have_longer_passes_by_design(node: int) -> None:
    timings, stage = pipeline(1)
    timings = dataclasses.replace(timings, stages=stage)
    location = locate(slow(timings, node_of(node), FORWARD, 1.0))
    assert not location.culprits and location.verdict is Verdict.OK
    assert [note.kind for note in location.notes] == ["uneven_work"]


@pytest.mark.parametrize("stages", [1, 2])
def test_even_stages_are_healthy(stages: int) -> None:
    location = locate(pipeline(stages)[0])
    assert (location.verdict, location.notes) == (Verdict.OK, ())


def test_of_two_machines_the_longer_one_has_the_loss() -> None:
    timings, _ = pipeline(1, nodes=2)
    location = locate(slow(timings, node_of(1), FORWARD, 1.0))
    assert location.verdict is Verdict.OK


def test_a_stage_with_peers_on_other_machines_is_compared_with_them() -> None:
    timings = job(4 * PER_NODE, STEPS, per_node=PER_NODE, positions=(np.arange(32) % 2).astype(np.int32))
    location = locate(slow(timings, node_of(3), FORWARD, 0.3))
    (culprit,) = location.culprits
    assert (culprit.kind, culprit.node) == ("slow_host", "n3")


def experts(*, nodes: int = 4, stages: int = 2) -> JobTimings:
    """A job of `stages` on whose machines nobody does the work of another, since each has experts of its own."""
    ranks = nodes * PER_NODE
    own = (np.arange(ranks) // PER_NODE).astype(np.int32)
    return job(ranks, STEPS, per_node=PER_NODE, positions=own, stages=(own * stages // nodes).astype(np.int32))


def test_a_first_stage_that_loads_is_by_design() -> None:
    assert not locate(slow(experts(), slice(0, 2 * PER_NODE), INPUT, 0.3)).culprits


def test_experts_with_more_tokens_are_nobodys_fault() -> None:
    assert not locate(slow(experts(), node_of(1), FORWARD, 0.3)).culprits
