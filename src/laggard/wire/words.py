"""A node's report in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from laggard.kit.parts import Line, Part, Table
from laggard.kit.words import ascii_line, counted
from laggard.model import SEVERITIES, Finding, ProbeResult, Report, Severity, Verdict

HEADLINE_LENGTH: Final = 80
_MAX_ANSWER_CHARACTERS: Final = 1000
_VERDICT_ORDER: Final = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.OK, Verdict.SKIPPED)
_PROBE_STYLES: Final = {Verdict.FAIL: "critical", Verdict.UNKNOWN: "warning", Verdict.OK: "", Verdict.SKIPPED: "aside"}


def render(report: Report, age_seconds: float | None = None, verbose: bool = False) -> str:
    """Returns the report as text: the headline, a line for each finding and for what could not be told. It is the same
    on each node that is alike, so that `clubak -b` and `sort | uniq -c` fold it. With `verbose` it has times, evidence,
    what to do, and a line for each probe. `age_seconds`: of a report that the agent had ready."""
    found, lines = by_severity(report.findings), [headline(report, _when(report, age_seconds) if verbose else "")]
    if verbose:
        lines += [f"node {report.node} {report.verdict.value}", *map(finding_line, found)]
        lines += map(_probe_line, report.probes)
    else:
        lines += [f"{_named(each)} | laggard findings explain {each.code}" for each in found]
        lines += [each.text for each in _probe_lines(_unknown(report))]
    return "".join(f"{ascii_line(line)}\n" for line in lines)


def report_parts(report: Report, age_seconds: float | None = None, verbose: bool = False) -> list[Part]:
    """The same for a terminal: the whole answer, each finding in lines of its own, and what the probes did: of those
    that passed or were skipped the names, or with `verbose` a table of all."""
    when = _when(report, age_seconds) if verbose else ""
    parts: list[Part] = [Line(headline(report, when, _MAX_ANSWER_CHARACTERS), report.verdict.value)]
    for found in by_severity(report.findings):
        parts += [Line(""), *_finding_lines(found)]
    if report.probes:
        parts += [Line(""), *([_table(report.probes)] if verbose else _probe_lines(report.probes))]
    return [part._replace(text=ascii_line(part.text)) if isinstance(part, Line) else part for part in parts]


def _table(probes: Iterable[ProbeResult]) -> Table:
    rows = tuple((it.name, it.verdict.value, f"{it.elapsed_seconds:.3f} s", ascii_line(it.reason)) for it in probes)
    return Table(("probe", "verdict", "took", ""), rows, right=frozenset({"took"}))


def _probe_lines(probes: Iterable[ProbeResult]) -> Iterator[Line]:
    """A line for each verdict with each reason, with the names of the probes that have it."""
    alike: dict[tuple[Verdict, str], list[str]] = {}
    for probe in sorted(probes, key=lambda probe: _VERDICT_ORDER.index(probe.verdict)):
        alike.setdefault((probe.verdict, probe.reason), []).append(probe.name)
    for (verdict, reason), names in alike.items():
        yield Line(f"{verdict.value} {', '.join(names)}" + (f": {reason}" if reason else ""), _PROBE_STYLES[verdict])


def _finding_lines(found: Finding) -> Iterator[Line]:
    severity = found.severity.value
    yield Line(f"{severity} {found.code}: {found.device} {found.summary}", severity)
    yield Line(f"  What to do: {found.fix.text}" + (f" [{found.action}]" if found.action else ""))
    yield from (Line(f"      {command}", whole=True) for command in found.fix.commands)
    if found.evidence:
        yield Line("  Evidence: " + ", ".join(f"{name}={_value(value)}" for name, value in found.evidence.items()))
    yield Line("  More:", command=f"laggard findings explain {found.code}")


def headline(report: Report, when: str = "", longest: int = HEADLINE_LENGTH) -> str:
    """The answer in `longest` characters of ASCII at most, as `laggard: GPU_LOST GPU 3 does not answer`, or, where a
    user has caused it, `laggard: user: DISK_FULL / 99 % used, 1.2 GiB left`. `when`: how long it took, or is ago."""
    serious = by_severity(finding for finding in report.findings if finding.severity is not Severity.INFO)
    if report.verdict is Verdict.OK:
        counts = f"ok, {_probe_counts(report)}{' ' if when else ''}{when}"
        return fit_headline(counts, _warnings_suffix(serious), longest)
    if serious and report.verdict is Verdict.FAIL:
        first = serious[0]
        alike = sum(it.severity is first.severity for it in serious)  # a warning drains nobody, and is no reason
        whose = "user: " if is_of_user(first) else ""
        return fit_headline(f"{whose}{first.code} {first.device} {first.summary}", more_suffix(alike - 1), longest)
    if unknown := _unknown(report):
        return fit_headline(f"unknown, {_reason_with_name(unknown[0])}", more_suffix(len(unknown) - 1), longest)
    return fit_headline(f"unknown, nothing was judged: {counted(len(report.probes), 'probe')} skipped", "", longest)


def _unknown(report: Report) -> list[ProbeResult]:
    return [probe for probe in report.probes if probe.verdict is Verdict.UNKNOWN]


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sorts findings, the critical ones first, and of one severity those last that a user has caused."""
    return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), is_of_user(finding)))


def is_of_user(finding: Finding) -> bool:
    """Whether what a user has left on the node causes the finding, and no fault of the node."""
    return finding.action == "USER"


def fit_headline(answer: str, tail: str, longest: int = HEADLINE_LENGTH) -> str:
    """Returns `laggard: ANSWER` and `tail` in so many characters of ASCII. A long answer is cut, `tail` is not."""
    answer = ascii_line(f"laggard: {answer}")
    room = longest - len(tail)
    return (answer if len(answer) <= room else answer[: room - 3] + "...") + tail


def more_suffix(number: int) -> str:
    return f" (+{number} more)" if number else ""


def finding_line(finding: Finding) -> str:
    """Returns a finding as one line, with its evidence, its fix, and the command that shows its page."""
    evidence = ", ".join(f"{name}={_value(value)}" for name, value in finding.evidence.items())
    commands = f" [{'; '.join(finding.fix.commands)}]" if finding.fix.commands else ""
    return (
        f"{_named(finding)} | evidence: {evidence} | fix: {finding.fix.text}{commands}"
        f" | laggard findings explain {finding.code}"
    )


def _named(finding: Finding) -> str:
    return f"{finding.severity.value} {finding.code} {finding.device} {finding.summary}"


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
