"""The smallest run of each benchmark: it ends, leaves nothing behind, and measures what it says that it measures.

How long things take is not judged: the machine may be busy. That a figure is there and possible is."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from common.smallest import BENCH, Ended

pytestmark = [pytest.mark.slow, pytest.mark.apart, pytest.mark.timeout(420)]

Bench = Callable[..., Ended]


def test_all_runs_those_that_are_named(bench: Bench) -> None:
    assert bench("all", "beat").value("a beat, CPU time", "us") > 0


def test_hook(bench: Bench) -> None:
    ended = bench("hook", "--pairs", 3)
    assert "errors in the hook, and collectives lost: 0" in ended.out
    for where in ("", " on a device"):
        for what in ("all_reduce", "all_gather", "async all_reduce"):
            assert ended.value(f"{what}{where}, bare (", "us") > 0.5
            assert ended.row(f"{what}{where}, added by the hook")
        assert 0.1 < ended.value(f"a step{where}", "us") < 1000
    assert ended.value("writer thread: a collective", "us") > 0


def test_hook_peers(bench: Bench) -> None:
    ended = bench("hook_peers", "--rounds", 2, "--steps", 60)
    assert ended.value("a step, bare", "us") > 10
    for watcher in ("laggard", "torch.profiler, CPU activities"):
        assert ended.row(f"a step, added by {watcher}") and ended.row(f"private memory, added by {watcher}")


def test_beat(bench: Bench) -> None:
    ended = bench("beat")
    assert 1.0 < ended.value("a beat, CPU time", "us") < 10_000
    assert ended.value("CPU at one beat a second", "%") > 0


def test_healthcheck(bench: Bench) -> None:
    ended = bench("healthcheck", "--pairs", 2)
    bare, checked = ended.value("python -c pass", "s"), ended.value("laggard healthcheck", "s")
    assert 0 < bare < checked
    assert ended.value("8 GPUs, 10 NICs, recorded", "s") > bare
    assert ended.value("the same, one probe hangs", "s") > 1.0
    assert ended.rows.keys() & {"with the agent's report"} or "the agent's report is not ok" in ended.errors


def test_prolog(bench: Bench) -> None:
    ended = bench("prolog", "--runs", 2, "--others", 1, "--storm", 2)
    for what in ("alone", "beside 1 others", "2 at once"):
        for way in ("curl", "Python"):
            assert 0 < ended.value(f"{what}, {way}", "ms") <= ended.value(f"{what}, {way}", "ms", place=2)
            assert f"| 2 at once, {way} | 2 of 2: " in ended.out
    assert "| 2 at once, without an agent | 2 of 2: " in ended.out


def test_agent(bench: Bench) -> None:
    whole = os.geteuid() == 0 and shutil.which("gcc") is not None
    ended = bench("agent", "--seconds", 5, *(() if whole else ("--bare",)))
    assert 10 < ended.value("private memory", "MiB") < ended.value("resident memory", "MiB") < 500
    assert 0 < ended.value("share of a core", "%") < 200
    assert ended.value("scrape", "ms") > 0 and 100 < ended.value("series", "") < 2000
    assert ended.value("every step in the rings", "ms") > 0


def test_fleet(bench: Bench) -> None:
    ended = bench("fleet", "--nodes", 32, "--jobs", 3, "--measure", "verdicts", "--rounds", 1)
    assert 0 < ended.value("seconds to the first verdict on every job", "") < 300
    right, false = (int(ended.row(outcome)[0]) for outcome in ("right", "false"))
    assert right > 0 and false == 0 and ended.row("defects") == ["0"]
    assert ended.value("seconds of a fresh answer", "") > 0 and ended.value("resident memory, MiB", "") > 20


def test_page(bench: Bench) -> None:
    ended = bench("page", "--ranks", 1024, "--loads", 1)
    assert ended.value("1,024 ranks: the heat map is there", "ms") > 1
    for view in ("", "fleet: ", "node: "):
        assert 0.01 < ended.value(f"1,024 ranks: {view}all answers of a load", "MB") < 5
    assert ended.value("1,024 ranks: a click on a rank", "ms") > 0


def test_stacks(bench: Bench) -> None:
    ended = bench("stacks")
    assert 0 < ended.value("200 samples in 10 s, share of a core", "%") < 100
    assert ended.value("a beat in which nobody asks, CPU time", "us") > 0
    assert ended.value("the answer of 1024 ranks, CPU time", "s") > 0


def test_locate(bench: Bench) -> None:
    ended = bench("locate", "--ranks", 64)
    assert ended.value("locate, 64 ranks, healthy", "s") > 0 and ended.value("locate, 64 ranks, a slow rank", "s") > 0
    assert ended.value("the process at its peak, 64 ranks", "MiB") > 20
    assert ended.value("build_timings, 64 ranks", "s") > 0


def test_recommend(bench: Bench) -> None:
    ended = bench("recommend", "--pairs", 2)
    assert 0 < ended.value("Python and numpy", "s") < ended.value("laggard recommend", "s")


def test_diagnose(bench: Bench) -> None:
    ended = bench("diagnose", "--mebibytes", 4)
    for log in ("a job's log", "a quarter of it, gzip", "a log that is all errors", "zeros, twice as many, gzip"):
        assert ended.value(log, "s", place=2) > 0 and 10 < ended.value(log, "MiB", place=4) < 500


def test_ring(bench: Bench) -> None:
    ended = bench("ring", "--mebibytes", 1, "--pairs", 3)
    assert "1 MiB: bare busbw " in ended.out
    assert 0.1 < ended.value("time at 1 MiB over the bare loop's", "times") < 20


def test_simulate(bench: Bench, tmp_path: Path) -> None:
    ended = bench("simulate", tmp_path / "case", "--layout", "dp8", "--fault", "slow_gpu", "--steps", 4, status=(0,))
    assert ended.out.split() == [str(tmp_path / "case")]
    assert len(list((tmp_path / "case" / "trace").iterdir())) == 8
    (culprit,) = json.loads((tmp_path / "case" / "truth.json").read_text())["culprits"]
    assert culprit["kind"] == "slow_compute"


def test_fluid(bench: Bench, tmp_path: Path) -> None:
    ended = bench("fluid", "--seed", 11, "--case", 7, "--out", tmp_path, status=(0,))
    assert ended.errors.startswith("1/1 0007 ")
    assert (tmp_path / "0007" / "truth.json").is_file() and any((tmp_path / "0007" / "recording").iterdir())


def test_locate_quality(bench: Bench, tmp_path: Path) -> None:
    words = ("--cases", "1,0,0", "--row", "input", "--out", tmp_path, "--seed", 7)
    ended = bench("locate_quality", *words, status=(0,))
    assert "5 cases, made by" in ended.out and 0 <= float(ended.row("laggard")[0]) <= 1
    assert len(json.loads((tmp_path / "results.json").read_text())) == 5


def test_false_alarms(bench: Bench, tmp_path: Path) -> None:
    few = ("--hours", 0.05, "--jobs", 1, "--cases", 1, "--ranks", 2, "--rho", 0.5, "--sd", 0.01)
    ended = bench("false_alarms", *few, "--out", tmp_path, status=(0,))
    assert "0.15 hours of healthy live jobs, 6 live jobs with a slow rank and 3 healthy\nrecordings, " in ended.out
    assert ended.row("rho 0.5, 1 %")[3] == "0 of 3 (0 to 56 %)"
    assert len((tmp_path / "results-1.jsonl").read_text().splitlines()) == 12


def test_ablate(bench: Bench, tmp_path: Path) -> None:
    """It goes on where it was: the second time nothing is asked."""
    words = ("--family", "fluid/hang_input/2", "--rule", "never finished", "--rule", "moments", "--out", tmp_path)
    first = bench("ablate", *words, status=(0,))
    assert "1 cases, of which laggard is right in " in first.out and "- moments\n" in first.out
    (journal,) = tmp_path.iterdir()
    kept = journal.read_text()
    assert bench("ablate", *words, status=(0,)).out == first.out and journal.read_text() == kept


def test_dumps_quality(bench: Bench) -> None:
    ended = bench("dumps_quality", "--kind", "cpu", "--seeds", 1, status=(0,))
    assert sum(int(cell) for cell in ended.row("cpu") if cell.isdigit()) >= 1


def test_diagnose_quality(bench: Bench) -> None:
    ended = bench("diagnose_quality", "node_clocksource_unstable", "evidence-dumps-in-zip", status=(0,))
    assert "2 cases: " in ended.out and ended.row("hang") and ended.row("config")


def test_false_drains(bench: Bench, tmp_path: Path) -> None:
    ended = bench("false_drains", "--size", "2,1,2", "--out", tmp_path, status=(0,), seconds=400)
    assert "node-hours of 2 nodes" in ended.out and ended.row("laggard") and ended.row("NHC, by nhc-genconf")
    assert (tmp_path / "report.md").read_text().strip() in ended.out


def test_every_engine(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    words = ("--engine", "ddp", "--case", "sigkill", "--steps", 20, "--out", out)
    assert bench("every_engine", *words).out.startswith("ddp sigkill: ")
    again = bench("every_engine", *words)
    (line,) = out.read_text().splitlines()
    found = json.loads(line)
    assert found["case"] == ["ddp", "sigkill"] and found["befell"] and found["statuses"][1] == -9
    assert found["recorded"]["ranks_seen"] == 2 and again.out.count("ddp sigkill: ") == 0 and again.row("DDP")


def test_real_quality(bench: Bench, tmp_path: Path) -> None:
    words = ("--job", "ddp", "--fault", "sigkill", "--steps", 500, "--out", tmp_path)
    assert "1 of 1, 0 min left: ddp, sigkill: " in bench("real_quality", *words, status=(0,)).out
    assert json.loads((tmp_path / "ddp-sigkill" / "truth.json").read_text())["victims"] == [1]
    told = bench("real_quality", *words, status=(0,)).out
    assert "1 of 1" not in told and bench("real_quality", *words, "--again", status=(0,)).out == told
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    result = json.loads(line)
    assert result["worth"] and result["steps"] and [one["ranks"] for one in result["named"]] in ([], [[1]])


def test_soak(bench: Bench, tmp_path: Path) -> None:
    ended = bench("soak", "--minutes", 0.1, "--without-kubernetes", "--report", tmp_path / "soak.md", seconds=400)
    assert " faults in 0.1 minutes: agent killed 1, rank killed 1." in ended.out and ended.row("collector")
    assert (tmp_path / "soak.svg").read_text().startswith("<svg") and ended.status == 0, ended


def test_laggard_bench_is_made_checked_and_scored(bench: Bench, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    bench("laggard_bench/make", "--seed", 2, "--count", 1, "--out", cases, status=(0,))
    assert bench("laggard_bench/validate", cases, status=(0,)).out == ""
    scored = bench("laggard_bench/score", cases, BENCH / "laggard_bench" / "laggard_entry.py", "--format", "json")
    assert json.loads(scored.out)["cases"] == 1 and scored.status == 0


def test_laggard_bench_is_the_one_that_was_frozen(bench: Bench) -> None:
    assert bench("laggard_bench/freeze", status=(0,)).out == ""
