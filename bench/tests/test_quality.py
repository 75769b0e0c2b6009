"""The benchmark of localisation: answers are scored as docs/development/benchmark.md says."""

import json
import sys
from pathlib import Path
from typing import Any

import locate_quality
import pytest
from quality.answer import Named
from quality.matrix import FORMS, SIZES, SLOW_FAULTS, Entry, entries
from quality.run import run_entry
from quality.score import FALSE, RIGHT, TOLERATED, score
from simulator.case import Case, simulate
from simulator.faults import STOPS, Fault
from simulator.layout import LAYOUTS


def truth_of(fault: Fault, layout: str = "dp=16,gpus_per_node=4", form: str = "host") -> dict[str, Any]:
    return simulate(Case(layout, form, seed=1, steps=8, faults=(fault,))).truth


def test_the_right_rank_is_right_and_any_other_is_false() -> None:
    truth = truth_of(Fault("slow_gpu", 0.2, rank=5, phase="forward"))
    result = score(
        truth, [Named("slow_compute", (5,), phase="forward", recoverable=1 / 6), Named("slow_compute", (6,))]
    )
    assert result.marks == [RIGHT, FALSE]
    (found,) = result.found
    assert found.found and found.kind and found.phase
    assert found.recoverable_error == pytest.approx(0, abs=0.01)
    (found,) = score(truth, [Named("slow_input", (5,), phase="input")]).found
    assert found.found and not found.kind and not found.phase


def test_a_rank_of_a_slow_host_is_false_and_all_of_them_are_right() -> None:
    truth = truth_of(Fault("slow_host", 0.2, rank=5))
    assert score(truth, [Named("slow_compute", (5,))]).marks == [FALSE]
    assert score(truth, [Named("slow_host", nodes=("n1",))]).found[0].kind
    every = score(truth, [Named("slow_compute", (rank,)) for rank in (4, 5, 6, 7)])
    assert every.marks == [RIGHT] * 4 and every.found[0].found and not every.found[0].kind


def test_without_phases_input_and_computing_look_alike() -> None:
    truth = truth_of(Fault("slow_input", 0.2, rank=5), form="sparse")
    (found,) = score(truth, [Named("slow_compute", (5,))]).found
    assert found.kind and found.phase


def test_a_link_is_right_within_what_could_be_told() -> None:
    layout = "dp=4,tp=4,gpus_per_node=4"  # a dp group of each rail: which of its four NICs is slow, nobody can tell
    truth = truth_of(Fault("slow_nic", 0.2, rank=5), layout)
    assert truth["culprits"][0]["within"] == [1, 5, 9, 13]
    assert score(truth, [Named("slow_link", (1, 5, 9, 13))]).marks == [RIGHT]
    assert score(truth, [Named("slow_link", (5, 9))]).marks == [RIGHT]
    assert score(truth, [Named("slow_link", (9, 13))]).marks == [FALSE]
    assert score(truth, [Named("slow_link", (5, 6))]).marks == [FALSE]
    assert score(truth, [Named("slow_compute", (5,))]).found[0].kind is False


def test_what_nobody_can_know_need_not_be_named_and_may_be() -> None:
    truth = truth_of(Fault("slow_nic", 0.2, rank=5))
    assert score(truth, []).found[0].found is False and not truth["culprits"][0]["required"]
    assert score(truth, [Named("slow_link", (5,))]).marks == [TOLERATED]
    assert (
        score(truth, [Named("slow_compute", (7,))]).marks == [TOLERATED] or truth["culprits"][0]["kind"] == "slow_link"
    )


def test_a_dead_node_is_found_by_all_of_its_ranks() -> None:
    truth = truth_of(Fault("death_node", rank=5))
    assert score(truth, [Named("dead", (rank,)) for rank in range(4, 8)]).found[0].found
    assert score(truth, [Named("dead", (4, 5, 6, 7))]).marks == [RIGHT]
    assert not score(truth, [Named("dead", (4,))]).found[0].found


def test_the_matrix_has_every_fault_at_every_size_and_in_every_form() -> None:
    found = entries(5, 3, 1, 1)
    assert {(one.row, one.size) for one in found if one.size} == {(row, size) for row in SLOW_FAULTS for size in SIZES}
    for row in SLOW_FAULTS:
        assert {one.form for one in found if one.row == row} == set(FORMS)
    for size in SIZES:
        assert len({one.layouts[0] for one in found if one.size == size}) == len(LAYOUTS)
    assert {one.row for one in found} >= set(STOPS)
    assert found == entries(5, 3, 1, 1) and found != entries(6, 3, 1, 1)


def test_steps_to_the_verdict_are_counted_from_the_faults_first() -> None:
    """With a tool that needs eleven recorded steps, whatever they show."""

    def patient(trace: Path) -> list[Named]:
        seen = (trace / "rank-0.jsonl").read_text().count('"kind":"step"')
        return [Named("slow_compute", (1,))] if seen >= 11 else []

    entry = Entry("GPU", 0.2, "host", 4, ("dp=4,gpus_per_node=2",), (Fault("slow_gpu", 0.2, rank=1),))
    result = run_entry(entry, patient, timed=True)
    assert result is not None and result.steps == 8  # the fault begins with step 3
    assert result.command.endswith("--fault slow_gpu,size=0.2")


def test_the_command_runs_a_tool_of_twenty_lines_and_writes_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nobody.py").write_text(
        "from pathlib import Path\nfrom quality.answer import Named\n\n"
        "def locate(trace: Path) -> list[Named]:\n    return [Named('slow', (0,))]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "--tool",
        "nobody:locate",
        "--cases",
        "0,0,1",
        "--row",
        "healthy",
        "--processes",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert locate_quality.main(words) == 0
    assert "1 of 1" in capsys.readouterr().out  # the healthy job is accused
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert result["answer"]["marks"] == [FALSE]
    assert "slow of ranks 0 named falsely" in (tmp_path / "misses.md").read_text()
    assert result["command"] in (tmp_path / "misses.md").read_text()
    assert sys.modules["nobody"].__file__ == str(tmp_path / "nobody.py")
