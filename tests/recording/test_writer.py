"""`laggard locate --record`: what a collector holds of a live job, judged again from the file."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.collectors import rank_row
from support.steps import StepRow, step_table

from laggard.kit.constants import PHASES
from laggard.locate.job_timings import NodeFindings, Table, live_timings
from laggard.locate.verdict import locate
from laggard.model import RankEnd
from laggard.rankfile.fact_names import GROUPS
from laggard.recording.reader import read_recording
from laggard.recording.writer import JobRecording
from laggard.wire import encode
from laggard.wire.ranks import BeatRow, GroupProgress, InFlight, LaneProgress, RankRow

pytestmark = pytest.mark.slow  # real jobs and daemons


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "laggard", "locate", "--format", "json", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("slow", [2, None])
def test_a_recording_of_a_live_job_gets_the_same_verdict_as_the_job(
    fake_agent: Callable[..., Any], start_collector: Callable[..., Any], make: Any, tmp_path: Path, slow: int | None
) -> None:
    agents = [
        fake_agent(make.node(f"n{node}", (2 * node, 2 * node + 1), slow=slow), make.report(f"n{node}", codes))
        for node, codes in ((0, ()), (1, ("GPU_THROTTLED",)))
    ]
    collector = start_collector(*(word for agent in agents for word in ("--target", agent.address)))
    collector.wait_ready()
    live = run("--collector", collector.url, "--record", tmp_path / "held")
    again = run("--trace", tmp_path / "held")
    assert (again.returncode, json.loads(again.stdout)) == (live.returncode, json.loads(live.stdout))
    assert live.returncode == (0 if slow is None else 1)

    refused = run("--collector", collector.url, "--record", tmp_path / "held")
    assert refused.returncode == 64 and "is there already" in json.loads(refused.stdout)["error"]
    unknown = run("--collector", collector.url, "--record", tmp_path / "other", "--job", "no such")
    assert unknown.returncode == 64 and "no such job" in json.loads(unknown.stdout)["error"]
    assert not (tmp_path / "other").exists()


def test_findings_without_gpus_count_for_the_whole_machine(tmp_path: Path) -> None:
    rows = {rank: rank_row(rank, rows=(), gpu=f"GPU-{rank}") for rank in range(4)}
    lines = [encode(line) for line in JobRecording("j", rows, {}, {}, {}).lines()]
    lines.insert(1, b'{"kind":"findings","node":"n0","codes":["GPU_THROTTLED"]}')
    (tmp_path / "job.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (found,) = read_recording([tmp_path]).timings.findings_by_node.values()
    assert found == NodeFindings(("GPU_THROTTLED",), {}, ())


def test_record_and_trace_together_are_refused(tmp_path: Path) -> None:
    assert "leave out --trace" in run("--record", tmp_path, "--trace", tmp_path).stderr


names = st.sampled_from(("dp:0-3", "tp:0-1", "#0"))
ops, peers, counts = st.sampled_from(("all_reduce", "send", "recv")), st.integers(-1, 5), st.integers(0, 9)
flights = st.builds(InFlight, ops, names, st.integers(1, 9), st.floats(0, 500), peers)
lanes = st.lists(st.builds(LaneProgress, ops, names, counts, counts, peers), max_size=5)
groups = st.lists(
    st.builds(GroupProgress, names, st.integers(-1, 9), st.just(-1), st.integers(-1, 9), st.floats(0, 500))
)
asked_ages = st.none() | st.floats(0, 300)
beats = st.builds(
    BeatRow, st.floats(0, 300), st.just(1.0), st.just("on"), lanes.map(tuple), groups.map(tuple), asked_ages
)
ends = st.none() | st.builds(RankEnd, st.floats(1e9, 2e9), st.floats(0, 9), st.none() | st.integers(0, 255))
GPUS = ("GPU-0", "GPU-1")
gpus = st.sampled_from((None, *GPUS, "GPU-2", "MIG-0"))
STATES = ("running", "running", "died", "finished", "unknown")


@st.composite
def jobs(draw: Callable[..., Any]) -> tuple[dict[int, RankRow], dict[int, Table]]:
    newest_rows, steps, staged = {}, {}, draw(st.booleans())
    for rank in draw(st.sets(st.integers(0, 5), min_size=1)):
        count, slow = draw(st.integers(0, 40)), draw(st.sampled_from((0.0, 0.1)))
        own = (0.05, 0.02, 0.01, 0.0, 0.0, 0.0, 0.01)
        steps[rank] = step_table(
            StepRow(step, step * 0.25, step * 0.25 + 0.25, (0.01, 0.05 + slow, *own), 0.1 - slow, step)
            for step in range(count)
        )
        newest_rows[rank] = RankRow(
            "j", rank, 0, 6, f"n{rank // 2}", draw(gpus), 0, 0, 1, "", draw(st.sampled_from(STATES)), count, 1.0, 1.0,
            (0.0,) * len(PHASES), 1.0, (), draw(st.none() | flights), draw(st.sampled_from((None, "backward"))), 0,
            draw(st.booleans()), draw(st.none() | beats), end=draw(ends),
            facts={GROUPS: {f"pp:{rank % 2}-{rank % 2 + 4}/2": [rank % 2, 3, 2]}} if staged else {},
        )  # fmt: skip
    return newest_rows, steps


@given(jobs())
def test_any_job_gets_the_same_verdict_live_and_from_its_recording(
    tmp_path_factory: pytest.TempPathFactory, job: tuple[dict[int, RankRow], dict[int, Table]]
) -> None:
    newest_rows, steps = job
    of_gpus = {"GPU_THROTTLED": ("GPU-0",), "GPU_XID": ("",), "GPU_SLOW": ("?",)}
    findings = {"n0": NodeFindings((*of_gpus, "CPU_GOVERNOR"), of_gpus, GPUS)}
    asked = {rank: 0.25 * rank for rank in newest_rows}
    folder = tmp_path_factory.mktemp("held")
    lines = (encode(line) + b"\n" for line in JobRecording("j", newest_rows, steps, findings, asked).lines())
    (folder / "job.jsonl").write_bytes(b"".join(lines))
    recorded = read_recording([folder]).timings
    held = live_timings("j", 6, steps, newest_rows, findings, asked)
    live = dataclasses.replace(held, first_phases=recorded.first_phases)  # as collector/jobs/job.py keeps them
    assert locate(recorded) == locate(live)


def test_a_recording_of_a_live_job_tells_a_process_that_was_stopped_from_one_that_was_killed(tmp_path: Path) -> None:
    beat = BeatRow(0.2, 1.0, "off", (LaneProgress("all_reduce", "dp:0-3", 9, 8),), ())
    waiting = InFlight("all_reduce", "dp:0-3", 9, 30.0)
    silent = BeatRow(30.0, 1.0, "off", (LaneProgress("all_reduce", "dp:0-3", 8, 8),), ())

    def row(rank: int, **changes: Any) -> RankRow:
        values = {"state": "running", "in_flight": waiting, "stopped": False, "beat": beat, "end": None, **changes}
        return RankRow(
            "j", rank, 0, 3, "n0", None, 0, 0, 1, "", values["state"], 20, 1.0, 1.0, (0.0,) * len(PHASES), 1.0, (),
            values["in_flight"], "backward", 0, values["stopped"], values["beat"], end=values["end"],
        )  # fmt: skip

    stopped = row(1, in_flight=None, stopped=True, beat=silent)
    killed = row(1, in_flight=None, state="died", beat=silent, end=RankEnd(1.8e9, 0.05, signal="SIGKILL"))
    for culprit_row, kind, is_stopped, signal in ((stopped, "hung", True, None), (killed, "dead", False, "SIGKILL")):
        rows = {0: row(0), 1: culprit_row, 2: row(2)}
        steps = {
            rank: step_table(StepRow(n, n * 0.25, n * 0.25 + 0.25, (0.02,) * len(PHASES), 0.0) for n in range(20))
            for rank in rows
        }
        lines = JobRecording("j", rows, steps, {}, {}).lines()
        (folder := tmp_path / kind).mkdir()
        (folder / "job.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
        (culprit,) = locate(read_recording([folder]).timings).culprits
        assert (culprit.kind, culprit.ranks, culprit.stopped) == (kind, (1,), is_stopped)
        assert (culprit.end.signal if culprit.end else None) == signal
