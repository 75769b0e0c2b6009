"""laggard-bench: its physics against formulas, its truth against the simulation, its cases against their schemas."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from laggard_bench import freeze, score
from laggard_bench.answer import cases_in, check_answer
from laggard_bench.cases import draw, make_case, names, number_of
from laggard_bench.cluster import NETWORK_SECONDS, NIC_BYTES, Cluster, Element, transfer_seconds
from laggard_bench.faults import Fault, Part, same_ends, stands_out
from laggard_bench.laggard_entry import locate, translated
from laggard_bench.layouts import ENGINES, Design, build
from laggard_bench.program import Builder, Program
from laggard_bench.schedules import SCHEDULES, schedule
from laggard_bench.simulate import QUIET, Job, lengthening, magnitude_for, run
from laggard_bench.validate import problems

SEED = 5
COUNT = 100


def cluster(world: int, per_node: int = 8, leaf: int = 4) -> Cluster:
    return Cluster(world, per_node, leaf, 4, 1, 1.0, 1)


def quiet(program: Program, steps: int, faults: list[Fault]) -> Any:
    return run(Job(len(program.ranks), (program,), (0,) * steps, QUIET), faults, np.random.default_rng(0))


def smallest(family: str) -> str:
    """The family's case with the fewest ranks."""
    return min((name for name in names(SEED, COUNT) if name[5:] == family), key=lambda name: draw(SEED, name)[0].world)


def test_a_pipeline_takes_as_long_as_its_formula_says() -> None:
    """GPipe and 1F1B take (micro-batches + stages - 1) times a forward and a backward (Narayanan et al., 2021)."""
    for name in ("gpipe", "1f1b"):
        design = Design("megatron", pp=4, micros=8, schedule=name, forward=0.4, size=1e3, input=1e-6)
        program = build(design, cluster(8), range(8))
        took = quiet(program, 1, []).ends[0, 0]
        work = (8 + 4 - 1) * 3 * 0.4 / 4
        rest = 0.003 + 0.04 * 0.4 * 8  # the script's own work, and the optimizer
        assert took == pytest.approx(work + rest, rel=0.01)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_each_stage_does_each_micro_batch_once(name: str, stages: int) -> None:
    for stage in range(stages):
        tasks = schedule(name, stage, stages, 2 * stages)
        assert len(set(tasks)) == len(tasks)
        for what in ("F", "B"):
            chunks = 2 if name == "interleaved" else 1
            assert sum(task.what == what for task in tasks) == 2 * stages * chunks


def test_a_ring_takes_as_long_as_its_slowest_edge() -> None:
    members, size = (0, 8, 16, 24), 1e9
    own = cluster(32)
    usual = transfer_seconds(own, members, "all_reduce", size)
    assert usual[0] == pytest.approx(2 * 3 / 4 * size / NIC_BYTES + 4**0.5 * NETWORK_SECONDS)
    slow = transfer_seconds(own, members, "all_reduce", size, Element("nic", (8,)), 3.0)
    assert slow[0] == pytest.approx(3 * 2 * 3 / 4 * size / NIC_BYTES + 4**0.5 * NETWORK_SECONDS)
    assert transfer_seconds(own, members, "all_reduce", size, Element("nic", (9,)), 3.0) == usual


def test_an_exchange_is_slow_for_the_two_ends_of_a_slow_link_alone() -> None:
    members = (0, 8, 16, 24)
    usual = transfer_seconds(cluster(32), members, "all_to_all", 1e9)
    slow = transfer_seconds(cluster(32), members, "all_to_all", 1e9, Element("link", (1, 2)), 4.0)
    assert [b > a for a, b in zip(usual, slow, strict=True)] == [False, True, True, False]


def test_one_ring_tells_no_link_from_another_and_a_rail_tells_itself() -> None:
    own = cluster(32)
    builder = Builder(own, range(32))
    builder.sync(builder.group("dp", range(32)), "all_reduce", 1e8)
    ring = Program(builder)
    assert Element("link", (2, 3)) in same_ends(ring, Element("link", (0, 1)))
    assert not stands_out(ring, Element("link", (0, 1)))
    builder = Builder(own, range(32))
    for rail in range(8):
        builder.sync(builder.group("dp", range(rail, 32, 8)), "all_reduce", 1e8)
    rails = Program(builder)
    found = same_ends(rails, Element("nic", (11,)))
    assert {each.at[0] % 8 for each in found if each.kind == "nic"} == {3}
    assert stands_out(rails, Element("nic", (11,)))
    assert not stands_out(rails, Element("node", (1,)))


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_slow_gpu_makes_the_step_as_much_longer_as_it_shall(engine: str) -> None:
    design = Design(engine, tp=2 if engine == "megatron" else 1, pp=2 if engine == "megatron" else 1, micros=2)
    program = build(design, cluster(32), range(32))
    part = magnitude_for(program, Part("gpu", (5,)), 0.2)
    happened = quiet(program, 6, [Fault("gpu", "slow_compute", (part,), np.ones(6))])
    assert lengthening(happened, 0, 1, np.ones(6))[0] == pytest.approx(0.2, abs=0.05)


slow = pytest.mark.slow


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("laggard-bench")
    chosen = [smallest(family) for family in ("balanced", "gpu", "link", "hang", "death", "stopped_gpu")]
    truths = []
    for name in chosen:
        truth = make_case(SEED, name, folder)
        (folder / number_of(name) / "truth.json").write_text(json.dumps(truth))
        truths.append(truth)
    return folder, truths


@slow
def test_a_case_comes_out_the_same_again(cases: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, truths = cases
    known = min(truths, key=lambda truth: truth["lines"])
    number = known["case"]
    assert make_case(SEED, f"{number}-{known['family']}", tmp_path) == known
    for file in sorted((folder / number / "recording").iterdir()):
        assert file.read_bytes() == (tmp_path / number / "recording" / file.name).read_bytes()


@slow
def test_cases_hold_to_their_schemas(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    for case in cases_in(cases[0]):
        assert problems(case) == []


@slow
def test_laggard_reads_each_recording_whole(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    """No line is left out as none, or as one that contradicts another."""
    from laggard.recording.reader import read_recording

    for truth in cases[1]:
        gaps = read_recording([str(cases[0] / truth["case"] / "recording")]).gaps
        assert not [gap for gap in gaps if "left out" in gap or "more than once" in gap], truth["case"]


@slow
def test_a_stopped_rank_leaves_others_waiting(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    for truth in cases[1]:
        stops = [fault for fault in truth["faults"] if fault["kind"] == "hang"]
        lines = [
            json.loads(line)
            for file in (cases[0] / truth["case"] / "recording").iterdir()
            for line in file.read_text().splitlines()[-8:]
        ]
        waiting = [line for line in lines if line["kind"] == "beat" and line["in_flight"]]
        assert bool(waiting) == bool(stops), truth["case"]
        if stops:
            culprit = stops[0]["accepted"][0]["ranks"][0]
            assert {line["rank"] for line in waiting} - {culprit}


def test_a_hang_is_told_where_the_steps_before_had_other_groups(tmp_path: Path) -> None:
    """DiLoCo's islands synchronise every so many steps: the step that hangs has no group across them."""
    truth = make_case(3, "0283-hang", tmp_path)
    assert truth["layout"]["engine"] == "diloco"
    text = (tmp_path / truth["case"] / "recording" / "rank-4.jsonl").read_text()
    beats = [line for line in map(json.loads, text.splitlines()) if line.get("kind") == "beat"]
    assert {lane["group"] for lane in beats[-1]["beat"]["lanes"]} == {"dp_shard:0+1x8", "dp_replicate:4-12"}


@slow
def test_the_truth_itself_has_full_marks(cases: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, truths = cases
    perfect = [
        {
            "case": truth["case"],
            "verdict": truth["verdicts"][0],
            "culprits": [culprit for fault in truth["faults"] for culprit in fault["accepted"]],
        }
        for truth in truths
    ]
    found = figures(folder, tmp_path, perfect)
    assert found["unanswered"] == 0
    assert found["clean"] == found["cases"] == len(truths)
    assert found["recall"]["hits"] == found["recall"]["count"]
    assert found["precision"]["hits"] == found["precision"]["count"] > 0


def figures(folder: Path, scratch: Path, answers: list[dict[str, Any]]) -> dict[str, Any]:
    file = scratch / "answers.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in answers))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert score.main([str(folder), str(file), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_the_sets_are_those_that_were_frozen() -> None:
    assert json.loads((freeze.HERE / "frozen.json").read_text()) == freeze.frozen()


@slow
def test_laggards_entry_answers(cases: tuple[Path, list[dict[str, Any]]]) -> None:
    name = next(truth["case"] for truth in cases[1] if truth["family"] == "balanced")
    given = locate(cases[0] / name)
    check_answer(given)
    assert given["verdict"] == "ok" and "error" not in given


def test_uneven_work_accuses_nobody() -> None:
    document = {"verdict": "fail", "culprits": [{"kind": "uneven_work", "ranks": [3], "node": None}], "notes": []}
    assert translated(document)["culprits"][0]["kind"] == "imbalance"
    assert translated(document)["verdict"] == "ok"
