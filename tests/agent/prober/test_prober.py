"""The prober and its rounds: whatever becomes of the helper, there is a report that says so."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from laggard.agent.prober.loop import Rounds
from laggard.agent.prober.process import MOST_BYTES, Prober, ProberError, prober_command
from laggard.agent.web.page import ranks_sentence, sentence
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.wire import RanksDocument, RejectedFiles

REPORT = (
    '{"verdict":"ok","node":"x","elapsed_seconds":0.1,"probes":[],"findings":[],"facts":{},"schema":"laggard.report/1"}'
)
ANSWERING = f"import sys\nfor line in sys.stdin: print({REPORT!r}, flush=True)"


Children = Callable[[], list[psutil.Process]]


@pytest.fixture
def children() -> Children:
    """Tells the processes that the test has started and not reaped. Tests before it may have left dead ones."""
    before = psutil.Process().children()
    return lambda: [child for child in psutil.Process().children() if child not in before]


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("import time; time.sleep(60)", "did not answer within 0.5 s and was killed"),
        ("input(); print('no report')", "is no report: JSON is malformed"),
        ("input(); print('{}')", "is no report: Object missing required field"),
        ("input(); raise SystemExit(3)", "the prober ended: exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "the prober ended: killed by signal 11"),
        ("import os, time; os.close(1); time.sleep(60)", "the prober ended: it closed its output"),
        (f"print('x' * {2 * MOST_BYTES})", f"more than {MOST_BYTES} bytes"),
    ],
)
def test_a_prober_without_a_report(children: Children, script: str, complaint: str) -> None:
    prober = Prober(python(script), "n0", 0.5)
    began = time.monotonic()
    with pytest.raises(ProberError, match=complaint):
        prober.ask()
    assert time.monotonic() - began < 2.0
    assert children() == []


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(ProberError, match="cannot start the prober: No such file or directory"):
        Prober(["/nowhere/python"], "n0", 0.5).ask()


def test_another_is_started_after_one_that_failed(children: Children, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"import os, sys\nif not os.path.exists({str(mark)!r}): open({str(mark)!r}, 'w'); sys.exit(1)\n{ANSWERING}"
    prober = Prober(python(script), "n0", 5.0)
    with pytest.raises(ProberError):
        prober.ask()
    assert prober.ask().node == "n0"  # the agent's word for this machine counts
    (child,) = children()
    assert prober.ask().verdict is Verdict.OK and children() == [child]
    prober.stop()
    assert children() == []
    with pytest.raises(ProberError, match="stopping"):
        prober.ask()


def test_the_real_one_ends_its_probes_with_itself(children: Children) -> None:
    prober = Prober(prober_command("periodic"), "n0", 20.0)
    assert {probe.name for probe in prober.ask().probes} >= {"limits", "clock", "disks"}
    began = time.monotonic()
    prober.stop()
    assert time.monotonic() - began < 1.0 and children() == []


def test_it_ends_with_its_input_in_the_middle_of_a_round() -> None:
    script = """
import time
from laggard.agent.prober import worker as prober
prober._end_with_the_agent()
print("up", flush=True)
try:
    time.sleep(60)
finally:
    print("probes ended", flush=True)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(python(script), stdin=pipe, stdout=pipe, text=True) as helper:
        assert helper.stdin is not None and helper.stdout is not None
        assert helper.stdout.readline() == "up\n"
        helper.stdin.write("round\n")  # a signal, too, but no reason to end
        helper.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            helper.wait(0.2)
        helper.stdin.close()
        assert helper.stdout.read() == "probes ended\n"
        assert helper.wait(2) == 0


def test_one_that_heeds_nothing_is_killed(children: Children) -> None:
    prober = Prober(python(f"{ANSWERING}\nimport time; time.sleep(60)"), "n0", 5.0)
    prober.ask()
    began = time.monotonic()
    prober.stop()
    assert time.monotonic() - began < 1.0 and children() == []


def report(verdict: Verdict, *findings: Finding) -> Report:
    probes = (ProbeResult("clock", verdict, "no clock", 0.1), ProbeResult("disks", Verdict.OK, "", 0.1))
    return Report(verdict, "n0", 0.1, probes, findings, {})


def test_rounds_until_one_is_complete() -> None:
    answers = [ProberError("it died"), RuntimeError("a defect"), report(Verdict.OK)]

    def ask() -> Report:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rounds = Rounds(ask, "n0", 0.05)
    assert rounds.latest.report.verdict is Verdict.UNKNOWN and not rounds.ready
    seen = []
    for _ in range(3):
        rounds._round()
        seen.append((rounds.latest.report.verdict, rounds.latest.report.probes[0].reason, rounds.ready))
    assert seen == [
        (Verdict.UNKNOWN, "it died", False),
        (Verdict.UNKNOWN, "a defect in laggard: RuntimeError('a defect')", False),
        (Verdict.OK, "no clock", True),
    ]


def finding(severity: Severity, code: str = "DISK_FULL") -> Finding:
    return Finding(code, severity, "/", "is full", {}, Fix("Empty it."), "docs/findings/DISK_FULL.md")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (report(Verdict.OK), "n0: 2 probes found nothing wrong."),
        (report(Verdict.OK, finding(Severity.WARNING)), "n0 can train, with 1 warning from 2 probes."),
        (report(Verdict.UNKNOWN), "n0: could not tell; no clock."),
        (report(Verdict.SKIPPED), "n0: could not tell; no probe applies."),
        (report(Verdict.FAIL), "n0 is not fit for training."),
        (
            report(Verdict.FAIL, finding(Severity.WARNING, "CLOCK_SKEW"), finding(Severity.CRITICAL)),
            "n0 is not fit for training: DISK_FULL (/), and 1 more.",
        ),
    ],
)
def test_the_sentence(given: Report, said: str) -> None:
    assert sentence("n0", given) == said


def test_the_sentence_about_ranks() -> None:
    assert ranks_sentence(RanksDocument("n0", "", 0.0, (), ())) == "No rank trains here."
    ignored = (RejectedFiles("truncated", 2, "x.rank"),)
    assert (
        ranks_sentence(RanksDocument("n0", "", 0.0, (), ignored)) == "0 ranks of 0 jobs run here, 2 rank files ignored."
    )
