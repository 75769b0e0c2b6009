"""A recorded machine judged in the test's own process: what the gate says of it, without a process for each probe.

A recorded machine always answers, so that deadlines have nothing to do. tests/probes/test_machines.py compares this
judgement with the gate's, and the runner's tests own its processes.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from laggard import wire
from laggard.cli import main
from laggard.model import Report
from laggard.probes.choose import choose_probes
from laggard.probes.host.host import Host
from laggard.probes.probe import Probe
from laggard.probes.profiles import DEFAULT, find_profile
from laggard.probes.runner.report import ProbeAnswer, build_report
from laggard.probes.runner.runner import collect_facts
from laggard.probes.runner.state_file import HistoryStore
from laggard.probes.runner.worker import Observation, encode, observe
from support.materialise import expectation

Check = Callable[..., dict[str, Any]]


def probes_of(name: str) -> tuple[Probe, ...]:
    """The probes that the expectation of the machine `name` is about, as its profile has them."""
    expected = expectation(name)
    return choose_probes(find_profile(expected.get("profile", DEFAULT)), expected.get("only", ()), (), name)


def judge(root: Path, probes: Iterable[Probe], warnings_fail: bool = False) -> Report:
    """The report of the machine recorded in `root`."""
    return judge_host(Host(str(root)), probes, warnings_fail)


def judge_host(host: Host, probes: Iterable[Probe], warnings_fail: bool = False) -> Report:
    """The same through a Host of any kind. What each probe observed travels as JSON, as from its process."""
    host.run = lambda probes, deadline_seconds: judge_host(host, probes)
    store = HistoryStore(host)
    answers = []
    for probe in probes:
        host.counter_history = store.history(probe.name)
        answers.append(ProbeAnswer(probe.name, wire.decode(encode(observe(probe, host)), Observation), 0.0))
    facts = collect_facts(answers, store)
    return build_report(answers, node=host.node(), elapsed_seconds=0.0, facts=facts, warnings_fail=warnings_fail)


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`laggard healthcheck` judges in the test's own process. To fork a process of the tests takes longer than a probe:
    its hundred megabytes have to be mapped anew."""

    def run(host: Host, probes: Iterable[Probe], *, deadline_seconds: float, warnings_fail: bool = False) -> Report:
        return judge_host(host, probes, warnings_fail)

    monkeypatch.setattr("laggard.gate.measure.run", run)


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs `laggard healthcheck` on the machine recorded in a folder: its report, with the exit status as `status`.
    `only`: the names of the probes that run, if not all do."""

    def run(root: Path, only: str = "", *words: str) -> dict[str, Any]:
        chosen = [word for name in only.split() for word in ("--only", name)]
        capsys.readouterr()
        status = main(["healthcheck", "--host-root", str(root), "--format", "json", *chosen, *words])
        return {**json.loads(capsys.readouterr().out), "status": status}

    return run


def result_of(report: dict[str, Any]) -> dict[str, Any]:
    """That of the only probe which ran; the exit status is that of its verdict."""
    (result,) = report["probes"]
    assert report["status"] == {"ok": 0, "fail": 1, "unknown": 2, "skipped": 2}[result["verdict"]]
    return dict(result)
