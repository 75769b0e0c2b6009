"""The smallest run of each benchmark: it ends, leaves nothing behind, and measures what it says that it measures.

How long things take is not judged: the machine may be busy. That a figure is there and possible is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from common.smallest import Ended

Bench = Callable[..., Ended]

pytestmark = [pytest.mark.slow, pytest.mark.apart, pytest.mark.timeout(420)]


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
