"""Tools that run as they ship: they are asked in processes of their own, and say what they say where they are at home.

They are tried where bench/quality/tools/shipped/environments.py has installed them: no test downloads anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quality.answer import Named
from quality.matrix import Entry
from quality.report import OUT_OF_SCOPE, document, hang_tools
from quality.run import Result, run_entry
from quality.scope import SCOPES, scope_of, within
from quality.tools.peers import PEERS
from quality.tools.shipped import adapters, process
from quality.tools.shipped.adapters import DUMPS, FR_TRACE, NVRX_COLLECTIVES, SHIPPED
from quality.tools.shipped.environments import ENVIRONMENTS, CannotInstall, Environment, install
from quality.tools.shipped.process import Shipped, close_all
from simulator.case import Case, simulate
from simulator.faults import Fault
from simulator.flight_recorder import write_dumps
from simulator.layout import LAYOUTS
from simulator.recording import write

LAYOUT = "dp=12,gpus_per_node=4"


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    yield
    close_all()


def asked(tool: Shipped, fault: Fault, folder: Path, layout: str = LAYOUT) -> list[Named]:
    if not tool.environment.is_there():
        pytest.skip(f"{tool.environment.name} is not installed for the benchmark")
    job = simulate(Case(layout, seed=2, steps=30, faults=(fault,)))
    write(job, folder)
    if job.ending != "complete":
        write_dumps(job, folder / DUMPS, timing=False)
    return tool(folder / "trace")


@pytest.mark.slow
@pytest.mark.parametrize("tool", (FR_TRACE, NVRX_COLLECTIVES), ids=("fr_trace", "NVRx"))
@pytest.mark.parametrize("fault", ("hang_compute", "death"))
def test_what_reads_dumps_names_the_rank_that_did_not_come(tool: Shipped, fault: str, tmp_path: Path) -> None:
    assert [one.ranks for one in asked(tool, Fault(fault, rank=3), tmp_path)] == [(3,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault", "kind"),
    (
        ("NVRx, relative scores", Fault("slow_gpu", 0.6, rank=3), "slow_compute"),
        ("NVRx, relative scores", Fault("slow_input", 0.3, rank=3), "slow_input"),
        ("TraceML step time", Fault("slow_gpu", 0.6, rank=3, phase="forward"), "slow_compute"),
        ("TraceML step time", Fault("slow_input", 0.3, rank=3), "slow_input"),
    ),
)
def test_what_times_steps_names_the_slow_rank_and_its_cause(name: str, fault: Fault, kind: str, tmp_path: Path) -> None:
    named = asked(SHIPPED[name], fault, tmp_path)
    assert [(one.kind, one.ranks) for one in named] == [(kind, (3,))]


def test_who_reads_dumps_names_nobody_in_a_job_that_left_none(tmp_path: Path) -> None:
    write(simulate(Case(LAYOUT, seed=2, steps=10)), tmp_path)
    assert FR_TRACE(tmp_path / "trace") == [] and NVRX_COLLECTIVES(tmp_path / "trace") == []


def test_of_sharded_weights_traceml_is_told_that_it_is_fsdp(tmp_path: Path) -> None:
    """What it attributes differs: with FSDP it names no computing."""
    for layout in ("zero3_32", "dp8"):
        write(simulate(Case(layout, seed=2, steps=8)), tmp_path / layout)
    strategies = {
        layout: (adapters.traceml_rows(tmp_path / layout / "trace") or {})["strategy"] for layout in ("zero3_32", "dp8")
    }
    assert strategies == {"zero3_32": "fsdp", "dp8": "ddp"}


def tool_of(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Shipped:
    """A tool whose driver is this code."""
    monkeypatch.setattr(process, "DRIVERS", folder)
    (folder / "driver.py").write_text(code)
    return Shipped(Environment("none", "0"), "driver.py", lambda trace: {"trace": trace.name})


def test_what_a_tool_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "def answer(request):\n    print('{}')\n    return [{'kind': 'hung', 'ranks': [len(request['trace'])]}]\n"
    tool = tool_of(code, tmp_path, monkeypatch)
    assert tool(tmp_path / "abc") == [Named("hung", (3,))] and tool(tmp_path / "a") == [Named("hung", (1,))]


def test_a_tool_that_fails_says_why_and_one_that_dies_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os\n\ndef answer(request):\n    if request['trace'] == 'dies':\n        os._exit(1)\n"
        "    if request['trace'] == 'fails':\n        raise ValueError('no such dump')\n    return []\n"
    )
    tool = tool_of(code, tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="ValueError: no such dump"):
        tool(tmp_path / "fails")
    with pytest.raises(RuntimeError, match="its process ended"):
        tool(tmp_path / "dies")
    assert tool(tmp_path / "lives") == []


def test_a_tool_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quality.tools.shipped.environments.FOLDER", tmp_path)
    monkeypatch.setenv("LAGGARD_BENCH_GIT", str(tmp_path / "nowhere"))
    with pytest.raises(CannotInstall, match="git"):
        install(Environment("a-tool", "1", repository="https://example.invalid/a/tool", commit="abc"))
    assert not list(tmp_path.iterdir())


def test_every_environment_is_pinned() -> None:
    for environment in ENVIRONMENTS:
        assert environment.version and all("==" in one for one in environment.requirements), environment
        assert bool(environment.repository) == bool(environment.commit)


def test_every_tool_of_another_has_a_scope_with_sources_and_no_rule_of_ours_has_one() -> None:
    simple = {"most often last", "largest own time"}
    assert set(SCOPES) == {*SHIPPED, *PEERS} - simple
    for scope in SCOPES.values():
        assert scope.rows and scope.forms and scope.layouts <= set(LAYOUTS)
        assert scope.claims and all(claim.source for claim in scope.claims)
    assert scope_of("laggard").holds("NIC", "sparse", "dp4_tp8_pp4")


def result(row: str, size: float, form: str, layout: str, tools: dict[str, Any]) -> Result:
    case = {"form": form, "layout": layout, "innocents": [], "seed": 1, "steps": 40}
    return Result(row, size, case, "", True, 3600.0, tools, None)


def answered(found: bool, tools: tuple[str, ...]) -> dict[str, Any]:
    one = {"found": found, "kind": found, "phase": found, "recoverable_error": None}
    return {tool: {"named": [], "marks": [], "found": [one], "error": None} for tool in tools}


def test_recall_in_its_scope_counts_only_what_a_tool_claims() -> None:
    tools = ("laggard", "TraceML step time", "torch fr_trace")
    results = [
        result("GPU", 0.2, "host", "dp8", answered(True, tools)),
        result("GPU", 0.2, "sparse", "dp8", answered(False, tools)),  # no phases
        result("GPU", 0.2, "host", "dp8_tp8", answered(False, tools)),  # no tensor parallelism
        result("NIC", 0.2, "host", "dp8", answered(False, tools)),  # no network
        result("death", 0.0, "host", "dp8", answered(True, tools)),
    ]
    assert [one.row for one in within(results, "TraceML step time")] == ["GPU"]
    rows = {line.split(" | ")[0].strip("| "): line for line in document(results, tools, "made").splitlines()}
    traceml = [cell.strip() for cell in rows["TraceML step time"].split("|")[1:-1]]
    assert (traceml[2], traceml[4]) == ("1.000", "0.250") and traceml[6] == OUT_OF_SCOPE
    dumps = [cell.strip() for cell in rows["torch fr_trace"].split("|")[1:-1]]
    assert dumps[2] == dumps[4] == dumps[7] == OUT_OF_SCOPE and dumps[6] == "1 of 1"
    assert hang_tools(results, tools)[-1] == "| death | 1/1 | 1/1 |"


@pytest.mark.slow
def test_dumps_are_written_where_a_job_stopped_and_somebody_reads_them() -> None:
    seen: dict[str, bool] = {}

    class Looks:
        dumps = True

        def __call__(self, trace: Path) -> list[Named]:
            seen[json.loads((trace.parent / "truth.json").read_text())["verdict"]] = (trace.parent / DUMPS).is_dir()
            return []

    for faults in ((), (Fault("hang_compute", rank=1),)):
        run_entry(Entry("row", 0.0, "host", 4, ("dp=4,gpus_per_node=2",), faults), {"looks": Looks()}, None)
    assert seen == {"ok": False, "fail": True}
