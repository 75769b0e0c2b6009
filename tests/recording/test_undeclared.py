"""Recordings of writers that declare little: no positions, no groups, other names of roles, no promise of ends."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.recording import write

from laggard.locate.verdict import locate
from laggard.model import Location
from laggard.recording.reader import read_recording

PIPELINE = "dp=8,pp=4,schedule=1f1b,micro=4,gpus_per_node=4"
Change = Callable[[dict[str, Any]], dict[str, Any]]


def judged(case: Case, folder: Path, change: Change, without: Sequence[int] = ()) -> Location:
    """The verdict on the recording of `case`, with each of its records changed, and `without` some ranks."""
    write(simulate(case), folder)
    for rank in without:
        (folder / "trace" / f"rank-{rank}.jsonl").unlink()
    for file in (folder / "trace").iterdir():
        records = [change(json.loads(line)) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return locate(read_recording([folder / "trace"]).timings)


def undeclared(record: dict[str, Any]) -> dict[str, Any]:
    if record.get("kind") == "rank":
        return {key: value for key, value in record.items() if key not in ("position", "groups")}
    return {key: "g" if key == "group" and "peer" in record else value for key, value in record.items()}


def by_other_names(record: dict[str, Any]) -> dict[str, Any]:
    """Megatron's names of groups, and no positions."""
    if record.get("kind") != "rank":
        return record
    names = {"dp": "DATA_PARALLEL_GROUP", "pp": "PIPELINE_MODEL_PARALLEL_GROUP", "world": "default_pg"}
    groups = {name: group | {"role": names[group["role"]]} for name, group in record["groups"].items()}
    return {key: value for key, value in record.items() if key != "position"} | {"groups": groups}


@pytest.mark.parametrize("change", [undeclared, by_other_names])
@pytest.mark.parametrize("form", ["host", "sparse"])
def test_uneven_stages_accuse_nobody_though_no_position_is_declared(tmp_path: Path, change: Change, form: str) -> None:
    case = Case(PIPELINE, form, seed=2, steps=16, innocents=("stage_imbalance",))
    assert judged(case, tmp_path, change).culprits == ()


@pytest.mark.parametrize("change", [undeclared, by_other_names])
def test_a_rank_is_compared_with_its_stage_though_no_position_is_declared(tmp_path: Path, change: Change) -> None:
    fault = Fault("slow_gpu", 0.15, rank=13)
    case = Case(PIPELINE, "host", seed=5, steps=16, faults=(fault,), innocents=("stage_imbalance",))
    assert [each.ranks for each in judged(case, tmp_path, change).culprits] == [(13,)]


@pytest.mark.parametrize(("layout", "innocent"), [(PIPELINE, "stage_imbalance"), ("moe32", "hot_experts")])
def test_where_a_rank_was_not_recorded_those_behind_it_keep_their_places(
    tmp_path: Path, layout: str, innocent: str
) -> None:
    def without_positions(record: dict[str, Any]) -> dict[str, Any]:
        if layout == PIPELINE:
            return undeclared(record)
        if record.get("kind") != "rank":
            return record
        groups = {
            name: group | {"role": "EXPERT_MODEL_PARALLEL_GROUP" if group["role"] == "ep" else group["role"]}
            for name, group in record["groups"].items()
        }
        return {key: value for key, value in record.items() if key != "position"} | {"groups": groups}

    case = Case(layout, "host", seed=2, steps=16, innocents=(innocent,))
    location = judged(case, tmp_path, without_positions, without=[9])
    assert location.culprits == () and location.ranks_seen == 31


def test_experts_with_more_tokens_accuse_nobody_though_no_group_is_declared(tmp_path: Path) -> None:
    case = Case("dp=16,ep=4,gpus_per_node=4", "host", seed=2, steps=16, innocents=("hot_experts",))
    assert judged(case, tmp_path, undeclared).culprits == ()


def test_a_rank_without_an_end_is_dead_where_others_have_one(tmp_path: Path) -> None:
    """The head of the recording does not say that ranks end with a line, and they do."""

    def without_promise(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key != "ends"}

    case = Case("dp=8,gpus_per_node=4", "host", seed=1, steps=16, faults=(Fault("death", rank=5),))
    assert simulate(case).ending == "exceptions"  # the others have ends
    (culprit,) = judged(case, tmp_path, without_promise).culprits
    assert (culprit.kind, culprit.ranks) == ("dead", (5,))
