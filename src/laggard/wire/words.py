"""A node's report in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from laggard.kit.parts import Line, Part, Table
from laggard.kit.words import ascii_line, counted
from laggard.model import SEVERITIES, Finding, ProbeResult, Report, Severity, Verdict

HEADLINE_LENGTH: Final = 80
_MAX_ANSWER_CHARACTERS: Final = 1000
_MAX_REASONS: Final = 4
_VERDICT_ORDER: Final = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.OK, Verdict.SKIPPED)
_PROBE_STYLES: Final = {Verdict.FAIL: "critical", Verdict.UNKNOWN: "warning", Verdict.OK: "", Verdict.SKIPPED: "aside"}


def render(report: Report, age_seconds: float | None = None, verbose: bool = False) -> str:
    """Returns the report as text: the headline, the node with its verdict, a line for each finding, a line for each
    probe, but one for all that were skipped, unless `verbose`. `age_seconds`: of a report that the agent had ready;
    None for a new one."""
    skipped = [] if verbose else [probe for probe in report.probes if probe.verdict is Verdict.SKIPPED]
    lines = [headline(report, age_seconds), f"node {report.node} {report.verdict.value}"]
    lines += [finding_line(finding) for finding in by_severity(report.findings)]
    lines += [_probe_line(probe) for probe in report.probes if probe not in skipped]
    lines += [_skipped_line(skipped)] if skipped else []
    return "".join(f"{ascii_line(line)}\n" for line in lines)


def report_parts(report: Report, age_seconds: float | None = None, verbose: bool = False) -> list[Part]:
    """The same for a terminal: the whole answer, each finding in lines of its own, and what the probes did: of those
    that passed or were skipped the names, or with `verbose` a table of all."""
    parts: list[Part] = [Line(headline(report, age_seconds, _MAX_ANSWER_CHARACTERS), report.verdict.value)]
    for found in by_severity(report.findings):
        parts += [Line(""), *_finding_lines(found)]
    if report.probes:
        parts += [Line(""), *([_table(report.probes)] if verbose else _probe_lines(report.probes))]
    return [part._replace(text=ascii_line(part.text)) if isinstance(part, Line) else part for part in parts]


def headline_line(report: Report, age_seconds: float | None = None) -> Line:
    return Line(headline(report, age_seconds), report.verdict.value)


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


def headline(report: Report, age_seconds: float | None = None, longest: int = HEADLINE_LENGTH) -> str:
    """The answer in `longest` characters of ASCII at most, as `laggard: GPU_LOST GPU 3 does not answer`, or, where a
    user has caused it, `laggard: user: DISK_FULL / 99 % used, 1.2 GiB left`."""
    serious = by_severity(finding for finding in report.findings if finding.severity is not Severity.INFO)
    if report.verdict is Verdict.OK:
        return fit_headline(
            f"ok, {_probe_counts(report)} {_when(report, age_seconds)}", _warnings_suffix(serious), longest
        )
    if serious and report.verdict is Verdict.FAIL:
        first = serious[0]
        alike = sum(it.severity is first.severity for it in serious)  # a warning drains nobody, and is no reason
        whose = "user: " if is_of_user(first) else ""
        return fit_headline(f"{whose}{first.code} {first.device} {first.summary}", more_suffix(alike - 1), longest)
    unknown = [probe for probe in report.probes if probe.verdict is Verdict.UNKNOWN]
    if unknown:
        return fit_headline(f"unknown, {_reason_with_name(unknown[0])}", more_suffix(len(unknown) - 1), longest)
    return fit_headline(f"unknown, nothing was judged: {counted(len(report.probes), 'probe')} skipped", "", longest)


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
        f"{finding.severity.value} {finding.code} {finding.device} {finding.summary}"
        f" | evidence: {evidence} | fix: {finding.fix.text}{commands}"
        f" | laggard findings explain {finding.code}"
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


def _skipped_line(probes: Iterable[ProbeResult]) -> str:
    """The number of probes that had nothing to judge, and why, as `34 skipped: no NVIDIA GPU (33), no NVMe drive
    (nvme)`."""
    alike: dict[str, list[str]] = {}
    for probe in probes:
        alike.setdefault(probe.reason or "no reason given", []).append(probe.name)
    most = sorted(alike.items(), key=lambda item: -len(item[1]))
    told = [f"{reason} ({names[0] if len(names) == 1 else len(names)})" for reason, names in most[:_MAX_REASONS]]
    more = ["..."] if len(most) > _MAX_REASONS else []
    return f"{sum(map(len, alike.values()))} skipped: {', '.join(told + more)}"


def _probe_line(probe: ProbeResult) -> str:
    reason = f"  {probe.reason}" if probe.reason else ""
    return f"probe {probe.name:<8} {probe.verdict.value:<7} {probe.elapsed_seconds:.3f} s{reason}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
