"""What the bench of engines makes of laggard's answers, and its page."""

from typing import Any

import pytest
from engines import cases, catalogue
from engines.judge import EXPECTED, RIGHT, SILENT, UNSURE, WRONG, judge, judge_unseen
from engines.page import BARE, cell, equal, page, score, steps
from engines.processes import JOBS


def culprit(kind: str, *ranks: int, phase: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "ranks": list(ranks), "phase": phase}


def answer(*culprits: dict[str, Any], verdict: str = "", notes: tuple[tuple[str, ...], ...] = ()) -> dict[str, Any]:
    """As `laggard.location/1`: the parts that are judged. A note: its kind, then its ranks."""
    return {
        "verdict": verdict or ("fail" if culprits else "ok"),
        "ranks_seen": 2,
        "culprits": list(culprits),
        "notes": [{"kind": kind, "ranks": [int(rank) for rank in ranks]} for kind, *ranks in notes],
    }


GOOD = {
    "forward": culprit("slow_host", 1, phase="forward"),
    "input": culprit("slow_input", 1, phase="input"),
    "sigstop": culprit("hung", 1),
    "sigkill": culprit("dead", 1),
    "exception": culprit("dead", 1),
    "collective": culprit("dead", 1),
    "exit": culprit("dead", 1),
}
INNOCENTS = [case.name for case in cases.CASES if not case.fault]


def test_there_are_thirteen_cases_and_each_fault_has_its_answer() -> None:
    assert len(cases.CASES) == 13
    assert set(EXPECTED) == set(GOOD) == {case.name for case in cases.CASES if case.fault}


@pytest.mark.parametrize("case", GOOD)
def test_a_fault_is_right_by_its_rank_and_kind(case: str) -> None:
    assert judge(case, answer(GOOD[case]), 1).worth == RIGHT
    assert judge(case, answer({**GOOD[case], "ranks": [0]}), 1).worth == WRONG
    assert judge(case, answer({**GOOD[case], "kind": "slow_link"}), 1).worth == WRONG
    assert judge(case, answer(), 1).worth == WRONG, "nobody is named"
    assert judge(case, answer(verdict="unknown"), 1).worth == UNSURE
    assert judge(case, None, 1).worth == judge(case, {"error": "no recording"}, 1).worth == SILENT


@pytest.mark.parametrize(
    ("case", "named", "worth"),
    [
        ("forward", culprit("slow_compute", 1, phase="backward"), WRONG),
        ("forward", culprit("slow_input", 1, phase="input"), WRONG),
        ("input", culprit("slow_host", 1, phase="between_steps"), RIGHT),
        ("input", culprit("slow_host", 1, phase="input"), RIGHT),
        ("input", culprit("slow_input", 1), RIGHT),
        ("input", culprit("slow_host", 1, phase="forward"), WRONG),
        ("sigstop", culprit("dead", 1), WRONG),
        ("exit", culprit("hung", 1), WRONG),
        ("collective", culprit("hung", 1), RIGHT),
    ],
)
def test_kinds_and_phases(case: str, named: dict[str, Any], worth: str) -> None:
    assert judge(case, answer(named), 1).worth == worth


def test_a_collective_too_many_may_be_told_in_a_note() -> None:
    for kind in ("mismatch", "not_arrived"):
        assert judge("collective", answer(verdict="unknown", notes=((kind, "1"),)), 1).worth == RIGHT
        assert judge("collective", answer(verdict="unknown", notes=((kind, "0"),)), 1).worth == UNSURE
    assert judge("sigstop", answer(verdict="unknown", notes=(("not_arrived", "1"),)), 1).worth == UNSURE


def test_of_what_no_hook_sees_it_is_right_to_say_that_and_why() -> None:
    unseen = answer(verdict="unknown") | {"ranks_seen": 0}
    told = unseen | {"notes": [{"kind": "unseen", "text": "2 processes trained without being seen: by RPC"}]}
    assert judge_unseen(told).worth == RIGHT
    assert judge_unseen(told | {"verdict": "ok"}).worth == WRONG
    assert judge_unseen(told | {"culprits": [GOOD["sigkill"]], "verdict": "fail"}).worth == WRONG
    assert judge_unseen(unseen).worth == judge_unseen(None).worth == SILENT


@pytest.mark.parametrize("case", INNOCENTS)
def test_an_innocent_accuses_nobody(case: str) -> None:
    assert judge(case, answer(notes=(("brief", "1"),)), 1).worth == RIGHT
    assert judge(case, answer(culprit("slow_host", 0)), 1).worth == WRONG
    assert judge(case, answer(culprit("uneven_work", 2)), 1).worth == WRONG
    assert judge(case, answer(verdict="unknown"), 1).worth == UNSURE
    assert judge(case, answer(verdict="unknown", notes=(("too_few_steps",),)), 1).worth == RIGHT
    assert judge(case, answer(verdict="fail", notes=(("deadlock", "0", "1"),)), 1).worth == WRONG
    assert judge(case, answer() | {"ranks_seen": 0}, 1).worth == SILENT


@pytest.mark.parametrize(
    ("case", "worker", "uneven"),
    [("logging", 0, True), ("checkpoint", 0, True), ("evaluation", 0, False), ("uneven", 1, True)]
    + [("turns", None, True), ("warm_up", None, True), ("uneven", None, False)],
)
def test_only_the_rank_that_has_more_work_has_uneven_work(case: str, worker: int | None, uneven: bool) -> None:
    for rank in (0, 1):
        said = judge(case, answer(culprit("uneven_work", rank)), 1, uneven)
        assert said.worth == (RIGHT if rank == worker else WRONG), rank


def result(location: dict[str, Any], live: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    ranks = [{"rank": rank, "steps": 80, "losses": ["0x1p0"], "weights": "w"} for rank in (0, 1)]
    usual = {
        "recorded": location,
        "live": live or location,
        "said": "what it said",
        "said_live": "what it said live",
        "statuses": [0, 0],
        "befell": True,
        "results": ranks,
        "steps": {"0": 80, "1": 80},
        "errors": 0,
    }
    return {**usual, **more}


def test_a_cell_is_the_worse_of_both_answers() -> None:
    ddp, case = catalogue.BY_NAME["ddp"], cases.BY_NAME["forward"]
    right, wrong = answer(GOOD["forward"]), answer(culprit("slow_host", 0, phase="forward"))
    assert cell(ddp, case, result(right)) == (RIGHT, ())
    found = cell(ddp, case, result(right, wrong))
    assert found.worth == WRONG
    assert found.whys == ('live: accuses rank 0 (slow_host, forward): "what it said live"',)
    assert cell(ddp, case, result(wrong, right)).worth == WRONG
    assert cell(ddp, case, result(answer(verdict="unknown"), right)).worth == UNSURE
    assert cell(ddp, case, result({"error": "no recording at /dev/shm/x"}, right)).whys == (
        "recorded: nothing was said (no recording)",
    )


def test_results_are_compared_with_those_without_the_hooks() -> None:
    ddp = catalogue.BY_NAME["ddp"]
    hooked = result(answer())
    both = {("ddp", "logging"): hooked, ("ddp", BARE): {"results": hooked["results"]}}
    assert equal(both, ddp) == "yes" and steps(both, ddp) == "yes"
    other = [{**each, "weights": "x"} for each in hooked["results"]]
    assert equal({**both, ("ddp", BARE): {"results": other}}, ddp) == "NO"
    assert equal({("ddp", "logging"): hooked}, ddp) == ""
    assert steps({("ddp", "logging"): {**hooked, "steps": {"0": 80, "1": 160}}}, ddp) == "80 of 80, 160 of 80"


def test_the_page_has_a_row_for_each_engine_and_tells_what_is_not_right() -> None:
    found = {
        ("ddp", "forward"): result(answer(GOOD["forward"])),
        ("ddp", "logging"): result(answer(culprit("slow_input", 0, phase="input"))),
        ("single", "logging"): result(answer(verdict="unknown")),
    }
    text = page(found)
    assert score(found) == (1, 3) and "**1 of 3 cells are right**, 1 wrong, 1 unsure." in text
    row = next(line for line in text.splitlines() if line.startswith("| DDP |"))
    assert row.count("|") == 17 and " right " in row and " wrong " in row
    assert '- DDP, logging, recorded: accuses rank 0 (slow_input, input): "what it said"' in text
    assert "- one process, no odd collective: it makes no collectives." in text
    assert "| one process | - | - |" in text
    assert text.count("\n| ") == 1 + len(catalogue.ENGINES) + 1 + len(cases.CASES), "every engine and case has a row"


def test_every_engine_has_its_script_and_a_name_of_its_own() -> None:
    assert len(catalogue.BY_NAME) == len(catalogue.ENGINES)
    for engine in catalogue.ENGINES:
        assert (JOBS / engine.script).is_file(), engine.name
        assert set(engine.leaves_out) <= set(cases.BY_NAME), engine.name
        assert engine.victim < engine.ranks
    used = {engine.script for engine in catalogue.ENGINES}
    assert {path.name for path in JOBS.glob("*.py")} == used
