"""The sentences of the agent's page."""

from __future__ import annotations

import pytest

from laggard.agent.web.page import headline, ranks_summary
from laggard.model import Finding, Fix, ProbeResult, Report, Severity, Verdict
from laggard.wire.ranks import RanksDocument, RejectedFiles


def report(verdict: Verdict, *findings: Finding) -> Report:
    probes = (ProbeResult("clock", verdict, "no clock", 0.1), ProbeResult("disks", Verdict.OK, "", 0.1))
    return Report(verdict, "n0", 0.1, probes, findings, {})


def finding(severity: Severity, code: str = "DISK_FULL") -> Finding:
    return Finding(code, severity, "/", "is full", {}, Fix("Empty it."), "docs/findings/DISK_FULL.md")


@pytest.mark.parametrize(
    ("given", "expected"),
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
def test_the_headline(given: Report, expected: str) -> None:
    assert headline("n0", given) == expected


def test_the_summary_of_the_ranks() -> None:
    assert ranks_summary(RanksDocument("n0", "", 0.0, (), ())) == "No rank trains here."
    rejected = (RejectedFiles("truncated", 2, "x.rank"),)
    assert (
        ranks_summary(RanksDocument("n0", "", 0.0, (), rejected)) == "0 ranks of 0 jobs run here, 2 rank files ignored."
    )
