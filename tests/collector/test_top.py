"""`laggard top` on a real collector: drawn once, and on a terminal until it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.terminal import LONG, terminal

from laggard.wire.ranks import BeatRow

pytestmark = pytest.mark.slow  # a collector for each test

Start = Callable[..., Any]
UUID = "03323151-ff7e-41d6-958e-23a6d3593d8b"
TOP = [sys.executable, "-m", "laggard", "top"]


def collect(start_collector: Start, *targets: str) -> Any:
    flags = [word for target in targets for word in ("--target", target)]
    collector = start_collector(*flags, "--interval", "0.3", "--config", "/dev/null")
    collector.wait_ready()
    return collector


def run(command: list[str], columns: int = 120) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG, env=environ)


def once(*words: str, columns: int = 120) -> subprocess.CompletedProcess[str]:
    return run([*TOP, "--once", *words], columns)


def test_the_slow_rank_is_named_first_and_stands_first(start_collector: Start, fake_agent: Start, make: Any) -> None:
    job = {"job_id": UUID, "owner": 0, "facts": {"script": "finetune.py", "started": 1_764_054_240.0}}
    agents = [
        fake_agent(make.node("n0", [0, 1], slow=2, **job), make.report("n0")),
        fake_agent(make.node("n1", [2, 3], slow=2, **job), make.report("n1", ["GPU_THROTTLED"])),
    ]
    collector = collect(start_collector, *(agent.address for agent in agents))
    drawn = once("--collector", collector.url)
    assert (drawn.returncode, drawn.stderr) == (1, "")
    lines = [line.rstrip() for line in drawn.stdout.splitlines()]
    assert lines[0].startswith("Rank 2 on n1 is slow in forward: fixing it would save ")
    assert any(line.startswith("What to do: ") for line in lines)
    (header,) = (place for place, line in enumerate(lines) if line.startswith("rank "))
    ranks = [line.split() for line in lines[header + 1 : header + 5]]
    assert sorted(words[0] for words in ranks) == ["0", "1", "2", "3"]
    assert ranks[0][:7] == ["2", "n1", "running", "0.25", "s", "0", "ms"], ranks[0]
    assert lines[-2:] == ["2 nodes, 1 not well:", "  n1 fail: GPU_THROTTLED"]
    assert max(map(len, lines)) <= 120, "wrapped to the terminal's width"
    located = run([sys.executable, "-m", "laggard", "locate", "--collector", collector.url])
    for shown in (drawn, located):
        said = " ".join(shown.stdout.split())
        assert f"Job finetune.py of user root, started 2025-11-25 07:04 UTC, `--job {UUID}`" in said, "not by a number"
    narrow = [line.rstrip() for line in once("--collector", collector.url, columns=60).stdout.splitlines()]
    assert max(map(len, narrow)) <= 60
    (busiest,) = (line.split() for line in narrow if line.startswith("2  "))
    assert busiest[:5] == ["2", "n1", "running", "0.25", "s"], "names and times whole, the bar as long as there is room"


def test_a_stopped_rank_is_not_said_to_run(start_collector: Start, fake_agent: Start, make: Any) -> None:
    rows = [make.step_row(step) for step in range(60)]
    beat = BeatRow(30.0, 1.0, "absent", (), ())
    ranks = [make.rank_row(0, 2, rows), make.rank_row(1, 2, rows, stopped=True, beat=beat)]
    agent = fake_agent(make.ranks_document("n0", ranks), make.report("n0"))
    other = fake_agent(make.node("n1", [0, 1], world_size=2, job_id="job-2"), make.report("n1"))
    collector = collect(start_collector, agent.address, other.address)
    drawn = once("--collector", collector.url.removeprefix("http://"), "--job", "job-1").stdout
    assert drawn.startswith("Rank 1 on n0 is hung, stopped by a signal or a debugger")
    states = dict(line.split()[:3:2] for line in drawn.splitlines() if line.startswith(("0 ", "1 ")))
    assert states == {"0": "running", "1": "stopped"}
    nobody = once("--collector", collector.url, "--job", "nobodys").stdout
    assert "no job nobodys is known" in nobody and "\nrank " not in nobody
    located = run([sys.executable, "-m", "laggard", "locate", "--collector", collector.url]).stdout.splitlines()
    shown = next(line for line in located if line.startswith("  Job "))
    others = located[located.index(shown) + 1 :]
    named = {"job-1": "job-2", "job-2": "job-1"}[shown.split()[1]]
    assert others[0] == "  1 more job that runs, choose with --job:" and others[1].startswith(f"    --job {named}: ")


def test_in_80_columns_the_headers_are_whole_and_jobs_that_ended_take_a_line(
    start_collector: Start, fake_agent: Start, make: Any
) -> None:
    rows = [make.step_row(step) for step in range(40)]
    named = {"node": "node-with-a-long-name-0.cluster.local", "job_id": "train"}
    ranks = [make.rank_row(rank, 24, rows, **named) for rank in range(24)]
    agents = [fake_agent(make.ranks_document(named["node"], ranks), make.report("n0"))]
    for number in range(4):
        old = [make.rank_row(rank, 2, rows, job_id=f"old-{number}", state="finished") for rank in range(2)]
        agents.append(fake_agent(make.ranks_document(f"m{number}", old), make.report(f"m{number}")))
    collector = collect(start_collector, *(agent.address for agent in agents))
    lines = [line.rstrip() for line in once("--collector", collector.url, columns=80).stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if line.startswith("rank ")] == [
        ["rank", "node", "state", "own", "waits", "a", "step"]
    ]
    assert "  and 4 more jobs that ended: choose with --job" in lines and not any("old-" in line for line in lines)
    located = run([sys.executable, "-m", "laggard", "locate", "--collector", collector.url]).stdout
    assert located.startswith("Job train of user ") and ": No rank is slow" in located, "named: there are others"


def test_it_watches_until_it_is_interrupted(start_collector: Start, fake_agent: Start, make: Any) -> None:
    agent = fake_agent(make.node("n0", [0, 1], slow=1, world_size=2), make.report("n0"))
    collector = collect(start_collector, agent.address)
    ours = ["env", "--default-signal=INT"]  # what a script starts in the background ignores it
    with terminal([*ours, *TOP, "--collector", collector.url, "--interval", "0.2"]) as shown:
        shown.wait_for("Rank 1 on n0 is slow in forward")
        collector.stop()
        shown.wait_for("no collector answers at")
        shown.wait_for("Rank 1 on n0 is slow in forward")  # what it said last stays
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(timeout=LONG) == 1


def test_where_there_is_nothing_to_show_it_says_why() -> None:
    nobody = once("--collector", "http://127.0.0.1:9")
    assert (nobody.returncode, nobody.stdout) == (64, "")
    assert nobody.stderr == (
        "laggard: no collector answers at http://127.0.0.1:9; start one, or name it with --collector\n"
    )
    often = once("--interval", "0")
    assert (often.returncode, often.stderr) == (64, "laggard: --interval 0: give seconds from 0.1 to 3600\n")
