"""The fluid simulator: its network against the rules of fair shares, its faults against the steps that they lengthen,
and its cases against laggard-bench's schemas and judge."""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fluid
import numpy as np
import pytest
from fluid_simulator.agenda import Agenda
from fluid_simulator.cases import draw, make_case
from fluid_simulator.cluster import Cluster, Resource
from fluid_simulator.families import FAMILIES, INNOCENT, STOPS
from fluid_simulator.faults import calibrate, usual_step
from fluid_simulator.groups import Group
from fluid_simulator.network import Flow, Network, max_min
from fluid_simulator.plan import Fault, Plan
from fluid_simulator.run import Run
from fluid_simulator.schedules import Task, schedule
from laggard_bench.answer import check_answer
from laggard_bench.formats import ANY_NUMBER, lines, parse
from laggard_bench.judge import OPTIONAL, RIGHT, judge
from laggard_bench.validate import problems

SEED = 11
COUNT = sum(FAMILIES.values())
BENCH = Path(fluid.__file__).resolve().parent
slow = pytest.mark.slow


def cluster(machines: int = 4, gpus: int = 2, leaf: int = 2, oversubscription: float = 1.0) -> Cluster:
    names = tuple(f"n{machine}" for machine in range(machines))
    return Cluster(machines, gpus, gpus, 10e9, 100e9, leaf, oversubscription, names)


class Ends:
    """Notes when its flow ended."""

    def __init__(self) -> None:
        self.at = -1.0

    def part_ended(self, now: float) -> None:
        self.at = now


def random_flows(rng: np.random.Generator) -> tuple[list[Flow], dict[Resource, list[int]]]:
    """Flows over some of eight adapters, and the flows of each."""
    adapters = [Resource("out", (machine, 0)) for machine in range(8)]
    flows: list[Flow] = []
    users: dict[Resource, list[int]] = {adapter: [] for adapter in adapters}
    for number in range(int(rng.integers(2, 20))):
        passed = rng.choice(8, int(rng.integers(1, 4)), replace=False)
        uses = [(adapters[place], float(rng.integers(1, 3))) for place in passed]
        flows.append(Flow(number, Ends(), 1.0, uses, 0.0))
        for adapter, _ in uses:
            users[adapter].append(number)
    return flows, users


@pytest.mark.parametrize("seed", range(20))
def test_shares_fill_no_resource_beyond_its_capacity_and_hold_each_flow_up_somewhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    flows, users = random_flows(rng)
    capacity = {resource: float(rng.uniform(1, 9)) for resource in users}
    rates = max_min(flows, users, capacity.__getitem__)
    used: defaultdict[Resource, float] = defaultdict(float)
    for flow in flows:
        for resource, times in flow.uses:
            used[resource] += rates[flow.number] * times
    full = {resource for resource in users if used[resource] > capacity[resource] * (1 - 1e-6)}
    assert all(used[resource] <= capacity[resource] * (1 + 1e-6) for resource in users)
    fastest = {resource: max(rates[number] for number in users[resource]) for resource in full}
    for flow in flows:
        assert any(fastest.get(resource, np.inf) <= rates[flow.number] * (1 + 1e-6) for resource, _ in flow.uses)


def test_two_flows_share_an_adapter_and_the_longer_one_has_it_when_the_other_ended() -> None:
    agenda = Agenda()
    own = cluster()
    network = Network(agenda, own)
    short, long, elsewhere = Ends(), Ends(), Ends()
    for ends, size, pair in ((short, 10e9, (0, 2)), (long, 20e9, (0, 4)), (elsewhere, 10e9, (1, 3))):
        network.add(ends, size, [(resource, 1) for resource in own.way(*pair)], 0.0)
    agenda.run()
    assert (short.at, long.at, elsewhere.at) == pytest.approx((2.0, 3.0, 1.0))


def test_a_slow_adapter_slows_what_passes_it_alone() -> None:
    ended = {}
    for factor in (1.0, 0.25):
        agenda = Agenda()
        own = cluster()
        network = Network(agenda, own)
        network.factors[Resource("out", (0, 0))] = factor
        flows = {pair: Ends() for pair in ((0, 2), (1, 3), (4, 6))}
        for pair, ends in flows.items():
            network.add(ends, 10e9, [(resource, 1) for resource in own.way(*pair)], 0.0)
        agenda.run()
        ended[factor] = [ends.at for ends in flows.values()]
    assert ended[1.0] == pytest.approx([1.0, 1.0, 1.0])
    assert ended[0.25] == pytest.approx([4.0, 1.0, 1.0])


@pytest.mark.parametrize(("kind", "bytes_out"), [("ring", 1.0), ("tree", 0.75), ("exchange", 0.75)])
def test_channels_carry_what_their_algorithm_sends(kind: str, bytes_out: float) -> None:
    """Bytes that leave a machine's adapters, over the collective's: of four machines with two ranks each. A double tree
    has three edges of two ways, each with half the bytes in each of the trees, over four machines."""
    group = Group(0, "world", range(8), cluster(), "tree")
    sent: defaultdict[int, float] = defaultdict(float)
    for channel in group.channels(kind):
        for resource, times in channel.uses:
            sent[resource.at[0]] += channel.share * times if resource.kind == "out" else 0
    ranks = 2 if kind == "exchange" else 1  # each rank of an exchange has bytes of its own
    assert sum(sent.values()) / 4 == pytest.approx(bytes_out * ranks)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb", "interleaved"])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_each_stage_does_each_task_once_and_no_backward_before_its_forward(name: str, stages: int) -> None:
    chunks = 2 if name == "interleaved" else 1
    for stage in range(stages):
        tasks = schedule(name, stages, stage, 2 * stages, chunks)
        kinds = Counter(task.what for task in tasks)
        assert len(set(tasks)) == len(tasks)
        assert kinds["F"] == kinds["B"] == 2 * stages * chunks
        assert kinds["W"] == (2 * stages if name == "zb" else 0)
        for task in tasks:
            if task.what == "B":
                assert tasks.index(Task("F", task.micro, task.chunk)) < tasks.index(task)


def plan_of(engine: str) -> Plan:
    """A small job of that engine in which nothing is uneven."""
    for number in range(200):
        _, plan = draw(SEED, number, "plain")
        if plan and plan.job.engine == engine and plan.cluster.world <= 16 and not plan.note:
            return plan
    raise AssertionError(engine)


@slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp", "hsdp", "mega"])
@pytest.mark.parametrize("kind", ["gpu", "input"])
def test_a_fault_makes_the_step_about_as_much_longer_as_it_shall(engine: str, kind: str) -> None:
    plan = plan_of(engine)
    fault = Fault(kind, ranks=[0], levels=[1.0] * 12, target=0.3)
    calibrate(plan, fault, usual_step(plan))
    usual, slowed = Run(plan, [], 12).durations(), Run(plan, [fault], 12).durations()
    assert slowed[2:].sum() / usual[2:].sum() - 1 == pytest.approx(0.3, abs=0.15)


def test_a_run_without_faults_comes_to_its_end_and_each_rank_takes_part_alike() -> None:
    for engine in ("ddp", "fsdp", "hsdp", "mega"):
        run = Run(plan_of(engine), [], 3)
        run.check_finished()
        assert {len(rank.steps) for rank in run.ranks} == {3}
        assert all(rank.entered == rank.done for rank in run.ranks)


CASES = {
    "plain": 10,
    "uneven_stage": 7,
    "packed": 150,
    "hot_experts": 72,
    "hetero": 35,
    "warmup": 61,
    "rank0": 137,
    "thermal_all": 119,
    "gc": 185,
    "gpu": 73,
    "host": 136,
    "input": 83,
    "nic": 111,
    "nvlink": 12,
    "leaf": 92,
    "wave": 236,
    "onset": 133,
    "two": 224,
    "hang_compute": 167,
    "hang_input": 15,
    "hang_gpu": 141,
    "stopped": 176,
    "dead": 3,
    "node_dead": 134,
    "net_dead": 135,
}
"""The number of a case that is made and read in little time, by family."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A case of each of these families, with the truths."""
    folder = tmp_path_factory.mktemp("fluid")
    return folder, [make_case(SEED, number, folder) for number in CASES.values()]


def recorded(folder: Path, truth: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    for file in sorted((folder / truth["case"] / "recording").iterdir()):
        for _, line in lines(file):
            value = parse(line, ANY_NUMBER)
            if value.get("kind") == kind:
                yield value


@slow
def test_cases_hold_to_laggard_benchs_schemas(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, truths = cases
    assert [truth["family"] for truth in truths] == list(CASES)
    for truth in truths:
        assert problems(folder / truth["case"]) == []


@slow
def test_laggard_reads_each_recording_whole(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    from laggard.recording.reader import read_recording

    for truth in cases[1]:
        gaps = read_recording([str(cases[0] / truth["case"] / "recording")]).gaps
        assert not [gap for gap in gaps if "left out" in gap or "more than once" in gap], truth["case"]


@slow
def test_who_names_the_first_that_each_truth_accepts_is_all_right(
    cases: tuple[Path, list[dict[str, Any]]],
) -> None:
    for truth in cases[1]:
        firsts = [fault["accepted"][0] for fault in truth["faults"]]
        named = [{key: value for key, value in first.items() if key != "switch"} for first in firsts]
        answer = {"verdict": truth["verdicts"][0], "culprits": named}
        check_answer(answer)
        judged = judge(truth, answer)
        assert judged.clean and judged.verdict_right, truth["case"]
        assert all(outcome in (RIGHT, OPTIONAL) for outcome in judged.faults)
        silent = judge(truth, {"verdict": "unknown", "culprits": []})
        assert RIGHT not in silent.faults and not silent.false


@slow
def test_innocent_jobs_have_no_fault_and_stops_leave_beats(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    for truth in cases[1]:
        assert bool(truth["faults"]) == (truth["family"] not in INNOCENT), truth["case"]
        beats = list(recorded(cases[0], truth, "beat"))
        assert bool(beats) == (truth["family"] in STOPS), truth["case"]
        for beat in beats:
            assert all(group["seconds"] >= 0 for group in beat["beat"]["groups"])
            assert bool(beat["beat"]["groups"]) == (beat["beat"]["flight_recorder"] == "on")


@slow
def test_seed_and_number_give_the_same_case_whatever_python_hashes(tmp_path: Path) -> None:
    chosen = [word for family in ("host", "hang_compute") for word in ("--case", str(CASES[family]))]
    for hashes in ("1", "2"):
        command = [sys.executable, str(BENCH / "fluid.py"), "--seed", str(SEED), *chosen, "--workers", "1"]
        subprocess.run(
            [*command, "--out", str(tmp_path / hashes)],
            check=True,
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
        )
    first = {path.relative_to(tmp_path / "1"): path.read_bytes() for path in (tmp_path / "1").rglob("*.json*")}
    second = {path.relative_to(tmp_path / "2"): path.read_bytes() for path in (tmp_path / "2").rglob("*.json*")}
    assert len(first) > 8 and first == second
