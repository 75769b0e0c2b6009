"""Tools that run as they ship: they are asked in processes of their own, and say what they say where they are at home.

They are tried where bench/quality/tools/shipped/environments.py has installed them: no test downloads anything."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quality.answer import SLOW_NODE, Named, NotAsked
from quality.matrix import Entry
from quality.report import HEAD, OUT_OF_SCOPE, document, hang_tools
from quality.run import Result, ask, run_entry
from quality.scope import SCOPES, scope_of, within
from quality.score import FALSE
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


def test_who_reads_dumps_is_not_asked_about_a_job_that_left_none(tmp_path: Path) -> None:
    write(simulate(Case(LAYOUT, seed=2, steps=10)), tmp_path)
    for tool in (FR_TRACE, NVRX_COLLECTIVES):
        with pytest.raises(NotAsked):
            tool(tmp_path / "trace")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "ranks"),
    (("DLRover node check", SLOW_NODE, (4, 5, 6, 7)), ("Megatron-LM sniff test", "slow_compute", (6,))),
)
def test_what_tests_nodes_names_the_slow_one(name: str, kind: str, ranks: tuple[int, ...], tmp_path: Path) -> None:
    fault = Fault("slow_gpu", 2.0, rank=6, phase="forward")
    assert [(one.kind, one.ranks) for one in asked(SHIPPED[name], fault, tmp_path)] == [(kind, ranks)]


def written(folder: Path, form: str = "host", **what: Any) -> Path:
    write(simulate(Case(LAYOUT, form, seed=2, steps=8, **what)), folder)
    return folder / "trace"


def test_dlrover_is_given_what_each_node_took_in_milliseconds(tmp_path: Path) -> None:
    plain = adapters.dlrover_nodes(written(tmp_path / "plain"))
    slow = adapters.dlrover_nodes(written(tmp_path / "slow", faults=(Fault("slow_gpu", 2.0, rank=6, phase="forward"),)))
    assert plain and slow
    assert [node["ranks"] for node in slow["nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    times = [[node["computing_ms"] for node in one["nodes"]] for one in (plain, slow)]
    assert times[1][1] > 2 * times[0][1] > 1 and times[1][0] < 1.1 * times[0][0]
    assert all(node["transfer_ms"] > 0 for node in plain["nodes"])


def test_megatron_is_given_rates_of_each_phase_and_of_each_kind_of_collective(tmp_path: Path) -> None:
    request = adapters.megatron_measures(written(tmp_path, faults=(Fault("slow_gpu", 1.0, rank=6, phase="forward"),)))
    assert request
    assert [one["phase"] for one in request["measures"][:2]] == ["forward", "backward"]
    assert {one["phase"] for one in request["measures"][2:]} == {None}
    forward = request["measures"][0]["rates"]
    assert len(forward) == 12 and min(range(12), key=forward.__getitem__) == 6


@pytest.mark.parametrize("make", (adapters.dlrover_nodes, adapters.megatron_measures, adapters.nvrx_relative))
def test_who_times_phases_is_not_asked_without_them(make: Any, tmp_path: Path) -> None:
    assert make(written(tmp_path, "sparse")) is None


def test_of_whom_the_sniff_test_marks_only_the_slow_are_named() -> None:
    driver = runpy.run_path(str(process.DRIVERS / "megatron.py"))
    lines = [
        "  forward: median=2.00, mean=2.00, min=1.00, max=3.00",
        "    OUTLIER rank 3 (node-1): 1.00 (-50.0%)",
        "    OUTLIER rank 12 (node (2)): 3.00 (+50.0%)",
        "    OUTLIER rank 5: 0.90 (-55.0%)",
    ]
    assert driver["slow"](lines) == [3, 5]


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


def test_a_tool_that_takes_too_long_is_ended_even_where_it_never_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is larger than what a pipe holds, so that writing it waits as well."""
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.5)
    tool = tool_of("import time\n\ntime.sleep(600)\n", tmp_path, monkeypatch)
    assert tool.ask({"trace": "x" * 1_000_000}) == {"error": "no answer within 0 s"}
    assert not process._running


def test_a_tool_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tool_of("import no_such_module_of_a_tool\n", tmp_path, monkeypatch)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no_such_module_of_a_tool"):
            tool(tmp_path / "case")


def test_a_failure_is_told_and_is_no_answer(tmp_path: Path) -> None:
    def fails(trace: Path) -> list[Named]:
        raise RuntimeError("KeyError: 7")

    def reads_nothing(trace: Path) -> list[Named]:
        raise NotAsked("no dumps")

    truth = {"culprits": [], "layout": {"world_size": 4, "gpus_per_node": 2}}
    tools = {"laggard": lambda trace: [], "fails": fails, "reads nothing": reads_nothing}
    answers = {name: ask(tool, tmp_path, truth) for name, tool in tools.items()}
    assert answers["fails"]["error"] == "RuntimeError: KeyError: 7"
    calm = result("calm", 0.0, "host", "dp8", answers)._replace(expects_culprit=False)
    told = cells(document([calm], list(tools), "made"))
    accused, failed = HEAD.index("innocent jobs accused, of all"), HEAD.index("ended with an error")
    assert [(told[name][accused], told[name][failed]) for name in tools] == [
        ("0 of 1", "0 of 1"),
        ("0 of 0", "1 of 1"),
        ("0 of 0", "0 of 0"),
    ]


def test_innocent_jobs_that_a_tool_does_not_claim_stand_apart() -> None:
    tool, wrong = "TraceML step time", {"asked": True, "named": [], "marks": [FALSE], "found": [], "error": None}
    calm = [
        result("calm", 0.0, "host", layout, {tool: answer})._replace(expects_culprit=False)
        for layout, answer in (("dp8", wrong | {"marks": []}), ("dp8_tp8", wrong))  # no tensor parallelism
    ]
    told = cells(document(calm, [tool], "made"))[tool]
    assert told[HEAD.index("innocent jobs accused, in its scope")] == "0 of 1"
    assert told[HEAD.index("innocent jobs accused, of all")] == "1 of 2"


def test_one_file_of_a_repository_is_all_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "git" / "tool"
    (there / "rules").mkdir(parents=True)
    (there / "rules" / "one.py").write_text("LIMIT = 1\n")
    (there / "other.py").write_text("")
    git = ["git", "-C", str(there), "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr("quality.tools.shipped.environments.FOLDER", tmp_path / "tools")
    monkeypatch.setenv("LAGGARD_BENCH_GIT", str(tmp_path / "git"))
    made = Environment("tool", "1", repository="https://example.invalid/tool", commit=commit, file="rules/one.py")
    folder = install(made)
    assert (folder / "rules" / "one.py").read_text() == "LIMIT = 1\n" and not (folder / "other.py").exists()


def test_a_tool_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quality.tools.shipped.environments.FOLDER", tmp_path)
    monkeypatch.setenv("LAGGARD_BENCH_GIT", str(tmp_path / "nowhere"))
    with pytest.raises(CannotInstall, match="git"):
        install(Environment("a-tool", "1", repository="https://example.invalid/a/tool", commit="abc"))
    assert not list(tmp_path.iterdir())


def test_a_tool_that_cannot_be_installed_is_left_out_with_a_word_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install_most(environment: Environment) -> Path:
        if environment.name == "traceml-ai":
            raise CannotInstall("no route to PyPI")
        return Path()

    monkeypatch.setattr(adapters, "install", install_most)
    assert set(SHIPPED) - set(adapters.installed()) == {"TraceML step time"}
    assert "TraceML step time is left out: it cannot be installed: no route to PyPI" in capsys.readouterr().err
    assert set(adapters.installed(lambda tool: tool.dumps)) == {"torch fr_trace", "NVRx CollectiveAnalyzer"}


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
    return {tool: {"asked": True, "named": [], "marks": [], "found": [one], "error": None} for tool in tools}


def cells(report: str) -> dict[str, list[str]]:
    """The cells of each row of the first table with that name."""
    rows: dict[str, list[str]] = {}
    for line in report.splitlines():
        if line.startswith("| "):
            found = [cell.strip() for cell in line.split("|")[1:-1]]
            rows.setdefault(found[0], found)
    return rows


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
    rows = cells(document(results, tools, "made"))
    assert HEAD[2].startswith("recall in its scope") and HEAD[3].startswith("recall over all")
    assert rows["TraceML step time"][2:4] == ["1.000", "0.250"]
    in_scope, of_all = HEAD.index("hangs and deaths, in its scope"), HEAD.index("hangs and deaths, of all")
    assert rows["TraceML step time"][in_scope] == rows["TraceML step time"][of_all] == OUT_OF_SCOPE
    dumps = rows["torch fr_trace"]
    assert dumps[2] == dumps[3] == dumps[HEAD.index("innocent jobs accused, of all")] == OUT_OF_SCOPE
    assert dumps[in_scope] == dumps[of_all] == "1 of 1"
    assert hang_tools(results, tools)[-1] == "| death | 1/1 | 1/1 |"
    results.append(result("death", 0.0, "host", "dp16_pp4_1f1b", answered(False, tools)))  # which sends
    assert hang_tools(results, tools)[-1] == "| death | 1/2 | 1/1; out of scope: 0/1 |"


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
