"""A report as text. The first line is the answer, short enough for the reason of a SLURM drain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from laggard.model import Finding, ProbeResult, Report, Severity, Verdict
from laggard.terminal.parts import Line, Part, Table
from laggard.text.words import ascii_line, counted

HEADLINE_LENGTH: Final = 80
SEVERITY_ORDER: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


def render(report: Report, age_seconds: float | None = None) -> str:
    """Returns the report as text: the headline, a line for each finding, a line for each probe. `age_seconds`: of a
    report that the agent had ready; None for a new one."""
    lines = [headline(report, age_seconds)]
    lines += [finding_line(finding) for finding in by_severity(report.findings)]
    lines += [_probe_line(probe) for probe in report.probes]
    return "".join(f"{ascii_line(line)}\n" for line in lines)


def report_parts(report: Report, age_seconds: float | None = None) -> list[Part]:
    """The same for a terminal: each finding in lines of its own, and the probes as a table."""
    parts: list[Part] = [headline_line(report, age_seconds)]
    for found in by_severity(report.findings):
        parts += [Line(""), *_finding_lines(found)]
    if report.probes:
        rows = tuple((it.name, it.verdict.value, f"{it.elapsed_seconds:.3f} s", it.reason) for it in report.probes)
        parts += [Line(""), Table((), ("probe", "verdict", "took", ""), rows, right=frozenset({"took"}))]
    return [part._replace(text=ascii_line(part.text)) if isinstance(part, Line) else part for part in parts]


def headline_line(report: Report, age_seconds: float | None = None) -> Line:
    return Line(headline(report, age_seconds), report.verdict.value)


def _finding_lines(found: Finding) -> Iterator[Line]:
    severity = found.severity.value
    yield Line(f"{severity} {found.code}: {found.device} {found.summary}", severity)
    yield Line(f"  What to do: {found.fix.text}")
    yield from (Line(f"      {command}", whole=True) for command in found.fix.commands)
    if found.evidence:
        yield Line("  Evidence: " + ", ".join(f"{name}={_value(value)}" for name, value in found.evidence.items()))
    yield Line("  More:", command=f"laggard findings explain {found.code}")


def headline(report: Report, age_seconds: float | None = None) -> str:
    """The answer in at most 80 characters of ASCII, as `laggard: DISK_FULL / 99 % used, 1.2 GiB left (+1 more)`."""
    serious = by_severity(finding for finding in report.findings if finding.severity is not Severity.INFO)
    if report.verdict is Verdict.OK:
        return fit_headline(f"ok, {_probe_counts(report)} {_when(report, age_seconds)}", _warnings_suffix(serious))
    if serious and report.verdict is Verdict.FAIL:
        first = serious[0]
        return fit_headline(f"{first.code} {first.device} {first.summary}", more_suffix(len(serious) - 1))
    unknown = [probe for probe in report.probes if probe.verdict is Verdict.UNKNOWN]
    if unknown:
        return fit_headline(f"unknown, {_reason_with_name(unknown[0])}", more_suffix(len(unknown) - 1))
    return fit_headline(f"unknown, nothing was judged: {counted(len(report.probes), 'probe')} skipped", "")


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sorts findings, the critical ones first."""
    return sorted(findings, key=lambda finding: SEVERITY_ORDER.index(finding.severity))


def fit_headline(answer: str, tail: str) -> str:
    """Returns `laggard: ANSWER` and `tail` in HEADLINE_LENGTH characters of ASCII. A long answer is cut, `tail` is
    not."""
    answer = ascii_line(f"laggard: {answer}")
    room = HEADLINE_LENGTH - len(tail)
    return (answer if len(answer) <= room else answer[: room - 3] + "...") + tail


def more_suffix(number: int) -> str:
    return f" (+{number} more)" if number else ""


def finding_line(finding: Finding) -> str:
    """Returns a finding as one line, with its evidence, fix and page."""
    evidence = ", ".join(f"{name}={_value(value)}" for name, value in finding.evidence.items())
    commands = f" [{'; '.join(finding.fix.commands)}]" if finding.fix.commands else ""
    return (
        f"{finding.severity.value} {finding.code} {finding.device} {finding.summary}"
        f" | evidence: {evidence} | fix: {finding.fix.text}{commands} | {finding.doc}"
    )


def _probe_counts(report: Report) -> str:
    verdicts = [probe.verdict for probe in report.probes]
    skipped = verdicts.count(Verdict.SKIPPED)
    return f"{counted(verdicts.count(Verdict.OK), 'probe')} passed" + (f" and {skipped} skipped" if skipped else "")


def _when(report: Report, age_seconds: float | None) -> str:
    return f"in {report.elapsed_seconds:.2f} s" if age_seconds is None else f"{age_seconds:.0f} s ago (the agent)"


def _warnings_suffix(serious: list[Finding]) -> str:
    return f", {counted(len(serious), 'warning')}" if serious else ""


def _reason_with_name(probe: ProbeResult) -> str:
    return probe.reason if f"probe {probe.name}" in probe.reason else f"{probe.name}: {probe.reason}"


def _probe_line(probe: ProbeResult) -> str:
    reason = f"  {probe.reason}" if probe.reason else ""
    return f"probe {probe.name:<8} {probe.verdict.value:<7} {probe.elapsed_seconds:.3f} s{reason}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
