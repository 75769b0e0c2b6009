"""Pairs of simulated runs: a change of all or of a part is named with its size, and without one none is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from simulator.case import Case, Simulated, durations, healthy_job, programme_of, truth_document
from simulator.engine import run
from simulator.noise import Healthy
from simulator.programme import BACKWARD, FORWARD, INPUT, OPTIMIZER, Programme
from simulator.recording import write
from support.rows import rows

from laggard.locate.against.compare import compare
from laggard.locate.against.describe import sentence
from laggard.locate.against.digest import digest_of
from laggard.model import Verdict
from laggard.recording.reader import read_recording
from laggard.wire import decode, encode
from laggard.wire.digest import Change, Comparison, Difference, Digest

Plant = Callable[[Programme, Healthy], None]


def phase(number: int, factor: float, ranks: Any = None, one_layer: bool = False) -> Plant:
    """A phase that takes `factor` times as long, of `ranks` alone where they are given, and in one layer of many."""

    def plant(programme: Programme, base: Healthy) -> None:
        hit = (programme.phase == number) & programme.computes
        if ranks is not None:
            hit &= np.isin(programme.rank, ranks)
        if one_layer:
            for rank in range(programme.layout.world_size):
                own = np.flatnonzero(hit & (programme.rank == rank))
                hit[np.delete(own, np.s_[:: programme.layout.blocks])] = False
        base.items[:, hit] *= factor

    return plant


def transfers(op: str, factor: float) -> Plant:
    """All transfers of an operation that take `factor` times as long."""

    def plant(programme: Programme, base: Healthy) -> None:
        base.joints[:, np.array([joint.op == op for joint in programme.joints])] *= factor

    return plant


def checkpoints(seconds: float) -> Plant:
    """Each tenth step, all ranks write a checkpoint."""

    def plant(programme: Programme, base: Healthy) -> None:
        due = np.arange(len(base.items)) % 10 == 9
        base.items[np.ix_(due, programme.block == "checkpoint")] += seconds

    return plant


def record(
    folder: Path, layout: str, seed: int, *plants: Plant, steps: int = 60, form: str = "host", noise: str = ""
) -> Path:
    """Writes a run, and returns the folder of its recording. `noise`: `calm` or `loud`; else a draw for each seed."""
    case = Case(layout, form, seed=seed, steps=steps, innocents=(noise,) if noise else ())
    plan = programme_of(layout)
    base = healthy_job(case, plan)
    for plant in plants:
        plant(plan, base)
    times = run(plan, durations(base, []))
    truth = truth_document(case, plan, [], times.left.max(axis=1))
    write(Simulated(replace(case, seed=0), plan, times, truth, {}, frozenset(), "complete"), folder)
    return folder / "trace"


DP, DDP, TENSOR = "dp8", "ddp16", "dp=4,tp=2,blocks=2"
SHARDED = "dp=8,zero=3,blocks=2"
STAGES = "dp=4,pp=2,schedule=1f1b,micro=4,blocks=2"


def digest(path: Path) -> Digest:
    found = digest_of(read_recording([path]).timings)
    assert found is not None
    assert decode(encode(found), Digest) == found, "a digest is what is kept of it"
    return found


def pair(folder: Path, layout: str, seed: int, *plants: Plant) -> Comparison:
    """A run, and another with other noise of the same size."""
    before = digest(record(folder / "before", layout, seed, noise="calm", steps=48))
    return compare(before, digest(record(folder / "now", layout, seed + 100, *plants, noise="calm", steps=48)), "RUN")


def named(change: Change) -> str:
    return f"{change.op} in {change.role}" if change.kind == "operation" else str(change.phase)


@pytest.mark.parametrize(
    ("layout", "plant", "what", "where"),
    [
        pytest.param(DP, phase(INPUT, 3.0), "input", (), id="the loading of data"),
        pytest.param(DDP, phase(FORWARD, 1.4, one_layer=True), "forward", (), id="one layer's forward pass"),
        pytest.param(TENSOR, phase(BACKWARD, 1.08), "backward", (), id="the backward pass, by 8 %"),
        pytest.param(STAGES, phase(OPTIMIZER, 1.8), "optimizer", (), id="the optimizer, with stages"),
        pytest.param(DP, checkpoints(0.3), "other in few steps", (), id="a checkpoint now and then"),
        pytest.param(DP, transfers("all_reduce", 2.0), "all_reduce in dp", (), id="all_reduce over a slower link"),
        pytest.param(SHARDED, transfers("all_gather", 6.0), "all_gather in dp", (), id="all_gather alone"),
        pytest.param(STAGES, transfers("send", 3.0), "send in pair", (), id="between the stages"),
        pytest.param(DDP, phase(BACKWARD, 1.15, ranks=range(8, 16)), "backward", ("n1",), id="one node"),
        pytest.param(DP, phase(FORWARD, 1.2, ranks=[3]), "forward", (3,), id="one rank"),
    ],
)
def test_the_planted_change_is_named_first(
    tmp_path: Path, layout: str, plant: Plant, what: str, where: tuple[int | str, ...]
) -> None:
    found = pair(tmp_path, layout, 1, plant)
    first = found.changes[0]
    assert found.verdict is Verdict.FAIL and named(first) == what, sentence(found)
    assert where in (first.nodes, first.ranks), sentence(found)
    assert first.low_seconds > 0 and first.low_seconds <= first.seconds <= first.high_seconds
    assert what.split(" in ")[0] in sentence(found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("layout", [DP, STAGES])
def test_without_a_change_none_is_told(tmp_path: Path, layout: str, seed: int) -> None:
    found = pair(tmp_path, layout, 10 + seed)
    assert found.verdict is Verdict.OK and not found.changes, sentence(found)
    assert sentence(found).startswith("No difference from RUN: a change would have been seen from ")
    assert found.step is not None and found.smallest_seconds["forward"] < 0.05 * found.step.before_seconds


@pytest.mark.parametrize("seed", range(4))
def test_loud_runs_say_that_little_can_be_seen(tmp_path: Path, seed: int) -> None:
    before, now = (digest(record(tmp_path / str(each), DP, each, noise="loud")) for each in (seed, seed + 50))
    found = compare(before, now, "RUN")
    assert found.verdict is Verdict.OK and not found.changes, sentence(found)


def test_a_faster_run_is_no_failure(tmp_path: Path) -> None:
    found = pair(tmp_path, DP, 1, phase(BACKWARD, 0.8))
    assert found.verdict is Verdict.OK and found.changes[0].phase == "backward"
    assert found.changes[0].high_seconds < 0 and " % faster than RUN: backward -" in sentence(found)


def test_own_time_and_not_the_waiting_for_it_is_the_cause(tmp_path: Path) -> None:
    """All other ranks wait longer in their all_reduce for the one that is slow."""
    found = pair(tmp_path, DP, 1, phase(FORWARD, 1.5, ranks=[2]))
    assert [(named(each), each.ranks) for each in found.changes] == [("forward", (2,))]
    assert found.changes[0].share == pytest.approx(1.0, abs=0.15)


@rows("locate/other_shapes")
def test_another_shape_is_not_compared(tmp_path: Path, other: str, name: str) -> None:
    before, now = digest(record(tmp_path / "a", DP, 1)), digest(record(tmp_path / "b", other, 1, steps=20))
    found = compare(before, now, "RUN")
    assert found.verdict is Verdict.UNKNOWN and not found.changes and found.step is None
    assert name in [each.name for each in found.not_alike]
    assert sentence(found).startswith("Cannot compare with RUN: ")


def test_a_larger_all_reduce_is_told_with_its_bytes(tmp_path: Path) -> None:
    """The sizes are of another class, so that they are compared together."""
    before = record(tmp_path / "a", DP, 1, noise="calm")
    now = record(tmp_path / "b", DP, 2, transfers("all_reduce", 5.0), noise="calm")
    for file in now.iterdir():
        file.write_text(file.read_text().replace('"bytes":300000000', '"bytes":1500000000'))
    found = compare(digest(before), digest(now), "RUN")
    assert named(found.changes[0]) == "all_reduce in dp" and found.differences is not None
    assert [each.name for each in found.differences] == ["bytes of all_reduce in dp of 8 a step"]
    assert "nothing else changed but bytes of all_reduce in dp of 8 a step 1.2 GB -> 6 GB" in sentence(found)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ((), "nothing else changed that is recorded"),
        ((Difference("cuda", "13.0", "13.1"),), "nothing else changed but cuda 13.0 -> 13.1"),
        (None, "what else changed is not recorded of both"),
    ],
)
def test_what_else_changed_is_said(tmp_path: Path, known: tuple[Difference, ...] | None, text: str) -> None:
    found = pair(tmp_path, DP, 1, phase(BACKWARD, 1.2))
    assert text in sentence(structs.replace(found, differences=known))
