"""The hooks in real gloo jobs, in every way to train: they record what happened and change nothing."""

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
from support.torch_version import GLOO_IS_RECORDED, TORCH

from laggard.kit.constants import PHASES
from laggard.rankfile import RankFileReader, Step

DELAY_SECONDS = 0.4  # as in the scripts
JOBS = {
    "torch": ("torch_jobs.py", 2),
    "updates": ("updates.py", 2),
    "groups": ("groups.py", 2),
    "device": ("torch_on_device.py", 2),
    "deepspeed": ("deepspeed_jobs.py", 2),
    "roles": ("roles.py", 4),
}
WITH_A_LATE_RANK = ("torch", "device", "deepspeed")
WITH_A_FRESH_RANK = ("torch", "deepspeed")
BY_DDP = ("torch", "device")
CLOCK_ERROR_SECONDS = {"device": 2e-3}  # of a device's time in the host's clock, by its drift; the host's has none
# bytes of the collective that a script makes once in each step, number of steps, number of trainings
TAGGED = {"updates": (4 * 1001, 6, 1), "deepspeed": (4 * 1003, 10, 3)}
BARE = {"device": "torch_jobs.py"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.apart_by_parameter]


Measured = dict[str, tuple[float, float]]
"""When the parts of a step began and ended, in the script's own view: the delay, the four phases, and `collective`, the
one that the script makes itself. Seconds of CLOCK_MONOTONIC."""


class FinishedJob(NamedTuple):
    """One of JOBS after it has trained with the hooks: for each rank its recording, the collectives in torch's Flight
    Recorder, its results, what it measured by itself and its steps; and the results of the same job without the hooks.
    """

    name: str
    records: list[list[dict[str, Any]]]
    flight_recorder: list[list[tuple[str, str, int]] | None]
    results: list[list[Any]]
    measured: list[list[Measured]]
    steps: list[list[Step]]
    bare: list[list[Any]]


@pytest.fixture(scope="module", params=(pytest.param("torch", marks=pytest.mark.spine), *tuple(JOBS)[1:]))
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launch_in: Any
) -> Iterator[FinishedJob]:
    script, ranks = JOBS[request.param]
    place = tmp_path_factory.mktemp(request.param)
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    extra = {"LAGGARD_RECORD_DIR": str(place / "recording"), "PYTHONPATH": path}
    fresh = 1 if request.param in WITH_A_FRESH_RANK else 0
    hooked = launch_in(place, TRAINING / script, ranks=ranks, extra=extra, fresh=fresh)
    bare = TRAINING / BARE.get(request.param, script)

    def launch_bare() -> list[Any]:
        return launch_in(tmp_path_factory.mktemp("bare"), bare, ranks=ranks, hooks=False)

    files: dict[int, list[Step]] = {}
    for path in (place / "ranks").rglob("*.rank"):
        with RankFileReader(str(path)) as file:
            counters = file.counters()
            assert counters is not None and counters.errors == 0, "the hooks count no errors of their own"
            assert counters.lost == 0 or not GLOO_IS_RECORDED
            files[file.identity["rank"]] = file.steps()
    yield FinishedJob(
        request.param,
        [read(place / "recording" / f"rank-{rank}.jsonl") for rank in range(ranks)],
        [printed(each.stdout, "COLLECTIVES")[0] for each in hooked],
        [printed(each.stdout, "RESULT") for each in hooked],
        [printed(each.stdout, "MEASURED") for each in hooked],
        [files[rank] for rank in range(ranks)],
        bare_results(request.config, bare, ranks, launch_bare),
    )


def bare_results(config: pytest.Config, script: Path, ranks: int, launch: Callable[[], list[Any]]) -> list[list[Any]]:
    """The results that the ranks of `script` print without the hooks. They do not depend on laggard: pytest's cache
    keeps them from one run of the tests to the next, as long as scripts, torch and DeepSpeed stay the same."""
    parts = [script.name, str(ranks), *(importlib.metadata.version(name) for name in ("torch", "deepspeed"))]
    parts += [path.read_text() for path in sorted(TRAINING.glob("*.py"))]
    key = f"laggard/bare-{script.stem}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
    cache = getattr(config, "cache", None)  # absent with -p no:cacheprovider
    kept = cache.get(key, None) if cache else None
    results: list[list[Any]] = kept or [printed(each.stdout, "RESULT") for each in launch()]
    if cache and not kept:
        cache.set(key, results)
    return results


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def printed(output: str, word: str) -> list[Any]:
    return [json.loads(line[len(word) + 1 :]) for line in output.splitlines() if line.startswith(word)]


def collectives(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record.get("kind") == "collective"]


def test_every_collective_of_the_flight_recorder_is_recorded_once(job: FinishedJob) -> None:
    for records, entries in zip(job.records, job.flight_recorder, strict=True):
        if entries is None:
            pytest.skip("this torch's Flight Recorder does not hold gloo's collectives")
        anew = job.name == "groups"  # made again and again of the same members: they go on in one group's lanes
        ours = Counter(_as_gloo(record, anew) for record in collectives(records) if "peer" not in record)
        sized = ((_op(op), "" if anew else group, 0 if op == "scatter" else size) for op, group, size in entries)
        theirs = Counter(sized)
        assert ours == theirs, "by operation, group and bytes"
        assert sum(theirs.values()) > 50


def _as_gloo(record: dict[str, Any], anew: bool) -> tuple[str, str, int]:
    """A collective as the Flight Recorder has it: gloo runs a reduce_scatter as an all_reduce, and only the root of a
    scatter knows its size."""
    op = "all_reduce" if record["op"] == "reduce_scatter" else record["op"]
    group = "" if anew else record["group"].partition("#")[2] or "0"
    return op, group, 0 if op == "scatter" else record["bytes"]


def _op(name: str) -> str:
    return "all_gather" if "gather" in name and "all" in name else name


def test_results_are_the_same_to_the_bit(job: FinishedJob) -> None:
    assert job.results == job.bare
    assert all(results for results in job.results)


def test_every_message_is_recorded_by_sender_and_receiver(job: FinishedJob) -> None:
    sent, received = Counter[Any](), Counter[Any]()
    for rank, records in enumerate(job.records):
        for record in collectives(records):
            if record["op"] == "send":
                sent[rank, record["peer"], record["seq"], record["bytes"]] += 1
            elif record["op"] == "recv":
                received[record["peer"], rank, record["seq"], record["bytes"]] += 1
    assert sent == received and max(sent.values(), default=1) == 1


def test_every_collective_ends_after_it_was_issued(job: FinishedJob) -> None:
    for records in job.records:
        for record in collectives(records):
            assert record["end"] is not None, record
            assert 0 <= record["waited"] <= record["end"] - record["issued"] + 1e-9, record


def test_each_collective_names_its_clock(job: FinishedJob) -> None:
    clocks = Counter(record["clock"] for records in job.records for record in collectives(records))
    own = "device" if job.name == "device" else "host"
    # the host's clock times what C++ makes outside DDP
    assert clocks[own] > 0.8 * clocks.total(), clocks


def test_steps_are_their_phases_and_waits(job: FinishedJob) -> None:
    for steps in job.steps:
        assert len(steps) >= 7  # of eight updates: a second engine's first one may be part of a step
        for step in steps:
            assert step.end - step.start == sum(step.phases) + step.waited, step
            assert min(*step.phases[:4], step.waited) >= 0, step


@pytest.mark.parametrize("job", TAGGED, indirect=True)
def test_a_step_that_is_skipped_for_an_overflow_is_a_step(job: FinishedJob) -> None:
    size, count, trainings = TAGGED[job.name]
    for records in job.records:
        tagged = [record for record in collectives(records) if record["bytes"] == size]
        assert len(tagged) == count * trainings
        steps = [record["step"] for record in tagged]
        for training in range(0, len(steps), count):
            first = steps[training]
            assert steps[training : training + count] == list(range(first, first + count)), steps


@pytest.mark.parametrize("job", WITH_A_LATE_RANK, indirect=True)
def test_a_phase_lasts_as_long_as_the_script_was_in_it(job: FinishedJob) -> None:
    error = CLOCK_ERROR_SECONDS.get(job.name, 1e-6)
    for steps, parts in zip(job.steps, job.measured, strict=True):
        late = list(zip(steps[-len(parts) :], parts, strict=True))
        for step, part in late[1:]:  # the input of the first is also the making of the loader's iterator
            for phase in ("input", "forward", "backward", "optimizer"):
                assert step.phases[PHASES.index(phase)] / 1e9 <= seconds(part[phase]) + error, (phase, step, part)


@pytest.mark.parametrize("job", WITH_A_LATE_RANK, indirect=True)
def test_a_delay_is_found_in_its_phase(job: FinishedJob) -> None:
    if job.name in BY_DDP and not GLOO_IS_RECORDED:
        pytest.skip("DDP's wait is not known where its all_reduces are in no Flight Recorder")
    punctual, late = (steps[-7:] for steps in job.steps)
    error = CLOCK_ERROR_SECONDS.get(job.name, 1e-6)
    for index, phase in enumerate(("input", "forward", "backward", "optimizer", None, "other")):
        if phase is None:
            continue
        delay = seconds(job.measured[1][index - 7]["delay"])
        assert late[index].phases[PHASES.index(phase)] / 1e9 >= delay - error, phase
        # a delay in the optimizer, the last phase, may make the others wait only in the next step
        steps = (index, index + 1) if phase == "optimizer" else (index,)
        others = sum(punctual[step].waited for step in steps) / 1e9
        assert others > DELAY_SECONDS / 2, f"the other rank waits for it: {phase}"


@pytest.mark.parametrize("job", WITH_A_LATE_RANK, indirect=True)
def test_a_late_arrival_is_found_in_its_collective(job: FinishedJob) -> None:
    error = CLOCK_ERROR_SECONDS.get(job.name, 1e-6)
    in_time, late = (_own(records) for records in job.records[:2])
    for own, parts in zip((in_time, late), job.measured, strict=True):
        for record, part in zip(own, parts, strict=True):
            assert part["collective"][0] <= record["issued"] <= part["collective"][1], (record, part)
            assert record["waited"] <= seconds(part["collective"]) + error, (record, part)
    for first, second in zip(in_time, late, strict=True):
        assert (first["seq"], first["group"]) == (second["seq"], second["group"])
    assert job.measured[1][-2]["delay"][1] <= late[-2]["issued"]
    assert late[-2]["issued"] - in_time[-2]["issued"] > DELAY_SECONDS / 2
    assert in_time[-2]["waited"] > DELAY_SECONDS / 2, "the other rank waits for it"


def seconds(part: tuple[float, float]) -> float:
    return part[1] - part[0]


def _own(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The collectives that the script makes itself, recognised by their size."""
    return [record for record in collectives(records) if record["bytes"] == 4 * 777]


def roles(job: FinishedJob, rank: int) -> dict[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for group in [record for record in job.records[rank] if record.get("kind") == "rank"][-1]["groups"].values():
        found.setdefault(group["role"], set()).add(tuple(group["ranks"]))
    return found


def test_roles(job: FinishedJob) -> None:
    names = [name for name, *_ in job.results[0]]
    if "experts" in names:
        assert (2, 3) in roles(job, 3)["ep"]
        assert (1, 3) in roles(job, 3)["dp"] and (0, 1, 2, 3) in roles(job, 3)["dp"]
        assert roles(job, 3)["pp"] == {(1, 3)}
        if TORCH >= (2, 6):  # the groups of a DeviceMesh of torch 2.4 have no description that names its dimension
            assert (2, 3) in roles(job, 3)["tp"]
    elif "tensor_parallel" in names:
        assert roles(job, 0)["dp"] == {(0, 1)}
    else:
        assert roles(job, 0)["dp"] == {(0, 1)}
