"""Real runs: their truth, what an answer is worth, the table, and one short run for real where this machine can."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from real_runs import befall, catalogue
from real_runs.judge import MISSED, PARTLY, RIGHT, WRONG, judge
from real_runs.report import DISTURBED, table


def named(kind: str, *ranks: int) -> dict[str, Any]:
    return {"kind": kind, "ranks": list(ranks)}


def truth(job: str, fault: str) -> dict[str, object]:
    return catalogue.truth_of(catalogue.Run(job, fault))


def test_there_are_more_than_sixty_runs_and_any_part_of_them_has_some_of_each() -> None:
    runs = list(catalogue.runs())
    assert len(runs) == len(set(runs)) == len(catalogue.JOBS) * len(catalogue.FAULTS) - len(catalogue.SINGLE_GROUP) > 60
    first = runs[: 3 * len(catalogue.JOBS)]
    by_job, by_fault = (Counter(names) for names in zip(*first, strict=True))
    assert set(by_job) == set(catalogue.JOBS) and min(by_job.values()) >= 2
    assert set(by_fault) == {fault.name for fault in catalogue.FAULTS}


def test_a_way_between_two_nodes_is_slow_in_pipelines_alone() -> None:
    pairs = [run for run in catalogue.runs() if run.fault == "pair"]
    assert pairs and not {run.job for run in pairs} & catalogue.SINGLE_GROUP
    assert judge(catalogue.truth_of(pairs[0]), [named("slow_link", 1, 2)]) == RIGHT


@pytest.mark.parametrize("run", list(catalogue.runs()), ids="-".join)
def test_the_truth_names_a_rank_of_the_job_or_nobody(run: catalogue.Run) -> None:
    document = catalogue.truth_of(run)
    assert bool(document["victims"]) == bool(document["kinds"]) == (run.fault not in ("none", "all_slow"))
    assert set(document["victims"]) <= set(range(document["ranks"]))  # type: ignore[arg-type, call-overload]


def test_nobody_can_know_whose_link_is_slow_in_a_job_of_one_group() -> None:
    assert not truth("ddp", "link")["required"] and truth("pipeline_1f1b", "link")["required"]
    assert judge(truth("ddp", "link"), []) == RIGHT
    assert judge(truth("pipeline_1f1b", "link"), []) == MISSED


def test_an_answer_is_right_by_its_rank_and_kind() -> None:
    quota = truth("ddp", "quota")
    (victim,) = quota["victims"]  # type: ignore[misc]
    assert judge(quota, [named("slow_compute", victim)]) == RIGHT
    assert judge(quota, [named("slow_host", victim)]) == RIGHT
    assert judge(quota, [named("slow_input", victim)]) == PARTLY
    assert judge(quota, [named("slow_link", 0, victim)]) == PARTLY
    assert judge(quota, [named("slow_compute", victim), named("slow_compute", 0)]) == WRONG
    assert judge(quota, [named("slow_compute", 0)]) == WRONG
    assert judge(quota, []) == MISSED


def test_a_link_is_right_by_one_of_its_ends() -> None:
    link = truth("pipeline_gpipe", "link")
    assert judge(link, [named("slow_link", 1, 2)]) == RIGHT
    assert judge(link, [named("slow_link", 2, 3)]) == WRONG


@pytest.mark.parametrize("fault", ("none", "all_slow"))
def test_where_nobody_is_at_fault_naming_anybody_is_wrong(fault: str) -> None:
    assert judge(truth("ddp", fault), []) == RIGHT
    assert judge(truth("ddp", fault), [named("slow_compute", 1)]) == WRONG


def test_runs_beside_which_others_worked_stand_apart() -> None:
    answers = {
        ("ddp", "none"): {"worth": RIGHT, "others": 0.0},
        ("ddp", "quota"): {"worth": MISSED, "others": 2 * DISTURBED},
        ("fsdp2", "quota"): {"worth": RIGHT},  # not known
        ("ddp", "disk"): {"failed": "no cgroup"},
    }
    quiet, disturbed = table(answers).split("While others used more than 10 % of the machine:")
    assert "| all 1 | 1 | 0 | 0 | 0 |" in quiet and "| all 2 | 1 | 0 | 1 | 0 |" in disturbed
    assert "- ddp, disk: no run: no cgroup" in disturbed


def test_a_machine_without_the_cgroup_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(befall, "CGROUPS", tmp_path)
    with pytest.raises(befall.CannotBefall, match="no cgroup controller cpu"), befall.quota([os.getpid()], 0.5):
        pass
