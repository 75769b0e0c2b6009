"""The agent vouches for a node only while its last round says all that a prolog would ask."""

import os
import time
from pathlib import Path

import pytest
from msgspec import structs
from support.rows import rows

from laggard.agent.gate.server import Question, WrongQuestion, parse_question
from laggard.agent.gate.serving import AcceptedFile, Now, Own, quick_answer
from laggard.agent.prober.known import stricter_probes, variant_names
from laggard.agent.prober.loop import ROUND, VARIANTS, ProbeRound
from laggard.agent.prober.process import split
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.probes.choose import choose_probes, fingerprint, gate_probes
from laggard.probes.profiles import PROFILES
from laggard.wire.accepted import Accepted, written

BOOT = "0f9a7c52-3f0e-4d5c-9c55-0a4b5d1f7e10"
OWN = Own("a" * 32, BOOT, frozenset({"disks", "gpu_busy", "gpu_count"}), frozenset({"gpu_busy"}), 90.0, True)
ASKED = Question("a" * 32, BOOT, 0, None, 5.0)
NOW = Now(uptime=1000.0, clock=50_000.0)
FIRST, SECOND = "0000:1b:00.0", "0000:43:00.0"


def found(code: str, severity: Severity, device: str = "/") -> Finding:
    return Finding(code, severity, device, "is bad", {}, Fix("mend it"), "docs/findings/DISK_FULL.md")


def report(*names: str, findings: tuple[Finding, ...] = (), verdict: Verdict = Verdict.OK) -> Report:
    results = tuple(ProbeResult(name, verdict, "", 0.1) for name in names)
    if findings:
        results = (*results[:-1], ProbeResult(names[-1], verdict, "", 0.1, tuple(range(len(findings)))))
    return Report(verdict, "n1", 0.1, results, findings, {"gpu_count": {"minors": {"0": FIRST, "1": SECOND}}})


GOOD = ProbeRound(report("disks", "gpu_count"), 49_990.0, True, report("gpu_busy"), 985.0, 990.0, 985.0)


def answered(latest: ProbeRound = GOOD, asked: Question = ASKED, now: Now = NOW, own: Own = OWN) -> tuple[str, str]:
    answer = quick_answer(asked, own, latest, now)
    return answer.line, answer.cure


def test_a_fresh_round_that_found_nothing_passes() -> None:
    assert answered() == ("PASS 10", "")


@pytest.mark.parametrize(
    ("latest", "asked", "now", "line", "cure"),
    [
        (GOOD, ASKED._replace(fingerprint="b" * 32), NOW, "CHECK version", ""),
        (GOOD, ASKED._replace(boot=BOOT.replace("0", "1")), NOW, "CHECK boot", ""),
        (GOOD._replace(complete=False), ASKED, NOW, "CHECK starting", ROUND),
        (GOOD._replace(finished_at=50_001.0), ASKED, NOW, "CHECK future", ROUND),
        (GOOD._replace(ended=1000.5), ASKED, NOW, "CHECK future", ROUND),
        (GOOD, ASKED, Now(1085.0, 50_000.0), "CHECK old", ROUND),
        (GOOD, ASKED, Now(1000.0, 50_085.0), "CHECK old", ROUND),
        (GOOD, ASKED._replace(newer=985), NOW, "CHECK changed", ROUND),
        (GOOD, ASKED._replace(newer=984), NOW, "PASS 10", ""),
        (GOOD._replace(report=report("gpu_count")), ASKED, NOW, "CHECK incomplete", ""),
        (GOOD._replace(variants=report("prober")), ASKED, NOW, "CHECK incomplete", ""),
    ],
    ids=["version", "boot", "starting", "future", "uptime", "old", "clock", "changed", "since", "lacks", "variants"],
)
def test_whatever_else_it_is_the_gate_looks(
    latest: ProbeRound, asked: Question, now: Now, line: str, cure: str
) -> None:
    assert answered(latest, asked, now) == (line, cure)


@pytest.mark.parametrize(
    ("severity", "device", "gpus", "line"),
    [
        (Severity.CRITICAL, "/", None, "CHECK critical"),
        (Severity.WARNING, "/", None, "PASS 10"),
        (Severity.CRITICAL, f"GPU 1 {SECOND}", None, "CHECK critical"),
        (Severity.CRITICAL, f"GPU 1 {SECOND}", frozenset({0}), "PASS 10"),
        (Severity.CRITICAL, f"GPU 1 {SECOND}", frozenset({1}), "CHECK critical"),
        (Severity.CRITICAL, f"GPU 1 {SECOND}", frozenset({0, 9}), "CHECK critical"),
        (Severity.CRITICAL, "/", frozenset({0}), "CHECK critical"),
    ],
)
def test_a_critical_finding_on_what_the_job_gets_does_not_pass(
    severity: Severity, device: str, gpus: frozenset[int] | None, line: str
) -> None:
    bad = GOOD._replace(report=report("gpu_count", "disks", findings=(found("DISK_FULL", severity, device),)))
    assert answered(bad, ASKED._replace(gpus=gpus))[0] == line


def test_where_the_gate_is_stricter_a_warning_counts_and_may_be_gone_in_a_moment() -> None:
    busy = report("gpu_busy", findings=(found("GPU_BUSY", Severity.WARNING, f"GPU 1 {SECOND}"),))
    assert answered(GOOD._replace(variants=busy)) == ("CHECK stricter", VARIANTS)
    assert answered(GOOD._replace(variants=busy), ASKED._replace(gpus=frozenset({0})))[0] == "PASS 10"


@pytest.mark.parametrize(
    ("of_users", "sees", "line"),
    [(0, True, "PASS 10"), (1, True, "CHECK stricter"), (0, False, "CHECK stricter"), (None, True, "CHECK stricter")],
)
def test_a_process_of_the_system_on_a_gpu_is_a_warning_in_a_prolog_too(
    of_users: int | None, sees: bool, line: str
) -> None:
    """As far as the agent can see whose processes are: else the gate, which is root, looks."""
    evidence = {} if of_users is None else {"of_users": of_users}
    service = structs.replace(found("GPU_BUSY", Severity.WARNING, f"GPU 1 {SECOND}"), evidence=evidence)
    busy = GOOD._replace(variants=report("gpu_busy", findings=(service,)))
    assert answered(busy, own=OWN._replace(sees_processes=sees))[0] == line


def test_what_root_accepts_keeps_no_prolog_waiting() -> None:
    disk = found("DISK_FULL", Severity.CRITICAL)
    bad = GOOD._replace(report=report("gpu_count", "disks", findings=(disk,)))
    stricter = GOOD._replace(variants=report("gpu_busy", findings=(disk,)))
    known = Accepted("DISK_FULL", 60_000.0, "a bigger one is ordered", "/")

    def answer(*accepted: Accepted, latest: ProbeRound = bad) -> str:
        return quick_answer(ASKED, OWN, latest, NOW, accepted).line

    assert answer(known) == answer(structs.replace(known, device="")) == "PASS 10"
    assert (answer(latest=stricter), answer(known, latest=stricter)) == ("CHECK stricter", "PASS 10")
    others = {"device": "/home"}, {"until": NOW.clock}, {"code": "DISK_FAILED"}
    assert {answer(structs.replace(known, **change)) for change in others} == {answer()} == {"CHECK critical"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose file it is")
def test_the_agent_shows_what_root_accepts_as_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "accepted.json"
    accepted = AcceptedFile(str(path))
    bad = report("disks", findings=(found("DISK_FULL", Severity.CRITICAL),), verdict=Verdict.FAIL)
    assert accepted.judged(bad, False) == bad
    path.write_bytes(written([Accepted("DISK_FULL", time.time() + 600, "ordered")]))
    shown = accepted.judged(bad, False)
    assert (shown.verdict, shown.findings[0].severity) == (Verdict.OK, Severity.WARNING)
    path.chmod(0o666)
    assert accepted.judged(bad, False) == bad == accepted.judged(bad, False), "anybody could have written it"
    assert [it.message for it in caplog.records if "nothing is accepted" in it.message] == [
        f"nothing is accepted on this node: {path} cannot be used: it is not root's alone to write: "
        "chown root, chmod go-w"
    ], "told once"


def test_a_warning_that_the_agent_has_itself_is_no_more_than_a_warning() -> None:
    low = (found("OPEN_FILES_LIMIT", Severity.WARNING, "slurmd"),)
    both = GOOD._replace(report=report("gpu_count", "disks", findings=low), variants=report("gpu_busy", findings=low))
    assert answered(both)[0] == "PASS 10"
    critical = (found("OPEN_FILES_LIMIT", Severity.CRITICAL, "slurmd"),)
    assert answered(both._replace(variants=report("gpu_busy", findings=critical)))[0] == "CHECK stricter"


def test_what_is_unknown_rejects_no_job() -> None:
    assert answered(GOOD._replace(report=report("disks", "gpu_count", verdict=Verdict.UNKNOWN)))[0] == "PASS 10"


def test_variants_are_what_a_prolog_judges_otherwise_and_are_no_part_of_the_agents_report() -> None:
    own = choose_probes(PROFILES["periodic"], (), ("disks",), "periodic")
    assert variant_names(own) == {"gpu_busy", "limits", "disks"}
    assert variant_names(gate_probes()) == set()
    results = (
        ProbeResult("limits", Verdict.OK, "", 0.1, (1,)),
        ProbeResult("gate:limits", Verdict.FAIL, "", 0.1, (0, 2)),
    )
    findings = tuple(found(code, Severity.CRITICAL) for code in ("A", "B", "C"))
    whole = Report(Verdict.FAIL, "n1", 0.1, results, findings, {"limits": {"x": 1}, "gate:limits": {"x": 2}})
    agents, variants = split(whole)
    assert (agents.verdict, [it.code for it in agents.findings], agents.probes[0].findings) == (Verdict.OK, ["B"], (0,))
    assert (variants.verdict, [it.code for it in variants.findings]) == (Verdict.FAIL, ["A", "C"])
    assert (variants.probes[0].name, variants.probes[0].findings) == ("limits", (0, 1))
    assert (agents.facts, variants.facts) == ({"limits": {"x": 1}}, {"limits": {"x": 2}})
    assert {probe.name for probe in stricter_probes(own)} == {"gate:gpu_busy", "gate:limits", "gate:disks"}


def test_the_fingerprint_is_of_the_node_and_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = fingerprint("n1")
    assert len(mine) == 32 and mine == fingerprint("n1") != fingerprint("n2")
    monkeypatch.setattr("laggard.probes.choose.__version__", "0.0.1")
    assert fingerprint("n1") != mine
    monkeypatch.undo()
    limits = next(probe for probe in gate_probes() if probe.name == "disks")
    others = [probe for probe in gate_probes() if probe.name != "disks"]
    monkeypatch.setattr("laggard.probes.choose.gate_probes", lambda: (*others, limits))
    assert fingerprint("n1") != mine, "the same probes in another order is not the same laggard"


PATH = f"/gate/1/prolog/{'a' * 32}/{BOOT}/7/0,2-3/5000"


def test_a_question_is_a_path_of_a_fixed_form() -> None:
    assert parse_question(PATH) == Question("a" * 32, BOOT, 7, frozenset({0, 2, 3}), 5.0)
    assert parse_question(PATH.replace("0,2-3", "-")).gpus is None


@rows("agent/no_questions")
def test_anything_else_is_no_question(old: str, new: str) -> None:
    with pytest.raises(WrongQuestion):
        parse_question(PATH.replace(old, new))
