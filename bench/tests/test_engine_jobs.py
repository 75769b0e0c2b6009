"""The hooks in the ways to train that torch has and test_every_way_to_train.py does not: the jobs of bench/engines, for
a few steps. They record each step and change nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from engines import catalogue
from engines.processes import HERE, JOBS
from support.torch_version import TORCH

from laggard.rankfile import RankFileReader

STEPS = 6
ENGINES = (
    "ddp_join",
    "ddp_static_graph",
    "ddp_comm_hook",
    "sync_batch_norm",
    "fsdp2",
    "dcp_async",
    "context_parallel",
    "pipeline_gpipe",
    "pipeline_1f1b",
    "pipeline_interleaved",
    "pipeline_zero_bubble",
    "own_loop",
    "single",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(TORCH < (2, 13), reason="older versions lack parts of torch that the jobs use"),
]


class Trained(NamedTuple):
    """What the ranks computed with the hooks and without, and by rank what was recorded: steps, errors, and collectives
    that were lost."""

    hooked: list[dict[str, Any]]
    bare: list[dict[str, Any]]
    steps: dict[int, int]
    errors: int
    lost: int


@pytest.fixture(scope="module", params=ENGINES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launch_in: Any
) -> Iterator[Trained]:
    engine = catalogue.BY_NAME[request.param]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    extra = {"PYTHONPATH": path, "ENGINE_STEPS": str(STEPS)}
    results = []
    place = tmp_path_factory.mktemp(engine.name)
    for hooks in (True, False):
        done = launch_in(place, JOBS / engine.script, engine.arguments, engine.ranks, hooks, extra)
        results.append([computed(each.stdout) for each in done])
    steps, errors, lost = {}, 0, 0
    for file_path in (place / "ranks").rglob("*.rank"):
        with RankFileReader(str(file_path)) as file:
            counters = file.counters()
            assert counters is not None
            steps[file.identity["rank"]] = counters.steps
            errors, lost = errors + counters.errors, lost + counters.lost
    yield Trained(*results, steps, errors, lost)


def computed(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


def test_losses_and_weights_are_the_same_to_the_bit(trained: Trained) -> None:
    assert trained.hooked == trained.bare
    assert any(each["losses"] for each in trained.hooked)


def test_every_optimizer_step_is_a_step(trained: Trained) -> None:
    assert trained.steps == {each["rank"]: each["steps"] for each in trained.hooked}
    assert min(trained.steps.values()) >= STEPS


def test_the_hooks_count_no_errors_of_their_own(trained: Trained) -> None:
    assert (trained.errors, trained.lost) == (0, 0)
