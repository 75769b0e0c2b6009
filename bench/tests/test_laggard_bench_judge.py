"""laggard-bench's judge, by truths and answers that are written by hand."""

from typing import Any

import pytest
from laggard_bench import figures, judge
from laggard_bench.judge import MISSED, NEAR, OPTIONAL, RIGHT


def entry(kind: str, ranks: list[int], *nodes: str) -> dict[str, Any]:
    return {"kind": kind, "ranks": ranks, "nodes": list(nodes)}


def link(*nodes: str) -> dict[str, Any]:
    return {"kind": "link", "ranks": [], "nodes": list(nodes), "between": list(nodes)}


def fault(kind: str, *accepted: dict[str, Any], **more: Any) -> dict[str, Any]:
    usual = {"name": kind, "kind": kind, "size": 0.2, "size_alone": 0.2, "first_step": 0, "optional": ""}
    return usual | {"accepted": list(accepted), "same_in_any_recording": []} | more


def truth(*faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Of a job of 32 ranks on the machines a to d."""
    usual = {"case": "0000", "family": "x", "ranks": 32, "nodes": 4, "tolerated": [], "verdicts": ["slow"]}
    return usual | {"faults": list(faults)} | more


def answer(*culprits: dict[str, Any], verdict: str = "slow", **more: Any) -> dict[str, Any]:
    return {"verdict": verdict, "culprits": list(culprits), **more}


GPU = fault("slow_compute", entry("compute", [4], "a"))
HOST = fault("slow_host", entry("host", list(range(8)), "a"))
LINK = fault("slow_link", link("a", "b"))
HEALTHY = truth(verdicts=["ok", "unknown"])


@pytest.mark.parametrize(
    ("named", "grade"),
    [
        (link("b", "a"), RIGHT),
        ({"kind": "link", "nodes": ["a", "b"]}, RIGHT),
        ({"kind": "link", "nodes": ["a"]}, MISSED),
        ({"kind": "link", "nodes": ["a", "b", "c"]}, MISSED),
        ({"kind": "link"}, MISSED),
        (entry("compute", [3], "a"), NEAR),
        (entry("compute", [30], "d"), MISSED),
        (entry("hang", [3], "a"), MISSED),
    ],
)
def test_a_link_is_right_with_both_of_its_ends(named: dict[str, Any], grade: str) -> None:
    assert judge.grade(named, LINK, 8) == grade


def test_an_adapter_is_one_end_of_the_link_that_is_named() -> None:
    adapter = fault("slow_link", entry("link", [3], "a"))
    assert judge.grade({"kind": "link", "nodes": ["a"]}, adapter, 8) == RIGHT
    assert judge.grade(link("a", "b"), adapter, 8) == RIGHT
    assert judge.grade(link("b", "c"), adapter, 8) == MISSED
    assert judge.grade({"kind": "link", "nodes": ["a", "b", "c"]}, adapter, 8) == MISSED


def test_a_switch_is_right_by_its_machines_or_by_a_link_from_one_of_them() -> None:
    switch = fault("slow_link", {"kind": "link", "ranks": [], "nodes": ["a", "b"], "switch": 0})
    assert judge.grade({"kind": "link", "nodes": ["a", "b"]}, switch, 8) == RIGHT
    assert judge.grade(link("b", "c"), switch, 8) == RIGHT
    assert judge.grade(link("c", "d"), switch, 8) == MISSED


@pytest.mark.parametrize(
    ("named", "grade"),
    [
        (entry("compute", [4], "a"), RIGHT),
        (entry("host", [4], "a"), RIGHT),
        (entry("link", [4], "a"), NEAR),
        (entry("compute", [4, 5], "a"), NEAR),
        (entry("compute", [5], "a"), MISSED),
        (entry("compute", list(range(16)), "a"), MISSED),
        (entry("compute", [], "a"), NEAR),
        (entry("compute", [], "b"), MISSED),
        (entry("compute", [], "a", "b"), MISSED),
        (entry("compute", []), MISSED),
    ],
)
def test_a_gpu_is_right_alone(named: dict[str, Any], grade: str) -> None:
    assert judge.grade(named, GPU, 8) == grade


def test_a_stop_is_right_as_a_hang_and_as_a_death() -> None:
    stop = fault("hang", entry("hang", [3], "a"), size=None, size_alone=None)
    assert [judge.grade(entry(kind, [3], "a"), stop, 8) for kind in ("hang", "dead", "compute")] == [RIGHT, RIGHT, NEAR]


def test_who_names_one_fault_many_times_found_one() -> None:
    pieces = [entry("host", [rank], "a") for rank in range(8)]
    judged = judge.judge(truth(HOST), answer(*pieces, *pieces))
    assert (judged.right, judged.near, judged.false) == (1, 0, ())
    twice = judge.judge(truth(HOST), answer(*[entry("host", [30], "d")] * 50))
    assert len(twice.false) == 1 and twice.innocents == 1


def test_of_two_faults_each_is_found_by_itself() -> None:
    judged = judge.judge(truth(GPU, LINK), answer(entry("compute", [4], "a"), entry("compute", [9], "b")))
    assert judged.faults == (RIGHT, NEAR)  # b is an end of the link
    assert (judged.near, judged.false, judged.clean) == (1, (), False)


def test_nobody_need_name_what_is_optional_and_who_does_is_right() -> None:
    hidden = GPU | {"optional": "it is hidden"}
    assert judge.judge(truth(hidden), answer()).faults == (OPTIONAL,)
    assert judge.judge(truth(hidden), answer(entry("compute", [4], "a"))).faults == (RIGHT,)
    assert judge.judge(truth(hidden), answer(entry("compute", [9], "b"))).false
    counted = figures.figures([judge.judge(truth(hidden), answer())])
    assert counted["recall"]["count"] == 0 and counted["need_not"] == 1


def test_a_healthy_job_is_accused_by_a_culprit_and_by_the_word_of_a_stop() -> None:
    assert judge.judge(HEALTHY, answer(verdict="hang")).alarmed
    assert judge.judge(HEALTHY, answer(entry("link", [], "a"))).alarmed
    assert not judge.judge(HEALTHY, answer(entry("imbalance", [3], "a"), verdict="ok")).alarmed
    assert not judge.judge(HEALTHY, answer(verdict="unknown")).alarmed


@pytest.mark.parametrize(
    ("named", "false"),
    [
        (link("a", "c"), 0),
        ({"kind": "link", "nodes": ["a", "b", "c", "d"]}, 0),
        ({"kind": "link", "nodes": ["e"]}, 1),
        (entry("compute", [4], "a"), 1),
    ],
)
def test_links_that_are_slow_by_design_may_be_named_and_their_machines_not(named: dict[str, Any], false: int) -> None:
    uplinks = [{"kind": "link", "ranks": [], "nodes": nodes, "switch": 0} for nodes in (["a", "b"], ["c", "d"])]
    judged = judge.judge(truth(tolerated=uplinks, verdicts=["ok", "slow"]), answer(named))
    assert (len(judged.false), judged.near) == (false, 1 - false)


def test_suspects_are_near_at_best_and_do_no_harm() -> None:
    judged = judge.judge(truth(GPU), answer(suspects=[entry("compute", [4], "a"), entry("compute", [9], "b")]))
    assert (judged.faults, judged.false, judged.right) == ((NEAR,), (), 0)


def test_figures_count_what_was_judged() -> None:
    cases = [
        judge.judge(truth(GPU), answer(entry("compute", [4], "a"))),
        judge.judge(truth(HOST), answer(entry("compute", [20], "c"))),
        judge.judge(truth(LINK | {"size": 0.01, "size_alone": 0.01, "first_step": 9}), answer()),
        judge.judge(HEALTHY, answer(entry("compute", [1, 2, 3], "a"))),
        judge.judge(HEALTHY, answer(verdict="ok")),
    ]
    found = figures.figures(cases, unanswered=1)
    assert found["recall"] == {"hits": 1, "count": 3, "low": 0.0615, "high": 0.7923, "near": 0}
    assert (found["precision"]["hits"], found["precision"]["count"]) == (1, 3)
    assert (found["healthy"]["accused"]["hits"], found["healthy"]["accused"]["count"]) == (1, 2)
    assert (found["healthy"]["ranks_accused"], found["innocents_in_faulty_cases"]) == (3, 1)
    assert found["by_size"]["1 %"]["hits"] == 0 and found["by_size"]["20 %"]["hits"] == 1
    assert found["by_begin"]["slow_link, later"]["count"] == 1
    text = figures.table(found)
    assert text.startswith(f"laggard-bench {figures.VERSION}. {figures.REMARK}\n5 cases: ")
    assert "1 cases have no answer" in text


def test_wilsons_interval() -> None:
    """Of 8 in 10, as Brown, Cai and DasGupta's formula (2001, section 3.1.1) gives it."""
    low, high = figures.wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.49, 0.943)
    assert figures.wilson(0, 0) == (0.0, 1.0)
    assert figures.wilson(0, 200)[0] == 0.0 and figures.wilson(200, 200)[1] == pytest.approx(1.0)
