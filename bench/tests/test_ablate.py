"""The ablation of localisation: each rule can be switched off, each threshold moved, and what that changes is told."""

import ast
import importlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType

import ablate
import pytest
from ablation import thresholds as found_thresholds
from ablation.asked import Answer, Questions, Without, answered, deciding
from ablation.report import text, worths
from ablation.rules import CORE, RULES
from ablation.run import AGAIN, FIRST, Kept, Plan, read_journal
from ablation.switch import PACKAGE, Rule, Unresolved, code_without, function_of, switched_off, watched
from ablation.thresholds import NO_THRESHOLDS, Threshold, bindings, moved, moved_value, readers, thresholds, value_of
from golden.case import Case, chosen, load
from golden.cases import all_cases

from laggard.locate import shares, verdict
from laggard.locate.slow import by_place, culprits, noise, tested

BENCH = Path(ablate.__file__).parent
HANDFUL = "simulator/input/1", "simulator/healthy/1", "fluid/hang_input/2", "laggard_bench/stopped_gpu/2"
ACCUSES_EVERYBODY = "PartialVerdict((Culprit('slow_host', tuple(timings.ranks.tolist())),))"
"""In place of corrupt_ranks(), which the others of a verdict leave as it is."""
CORRUPT = next(rule for rule in RULES if rule.name == "corrupt")


@pytest.fixture(scope="module")
def handful() -> list[Case]:
    return chosen(all_cases(), HANDFUL)


def test_each_rule_is_in_the_source_and_has_a_name_of_its_own() -> None:
    for rule in RULES:
        code_without(rule)
    assert len({rule.name for rule in RULES}) == len({rule[1:] for rule in RULES}) == len(RULES)
    with pytest.raises(Unresolved, match="no `no_such_part` any more"):
        code_without(Rule("moved", "verdict:locate", "()", "no_such_part"))
    with pytest.raises(Unresolved, match="does not know no_such_name"):
        code_without(Rule("unknown", "verdict:locate", "no_such_name"))


def test_what_a_verdict_calls_is_a_rule_or_core() -> None:
    known = {rule.where for rule in RULES if not rule.part} | CORE.keys()
    own = {name for name, it in vars(verdict).items() if inspect.isfunction(it) and it.__module__ == verdict.__name__}
    called = {place(found) for found in imported_by(Path(verdict.__file__))}
    assert len(called) > 25
    assert not called - known, "is it a rule (RULES), or the measure itself (CORE)?"
    assert not {each for each in CORE if place(function_of(each)) != each}, "CORE names what is there"
    assert {rule.where.partition(":")[2] for rule in RULES if rule.where.startswith("verdict:")} <= own


def imported_by(file: Path) -> list[FunctionType]:
    """The functions of locate that a module imports, at its top or where it asks."""
    names = [
        (node.module, each.name)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}.")
        for each in node.names
    ]
    found = (getattr(importlib.import_module(module), name) for module, name in names)
    return [each for each in found if inspect.isfunction(each)]


def place(function: FunctionType) -> str:
    return f"{function.__module__.removeprefix(f'{PACKAGE}.')}:{function.__qualname__}"


def test_a_handful_of_cases_is_answered_without_each_rule(handful: Sequence[Case]) -> None:
    asked, acted = set[str](), set[str]()
    for case in handful:
        answer = answered(case, Questions(RULES))
        assert [each.failed for each in answer.without.values()] == [""] * len(answer.without)
        asked |= set(answer.asked)
        acted |= set(answer.acted)
    assert len(asked) > 80 and len(acted) > 15


def test_what_did_not_act_changes_nothing(handful: Sequence[Case]) -> None:
    timings = load(handful[2]).timings
    usual = verdict.locate(timings)
    with watched(RULES) as seen:
        assert verdict.locate(timings) == usual
    idle = [rule for rule in RULES if rule.name in seen.asked - seen.acted]
    assert len(idle) > 5
    for rule in idle:
        with switched_off(rule):
            assert verdict.locate(timings) == usual, rule.name


def test_a_rule_that_does_nothing_decides_nothing(handful: Sequence[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    replay = next(rule for rule in RULES if rule.name == "replay of ranks")
    assert "| replay of ranks |" in told([asked_about(handful[0], replay)], replay)
    monkeypatch.setattr(function_of(replay.where), "__code__", code_without(replay))
    assert "- replay of ranks (asked in 1, never acts)" in told([asked_about(handful[0], replay)], replay)


def test_a_rule_that_accuses_everybody_loses_cases(handful: Sequence[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    planted = CORRUPT._replace(off=ACCUSES_EVERYBODY)
    monkeypatch.setattr(function_of(CORRUPT.where), "__code__", code_without(planted))
    answers = [asked_about(case, CORRUPT) for case in handful[1:]]
    (worth,) = worths([CORRUPT.name], answers)
    assert not any(answer.right for answer in answers)
    assert worth.cases("lost") == 3 and not worth.cases("won")
    assert worth.spared > 3 and not worth.accused


def asked_about(case: Case, rule: Rule) -> Answer:
    return answered(case, Questions([rule]))


def told(answers: Sequence[Answer], rule: Rule) -> str:
    kept = Kept({(FIRST, answer.case): answer for answer in answers})
    return "\n".join(text(Plan([rule], (), ()), kept))


def test_all_names_of_a_threshold_move_together() -> None:
    least_cost = Threshold(shares.__name__, "MIN_COST")
    with moved({least_cost: 0.5}):
        assert tested.MIN_COST == by_place.MIN_COST == culprits.MIN_COST == 0.5
        assert tested.DOUBTED_COST == 0.05  # one of its own
    assert tested.MIN_COST == by_place.MIN_COST == culprits.MIN_COST == 0.01
    first, third = (Threshold(noise.__name__, "FAST", (place,)) for place in (0, 2))
    assert {first, third} <= set(thresholds())
    with moved({first: 0.25, third: 0.9}):
        assert noise.FAST == (0.25, 0.5, 0.9)
    assert noise.FAST == (0.0, 0.5, 0.8)


def test_no_threshold_hides_in_a_default_that_is_computed() -> None:
    names = {each.name for each in thresholds()}
    for module in found_thresholds.verdict_modules():
        tree = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text())
        for node in ast.walk(tree):
            defaults = [*node.args.defaults, *node.args.kw_defaults] if isinstance(node, ast.FunctionDef) else []
            for default in defaults:
                used = {it.id for it in ast.walk(default) if isinstance(it, ast.Name)} if default else set()
                assert not used & names or isinstance(default, ast.Name), f"{module}: {node.name}"


def test_thresholds_are_numbers_that_decide() -> None:
    told = {str(each) for each in thresholds()}
    assert {"shares:MIN_COST", "hang.wait_graph:WAITING_SECONDS", "links.raised:HIT_SIGMAS"} <= told
    assert {"shares:MOST", "hang.unfinished:MAX_SHARE"} <= told
    assert not told & NO_THRESHOLDS.keys()
    assert not {each for each in told if "CONFIDENCE" in each or "_FORWARD" in each or "MAX_COMPARED" in each}
    for name in NO_THRESHOLDS:
        module, _, constant = name.partition(":")
        assert isinstance(getattr(importlib.import_module(f"{PACKAGE}.{module}"), constant), (int, float)), name
    assert all(readers(each.module, each.name) for each in thresholds()), "who reads it?"


@pytest.mark.parametrize(
    ("value", "down", "up"), [(0.25, 0.125, 0.5), (0.9, 0.45, 0.95), (1.1, 1.05, 1.2), (4.0, 2.0, 8.0), (1, 0, 2)]
)
def test_a_threshold_stays_what_it_is(value: float, down: float, up: float) -> None:
    assert (moved_value(value, 0.5), moved_value(value, 2.0)) == pytest.approx((down, up))
    assert type(moved_value(value, 2.0)) is type(value)


def test_a_threshold_that_decides_is_told_by_name(handful: Sequence[Case]) -> None:
    least_cost = Threshold(shares.__name__, "MIN_COST")
    unread = Threshold("laggard.locate.slow.uneven_work", "TIME_EXPONENT")
    asked = [least_cost, Threshold(tested.__name__, "LIVE_ERRORS"), Threshold(tested.__name__, "DOUBTED_COST"), unread]
    case = handful[0]
    answer = answered(case, Questions((), asked, (90.0,)))
    assert answer.decide == {"shares:MIN_COST": 90.0}
    assert {"slow.tested:LIVE_ERRORS", str(least_cost)} <= set(answer.read) and str(unread) not in answer.read
    kept = Kept({(FIRST, case.name): answer, (AGAIN, case.name): answer})
    report = "\n".join(text(Plan((), asked, (90.0,)), kept))
    assert f"{len(asked)} thresholds, each moved by x90: 1 decide a case; 1 cases were asked twice" in report
    assert "- slow.tested: LIVE_ERRORS, DOUBTED_COST" in report
    assert "Never read (1):\n\n- slow.uneven_work: TIME_EXPONENT" in report
    assert value_of(least_cost) == 0.01 and len(bindings(*least_cost[:2])) > 2


def test_of_a_group_those_are_found_that_change_something_by_themselves() -> None:
    asked = 0

    def is_same(group: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return not {3, 50} & set(group) and {7, 8} & set(group) in (set(), {7, 8})

    assert deciding(range(64), is_same) == [3, 7, 8, 50] or deciding(range(64), is_same) == [3, 50]
    assert asked < 64
    assert deciding([7, 8], is_same) == []  # these cancel each other: groups are drawn anew for each case
    assert deciding([7, 9], is_same) == [7]


def test_answers_are_kept_and_a_line_that_was_cut_off_is_none(tmp_path: Path) -> None:
    journal = tmp_path / "answers.jsonl"
    read = "slow.tested:LIVE_ERRORS"
    lines = (
        [FIRST, "fluid/nic/1", True, 0, ["bursts"], ["bursts"], {"bursts": [False, 3, ""]}, [read], {}],
        [AGAIN, "fluid/nic/1", True, 0, [], [], {}, [read], {read: 2.0}],
    )
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '[0, "fluid/nic/2", true')
    kept = read_journal(journal)
    (answer,) = kept.of(FIRST)
    assert answer.without == {"bursts": Without(False, 3)}
    assert kept.left(
        [each for each in thresholds() if each.name.endswith("ERRORS") and each.module == tested.__name__]
    ) == [Threshold(tested.__name__, name) for name in ("ERRORS", "DOUBTED_ERRORS")]
    (worth,) = worths(["bursts"], [answer])
    assert (worth.cases("won"), worth.accused, worth.asked, worth.acted) == (1, 3, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rule", "no_such"], "no rule 'no_such'; --list shows them"),
        (["--family", "no_such"], "no case or family 'no_such'"),
        (["--factor", "1"], "--factor is a number above 1"),
        (["--processes", "0"], "--processes is a number from 1 on"),
        (["--seed", "-1"], "--seed is a number from 0 on"),
    ],
)
def test_wrong_flags_get_one_line(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate.main(arguments) == 64
    assert problem in capsys.readouterr().err
