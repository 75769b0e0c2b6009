"""Each probe keeps its own findings when reports are made, merged, and relieved of some findings."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from laggard.collector.scrape.validation import validate_report
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.probes.probe import finding
from laggard.probes.runner.report import (
    ProbeAnswer,
    build_report,
    drop_findings,
    fails,
    merge_reports,
    places_are_complete,
)
from laggard.probes.runner.worker import Observation
from laggard.wire import decode, encode
from laggard.wire.words import headline

TEXTS = st.text(alphabet="ab; \n", max_size=6)  # what a reason is put together with, and taken apart by

FINDINGS = st.builds(
    Finding,
    code=st.sampled_from(["GPU_XID", "GPU_ECC"]),
    severity=st.sampled_from(Severity),
    device=TEXTS,
    summary=TEXTS,
    evidence=st.just({}),
    fix=st.just(Fix("mend it")),
    doc=st.just("docs"),
)
OBSERVATIONS = st.builds(
    Observation,
    verdict=st.sampled_from([Verdict.OK, Verdict.UNKNOWN]),
    reason=TEXTS,
    findings=st.lists(FINDINGS, max_size=4).map(tuple),
)
ANSWERS = st.lists(OBSERVATIONS, min_size=1, max_size=5)


def made_of(observations: Sequence[Observation], warnings_fail: bool, name: str = "probe") -> Report:
    answers = [ProbeAnswer(f"{name} {number}", seen, 0.1) for number, seen in enumerate(observations)]
    return build_report(answers, node="n1", elapsed_seconds=0.1, facts={name: 1}, warnings_fail=warnings_fail)


def findings_of(result: ProbeResult, report: Report) -> list[Finding]:
    return [report.findings[place] for place in result.findings]


def found(device: str, watts: int, severity: Severity = Severity.WARNING, **evidence: object) -> Finding:
    return Finding("GPU_CLOCKS_LOW", severity, device, f"power limit {watts} W", dict(evidence), Fix(""), "docs")


def test_what_is_said_of_several_devices_is_one_warning() -> None:
    first, second = found("GPU 0 (0000:19:00.0)", 450), found("GPU 1 (0000:3b:00.0)", 448)
    critical, event = (
        found("GPU 2 (0000:4c:00.0)", 100, Severity.CRITICAL),
        found("GPU 3 (0000:5d:00.0)", 9, last_at=1.0),
    )
    again = found("GPU 0 (0000:19:00.0)", 449)
    seen = Observation(Verdict.OK, "", findings=(first, critical, second, event, again))
    joint, *others = made_of([seen], warnings_fail=False).findings
    assert joint.device == "GPU 0000:19:00.0, 0000:3b:00.0" and joint.summary == first.summary
    assert joint.evidence["devices"] == {first.device: first.summary, second.device: second.summary}
    assert others == [critical, event, again]


def test_names_that_are_no_gpus_are_listed() -> None:
    seen = Observation(Verdict.OK, "", findings=tuple(found(f"mlx5_{number}", 1) for number in (0, 10)))
    (joint,) = made_of([seen], warnings_fail=False).findings
    assert joint.device == "mlx5_0, mlx5_10"


def test_what_a_user_has_caused_is_told_so_and_after_the_nodes_own_faults() -> None:
    users = msgspec.structs.replace(found("/scratch", 1, Severity.CRITICAL), action="USER")
    nodes = found("GPU 0", 2, Severity.CRITICAL)
    alone = made_of([Observation(Verdict.OK, "", findings=(users,))], warnings_fail=False)
    both = made_of([Observation(Verdict.OK, "", findings=(users, nodes))], warnings_fail=False)
    assert headline(alone).startswith("laggard: user: GPU_CLOCKS_LOW /scratch")
    assert headline(both).startswith("laggard: GPU_CLOCKS_LOW GPU 0")


@given(ANSWERS, st.booleans())
def test_a_report_says_which_probe_found_what(observations: list[Observation], warnings_fail: bool) -> None:
    report = decode(encode(made_of(observations, warnings_fail)), Report)
    assert places_are_complete(report)
    for result, seen in zip(report.probes, observations, strict=True):
        assert findings_of(result, report) == list(seen.findings)
        assert bool(result.unknown) == (seen.verdict is Verdict.UNKNOWN)


@given(ANSWERS, ANSWERS, st.booleans())
def test_merged_reports_keep_each_probes_findings(
    first: list[Observation], second: list[Observation], warnings_fail: bool
) -> None:
    merged = merge_reports(made_of(first, warnings_fail), made_of(second, warnings_fail, "active"))
    assert places_are_complete(merged) and merged.facts == {"probe": 1, "active": 1}
    for result, seen in zip(merged.probes, [*first, *second], strict=True):
        assert findings_of(result, merged) == list(seen.findings)


@given(ANSWERS, st.booleans(), st.data())
def test_without_some_findings_a_report_is_as_if_they_had_not_been_made(
    observations: list[Observation], warnings_fail: bool, data: st.DataObject
) -> None:
    report = made_of(observations, warnings_fail)
    dropped = data.draw(st.sets(st.integers(0, len(report.findings))))
    left = drop_findings(report, dropped, warnings_fail)
    assert places_are_complete(left)
    for result, before, seen in zip(left.probes, report.probes, observations, strict=True):
        kept = [report.findings[place] for place in before.findings if place not in dropped]
        assert findings_of(result, left) == kept
        still_fails = any(fails(finding, warnings_fail) for finding in kept)
        assert result.verdict is (Verdict.FAIL if still_fails else seen.verdict)
        assert result.unknown == before.unknown


@given(ANSWERS, st.booleans())
def test_dropping_nothing_changes_nothing(observations: list[Observation], warnings_fail: bool) -> None:
    report = made_of(observations, warnings_fail)
    assert drop_findings(report, (), warnings_fail).probes == report.probes


def test_places_that_do_not_fit_the_findings_are_noticed() -> None:
    found = Finding("GPU_XID", Severity.CRITICAL, "GPU 0", "is ill", {}, Fix("mend it"), "docs")
    for places in ((), (1,), (-1,), (0, 0), (0, 1)):
        result = ProbeResult("gpu_xid", Verdict.FAIL, "", 0.1, places)
        assert not places_are_complete(Report(Verdict.FAIL, "n1", 0.1, (result,), (found,), {}))


def test_of_too_many_findings_the_worst_are_kept_and_long_texts_are_cut() -> None:
    def found(severity: Severity, device: str) -> Finding:
        return finding("GPU_XID", device, "s" * 9000, evidence={}, fix="mend it", severity=severity)

    notes = Observation(Verdict.OK, findings=tuple(found(Severity.INFO, "d" * 5000) for _ in range(600)))
    bad = Observation(Verdict.OK, findings=(found(Severity.WARNING, "w"), found(Severity.CRITICAL, "c")))
    report = validate_report(encode(made_of([notes, bad], False)))
    assert places_are_complete(report) and len(report.findings) == 512
    assert [it.device for it in findings_of(report.probes[1], report)] == ["w", "c"]
    assert report.verdict is Verdict.FAIL


def test_a_finding_has_no_control_characters() -> None:
    found = finding("DISK_FULL", "/home/\x1b[31m\nuser", "is full\x07 \u202e\x9b", evidence={}, fix="clear it")
    assert (found.device, found.summary) == (r"/home/\x1b[31m\nuser", r"is full\x07 \u202e\x9b")
