"""The page at `/`: the node's state in one sentence, then the findings. Text that was read from anywhere is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

from laggard.kit import http_message as security_headers
from laggard.kit.words import counted
from laggard.model import Finding, ProbeResult, Report, Severity, Verdict
from laggard.wire.ranks import RanksDocument

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; line-height: 1.3; }
h2 { font-size: 1rem; margin-top: 2rem; }
li { margin: .4rem 0; }
code { overflow-wrap: anywhere; }
footer { margin-top: 3rem; opacity: .7; font-size: .875rem; }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS: Final = security_headers.page(f"style-src 'sha256-{_HASH}'")
"""The page's style is in the page itself, and is all that it may load."""

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>laggard: $node</title>
<style>$style</style>
<h1>$headline</h1>
<p>$ranks</p>
$sections
<h2>More</h2>
<ul>
<li><a href="/metrics">/metrics</a> for Prometheus</li>
<li><a href="/api/v1/report">/api/v1/report</a>: what the probes found</li>
<li><a href="/api/v1/ranks">/api/v1/ranks</a>: the ranks that train here</li>
<li><a href="/-/healthy">/-/healthy</a>, <a href="/-/ready">/-/ready</a></li>
</ul>
<footer>laggard agent $version on $node</footer>
</html>
""")

_MAX_LISTED: Final = 50


def render(node: str, ranks: RanksDocument, report: Report, version: str) -> str:
    unknown = [probe for probe in report.probes if probe.verdict is Verdict.UNKNOWN]
    sections = [
        _section("Findings", [_finding(finding) for finding in report.findings]),
        _section("Could not tell", [_probe(probe) for probe in unknown]),
    ]
    return _PAGE.substitute(
        node=escape(node),
        style=_STYLE,
        headline=escape(headline(node, report)),
        ranks=escape(ranks_summary(ranks)),
        sections="\n".join(filter(None, sections)),
        version=escape(version),
    )


def headline(node: str, report: Report) -> str:
    """Returns the node's state in one sentence."""
    if report.verdict is Verdict.FAIL:
        return f"{node} is not fit for training{_worst_finding(report.findings)}."
    if report.verdict is not Verdict.OK:
        reason = next((it.reason for it in report.probes if it.verdict is Verdict.UNKNOWN), "no probe applies")
        return f"{node}: could not tell; {reason}."
    passed = counted(sum(probe.verdict is Verdict.OK for probe in report.probes), "probe")
    warnings = sum(finding.severity is Severity.WARNING for finding in report.findings)
    if warnings:
        return f"{node} can train, with {counted(warnings, 'warning')} from {passed}."
    return f"{node}: {passed} found nothing wrong."


def _worst_finding(findings: Sequence[Finding]) -> str:
    """Names the first critical finding, else the first, in the order of the probes."""
    ranked = sorted(findings, key=lambda finding: finding.severity is not Severity.CRITICAL)
    more = f", and {len(ranked) - 1} more" if len(ranked) > 1 else ""
    return f": {ranked[0].code} ({ranked[0].device}){more}" if ranked else ""


def ranks_summary(ranks: RanksDocument) -> str:
    states = Counter(row.state for row in ranks.ranks)
    rejected = sum(it.count for it in ranks.ignored)
    jobs = len({(row.owner, row.job_id) for row in ranks.ranks if row.state == "running"})
    parts = [f"{counted(states['running'], 'rank')} of {counted(jobs, 'job')} run here"]
    parts += [f"{states['died']} died"] if states["died"] else []
    parts += [f"{states['finished']} finished"] if states["finished"] else []
    parts += [f"{counted(rejected, 'rank file')} ignored"] if rejected else []
    return (", ".join(parts) if ranks.ranks or rejected else "No rank trains here") + "."


def _finding(finding: Finding) -> str:
    commands = "".join(f"<br><code>{escape(command)}</code>" for command in finding.fix.commands)
    what = (
        f"<b>{escape(finding.code)}</b> ({finding.severity.value}) {escape(finding.device)}: {escape(finding.summary)}"
    )
    return f"{what}<br>{escape(finding.fix.text)}{commands}"


def _probe(probe: ProbeResult) -> str:
    return f"<b>{escape(probe.name)}</b>: {escape(probe.reason)}"


def _section(title: str, items: Iterable[str]) -> str:
    lines = "\n".join(f"<li>{item}</li>" for item in list(items)[:_MAX_LISTED])
    return f"<h2>{title}</h2>\n<ul>\n{lines}\n</ul>" if lines else ""
