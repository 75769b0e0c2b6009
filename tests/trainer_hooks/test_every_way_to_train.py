"""The hooks in real gloo jobs, every way to train: what they record is what happened, and nothing else changes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.paths import TESTS, TRAINING

from laggard.constants import PHASES
from laggard.rankfile import RankFileReader, Step

LATE = 0.4  # seconds, as in the scripts
KINDS = {
    "torch": ("torch_kinds.py", 2),
    "updates": ("updates.py", 2),
    "device": ("on_a_device.py", 2),
    "deepspeed": ("deepspeed_kinds.py", 2),
    "roles": ("roles.py", 4),
}
WITH_A_LATE_RANK = ("torch", "device", "deepspeed")
# the size of the collective that a script makes once in each step, how many steps, how many trainings
MARKED = {"updates": (4 * 1001, 6, 1), "deepspeed": (4 * 1003, 10, 3)}
BARE = {"device": "torch_kinds.py"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class World(NamedTuple):
    """A job of one of KINDS that trained with the hooks: by rank, its recording, what torch saw, the results, its
    steps; and the results of the same job without."""

    kind: str
    records: list[list[dict[str, Any]]]
    seen: list[list[tuple[str, str, int]]]
    results: list[list[Any]]
    steps: list[list[Step]]
    bare: list[list[Any]]


@pytest.fixture(scope="module", params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launch_in: Any) -> Iterator[World]:
    script, ranks = KINDS[request.param]
    place = tmp_path_factory.mktemp(request.param)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    extra = {"LAGGARD_RECORD_DIR": str(place / "recording"), "PYTHONPATH": path}
    hooked = launch_in(place, TRAINING / script, ranks=ranks, extra=extra)
    bare = TRAINING / BARE.get(request.param, script)

    def launch_bare() -> list[Any]:
        return launch_in(tmp_path_factory.mktemp("bare"), bare, ranks=ranks, hooks=False)

    files: dict[int, list[Step]] = {}
    for path in (place / "ranks").iterdir():
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is not None and counters.errors == counters.lost == 0, "the hook counts no error of its own"
            files[file.identity["rank"]] = file.steps()
    yield World(
        request.param,
        [read(place / "recording" / f"rank-{rank}.jsonl") for rank in range(ranks)],
        [said(each.stdout, "SEEN")[0] for each in hooked],
        [said(each.stdout, "RESULT") for each in hooked],
        [files[rank] for rank in range(ranks)],
        bare_results(request.config, bare, ranks, launch_bare),
    )


def bare_results(config: pytest.Config, script: Path, ranks: int, launch: Callable[[], list[Any]]) -> list[list[Any]]:
    """What the ranks of `script` print as their results without the hooks. It does not depend on laggard: pytest's
    cache keeps it from one run of the tests to the next, for as long as scripts, torch and DeepSpeed stay the same."""
    parts = [script.name, str(ranks), *(importlib.metadata.version(name) for name in ("torch", "deepspeed"))]
    parts += [path.read_text() for path in sorted(TRAINING.glob("*.py"))]
    key = f"laggard/bare-{script.stem}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
    kept = config.cache.get(key, None) if config.cache else None
    results: list[list[Any]] = kept or [said(each.stdout, "RESULT") for each in launch()]
    if config.cache and not kept:
        config.cache.set(key, results)
    return results


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def said(output: str, word: str) -> list[Any]:
    return [json.loads(line[len(word) + 1 :]) for line in output.splitlines() if line.startswith(word)]


def collectives(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record.get("kind") == "collective"]


def test_every_collective_that_torch_saw_is_recorded_once(world: World) -> None:
    for records, seen in zip(world.records, world.seen, strict=True):
        ours = Counter(_as_gloo(record) for record in collectives(records) if "peer" not in record)
        theirs = Counter((_op(op), group, 0 if op == "scatter" else size) for op, group, size in seen)
        assert ours == theirs, "by operation, group and bytes"
        assert sum(theirs.values()) > 50


def _as_gloo(record: dict[str, Any]) -> tuple[str, str, int]:
    """As the Flight Recorder has it: gloo carries a reduce_scatter out as an all_reduce; a scatter's size is told at
    its root alone."""
    op = "all_reduce" if record["op"] == "reduce_scatter" else record["op"]
    return op, record["group"].partition("#")[2] or "0", 0 if op == "scatter" else record["bytes"]


def _op(name: str) -> str:
    return "all_gather" if "gather" in name and "all" in name else name


def test_results_are_the_same_to_the_bit(world: World) -> None:
    assert world.results == world.bare
    assert all(results for results in world.results)


def test_a_message_is_sent_where_it_is_received(world: World) -> None:
    sent, received = Counter[Any](), Counter[Any]()
    for rank, records in enumerate(world.records):
        for record in collectives(records):
            if record["op"] == "send":
                sent[rank, record["peer"], record["seq"], record["bytes"]] += 1
            elif record["op"] == "recv":
                received[record["peer"], rank, record["seq"], record["bytes"]] += 1
    assert sent == received and max(sent.values(), default=1) == 1


def test_every_collective_ends_after_it_was_issued(world: World) -> None:
    for records in world.records:
        for record in collectives(records):
            assert record["end"] is not None, record
            assert 0 <= record["waited"] <= record["end"] - record["issued"] + 1e-9, record


def test_the_clock_is_told(world: World) -> None:
    clocks = Counter(record["clock"] for records in world.records for record in collectives(records))
    own = "device" if world.kind == "device" else "host"
    # what C++ makes outside DDP is the host's
    assert clocks[own] > 0.8 * clocks.total(), clocks


def test_steps_are_their_phases_and_waits(world: World) -> None:
    for steps in world.steps:
        assert len(steps) >= 7  # of eight updates: the first of a second engine may be part of a step
        for step in steps:
            assert step.end - step.start == sum(step.phases) + step.waited, step
            assert min(*step.phases[:4], step.waited) >= 0, step


@pytest.mark.parametrize("world", MARKED, indirect=True)
def test_a_step_left_out_for_an_overflow_is_a_step(world: World) -> None:
    size, count, trainings = MARKED[world.kind]
    for records in world.records:
        marks = [record for record in collectives(records) if record["bytes"] == size]
        assert len(marks) == count * trainings
        steps = [mark["step"] for mark in marks]
        # the first step of another optimizer or engine still has a number of what was trained before it
        for training in range(0, len(steps), count):
            first, *others = steps[training + 1 : training + count]
            assert others == list(range(first + 1, first + count - 1)), steps


@pytest.mark.parametrize("world", WITH_A_LATE_RANK, indirect=True)
def test_a_delay_is_found_in_its_phase(world: World) -> None:
    punctual, late = (steps[-7:] for steps in world.steps)
    for place, phase in enumerate(("input", "forward", "backward", "optimizer", None, "other")):
        if phase is None:
            continue
        kind = PHASES.index(phase)
        excess = (late[place].phases[kind] - punctual[place].phases[kind]) / 1e9
        assert excess == pytest.approx(LATE, rel=0.1), phase
        # who is late in the optimizer, the last phase, may make the others wait in the next step alone
        steps = (place, place + 1) if phase == "optimizer" else (place,)
        others = sum(punctual[step].waited - late[step].waited for step in steps) / 1e9
        assert others == pytest.approx(LATE, rel=0.25), f"the other rank waits for it: {phase}"


@pytest.mark.parametrize("world", WITH_A_LATE_RANK, indirect=True)
def test_a_late_arrival_is_found_in_its_collective(world: World) -> None:
    lags = []
    for first, second in zip(*(_own(records) for records in world.records[:2]), strict=True):
        assert (first["seq"], first["group"]) == (second["seq"], second["group"])
        lags.append(second["issued"] - first["issued"])
    assert lags[-2] == pytest.approx(LATE, rel=0.1)
    assert _own(world.records[0])[-2]["waited"] == pytest.approx(LATE, rel=0.1)
    assert _own(world.records[1])[-2]["waited"] < LATE / 4


def _own(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The script's own collectives, known by their size."""
    return [record for record in collectives(records) if record["bytes"] == 4 * 777]


def roles(world: World, rank: int) -> dict[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for group in [record for record in world.records[rank] if record.get("kind") == "rank"][-1]["groups"].values():
        found.setdefault(group["role"], set()).add(tuple(group["ranks"]))
    return found


def test_roles(world: World) -> None:
    names = [name for name, *_ in world.results[0]]
    if "experts" in names:
        assert (2, 3) in roles(world, 3)["ep"]
        assert (1, 3) in roles(world, 3)["dp"] and (0, 1, 2, 3) in roles(world, 3)["dp"]
        assert roles(world, 3)["pp"] == {(1, 3)}
        assert (2, 3) in roles(world, 3)["tp"]
    elif "tensor_parallel" in names:
        assert roles(world, 0)["dp"] == {(0, 1)}
    else:
        assert roles(world, 0)["dp"] == {(0, 1)}
