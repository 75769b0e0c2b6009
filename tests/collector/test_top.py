"""`laggard top`: its screen, and a terminal that shows it."""

import io
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.console import Console
from support.terminal import LONG, terminal

from laggard.collector.top_screen import STEPS, rank_means, screen
from laggard.collector.web.documents import HeatDocument, HeatRow, JobCounts, JobLine, SummaryDocument
from laggard.kit.constants import PHASES
from laggard.model import Culprit, Location, Verdict, Window
from laggard.wire.nodes import NodeRow, NodesDocument

Start = Callable[..., Any]


@pytest.mark.slow
def test_it_watches_until_it_is_interrupted(watching: Start, fake_agent: Start, make: Any) -> None:
    agent = fake_agent(make.node("n0", [0, 1], slow=1, world_size=2), make.report("n0"))
    collector = watching(agent)
    ours = ["env", "--default-signal=INT"]  # what a script starts in the background ignores it
    top = [sys.executable, "-m", "laggard", "top", "--collector", collector.url, "--interval", "0.2"]
    with terminal([*ours, *top]) as shown:
        shown.wait_for("Rank 1 on n0 is slow in forward")
        collector.stop()
        shown.wait_for("no collector answers at")
        shown.wait_for("Rank 1 on n0 is slow in forward")  # what it said last stays
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(timeout=LONG) == 1


def summary(culprits: Sequence[Culprit] = (), jobs: Sequence[JobLine] = (), **changes: Any) -> SummaryDocument:
    verdict = Verdict.FAIL if culprits else Verdict.OK
    location = Location(verdict, "train", 4, 4, Window(), None, tuple(culprits), ())
    values: dict[str, Any] = dict(version="0.1.0", age_seconds=2.0, interval_seconds=5.0, sentence="The answer.",
        evidence=(), notes=(), job="1000:train", jobs=tuple(jobs) or (job("train"),), location=location)  # fmt: skip
    return SummaryDocument(**{**values, **changes})


def job(name: str, running: bool = True) -> JobLine:
    return JobLine(f"1000:{name}", name, 1000, running, 4, Verdict.OK, "anna")


def heat(own: Sequence[float | None], node: str = "n", states: Sequence[str] = ()) -> HeatDocument:
    """A row for each rank that computes for so long in each of its last steps, and waits for what is left of a second;
    None: nothing is known of it. In the steps before it computed for longer."""
    rows = tuple(
        HeatRow(rank, rank, 1, f"{node}{rank}", None, states[rank] if states else "running") for rank in range(len(own))
    )
    seconds: dict[str, list[list[float | None]]] = {name: [[0.0] * (STEPS + 1) for _ in own] for name in PHASES}
    seconds["forward"] = [[None] * (STEPS + 1) if it is None else [9.0, *[it] * STEPS] for it in own]
    seconds["waited"] = [[None if it is None else 1.0 - it] * (STEPS + 1) for it in own]
    return HeatDocument("1000:train", "own", len(own), list(range(STEPS + 1)), rows, seconds, {}, None)


def node(name: str, state: str = "up", verdict: str = "ok", findings: Sequence[str] = (), reason: str = "") -> NodeRow:
    return NodeRow(f"http://{name}:1", name, state, reason, 1.0, verdict, tuple(findings), ())


def drawn(told: SummaryDocument, ranks: HeatDocument, *nodes: NodeRow, width: int = 100, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, _environ={})
    with console.capture() as captured:
        console.print(screen(told, ranks, NodesDocument(nodes), width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


def ranks_shown(lines: Sequence[str]) -> list[list[str]]:
    (head,) = (place for place, line in enumerate(lines) if line.startswith("rank "))
    return [line.split() for line in lines[head + 1 :] if line[:1].isdigit() and "■" in line]


def test_the_answer_stands_first_then_the_busiest_ranks_and_the_nodes_that_are_not_well() -> None:
    told = summary([Culprit("slow_compute", (2,))], todo=("look at n2",), evidence=("0.3 s longer",))
    lines = drawn(
        told, heat([0.2, 0.2, 0.5, None]), node("n1"), node("n2", verdict="fail", findings=["GPU_THROTTLED"]),
        node("n3", state="down", reason="no connection"),
    )  # fmt: skip
    assert lines[:3] == ["The answer.", "What to do: look at n2", "  0.3 s longer"] and "  As of 2 s ago" in lines
    shown = ranks_shown(lines)
    assert shown[0][:7] == ["2", "n2", "running", "0.50", "s", "0.50", "s"]
    assert [row[0] for row in shown] == ["2", "0", "1"], "of rank 3 no step is known"
    assert lines[-3:] == ["3 nodes, 2 not well:", "  n2 fail: GPU_THROTTLED", "  n3 down: no connection"]
    assert drawn(summary(), heat([0.2]), node("n1"))[-1] == "1 node, all well"


def test_a_rank_that_the_answer_calls_hung_is_not_said_to_run() -> None:
    for stopped, word in ((True, "stopped"), (False, "hung")):
        told = summary([Culprit("hung", (1,), stopped=stopped)])
        states = {row[0]: row[2] for row in ranks_shown(drawn(told, heat([0.2, 0.1, 0.3], states=["running"] * 3)))}
        assert states == {"0": "running", "1": word, "2": "running"}


def test_the_means_are_over_the_last_steps_and_the_longest_step_fills_the_bar() -> None:
    means = rank_means(heat([0.25, 0.75]))
    assert [(round(it.own, 6), round(it.waited, 6)) for it in means] == [(0.25, 0.75), (0.75, 0.25)]
    bars = [row[-1] for row in ranks_shown(drawn(summary(), heat([0.25, 0.75])))]
    assert len(bars[0]) == len(bars[1]) == 60, "both steps take a second"


def test_where_there_is_no_room_names_are_cut_and_nothing_else() -> None:
    ranks = heat([0.2] * 24, node="node-with-a-long-name.cluster.local-")
    for width in (60, 80):
        lines = drawn(summary(), ranks, node("n1"), width=width, height=20)
        assert max(map(len, lines)) <= width and len(lines) <= 20 + 1, "the legend may take another row"
        (head,) = (line.split() for line in lines if line.startswith("rank "))
        assert head == ["rank", "node", "state", "own", "waits", "a", "step"]
        assert all(row[2:7] == ["running", "0.20", "s", "0.80", "s"] for row in ranks_shown(lines))
        assert any(line.endswith(" less busy") for line in lines)


def test_of_other_jobs_those_that_run_are_named_and_those_that_ended_are_counted() -> None:
    jobs = [job("other"), job("train"), *(job(f"old{number}", running=False) for number in range(3))]
    lines = drawn(summary(jobs=jobs, counts=JobCounts(9, 2, 0, 9)), heat([0.2]))
    named = [line for line in lines if ": 4 ranks" in line]
    assert len(named) == 2 and named[0].startswith("> ") and "train" in named[0] and "other" in named[1]
    assert "  and 7 more jobs that ended: choose with --job" in lines
