"""How one agent stands with the collector: what it last said, and what is wrong with it where something is."""

from __future__ import annotations

import dataclasses

from laggard.collector.jobs.window import Windows
from laggard.collector.scrape.fetch import Failure
from laggard.collector.scrape.targets import Target
from laggard.model import Finding, Report, Verdict
from laggard.text.words import one_line
from laggard.wire import NodeRow, RanksDocument

_REASON_LETTERS = 200


@dataclasses.dataclass
class Agent:
    """`since`: up to where its steps were read, on its own clock. The `_at` times are the collector's, monotonic."""

    target: Target
    state: str = "waiting"
    reason: str = "not asked yet"
    since: float = 0.0
    boot_id: str | None = None
    node: str | None = None
    ranks: tuple[int, ...] = ()
    ignored: str = ""
    job_findings: tuple[Finding, ...] = ()
    seen_at: float | None = None
    report: Report | None = None
    report_at: float | None = None
    report_failure: str = ""

    @property
    def url(self) -> str:
        return self.target.url

    @property
    def name(self) -> str:
        return self.node or (self.report.node if self.report else self.url)

    def report_due(self, now: float, every_seconds: float) -> bool:
        return self.report_at is None or bool(self.report_failure) or now - self.report_at >= every_seconds

    def take_ranks(self, answer: RanksDocument | Failure, windows: Windows, now: float) -> None:
        if isinstance(answer, Failure):
            self.state, self.reason = answer.state, _short(answer.reason)
            return
        self.state, self.reason, self.seen_at, self.node = "up", "", now, answer.node
        self.ranks = tuple(sorted({row.rank for row in answer.ranks}))
        self.job_findings = answer.findings
        self.ignored = "; ".join(_short(f"{item.count} x {item.reason}") for item in answer.ignored[:3])
        if self.boot_id not in (None, answer.boot_id):
            # Rebooted: its clock began anew, so `since` asked for the wrong steps. The next round reads them all.
            windows.leave(self.url)
            self.since, self.boot_id = 0.0, answer.boot_id
            return
        self.since, self.boot_id = answer.next, answer.boot_id
        refused = windows.fold(self.url, answer, now)
        if refused:
            self.reason = f"{refused} of its ranks set aside: superseded, claimed by another agent, or too many"

    def take_report(self, answer: Report | Failure | None, now: float, keep_seconds: float) -> None:
        """None: it was not asked for. An old report is kept for a while: its findings explain more than nothing."""
        if isinstance(answer, Report):
            self.report, self.report_at, self.report_failure = answer, now, ""
        elif isinstance(answer, Failure):
            self.report_failure = _short(f"no report: {answer.reason}")
        if self.report_at is not None and now - self.report_at > keep_seconds:
            self.report = self.report_at = None
        if self.state == "up":
            self.reason = self.reason or self.report_failure

    def row(self, now: float) -> NodeRow:
        return NodeRow(
            url=self.url,
            node=self.node,
            state=self.state,
            reason=self.reason,
            last_seen_seconds=None if self.seen_at is None else round(now - self.seen_at, 1),
            verdict=self._verdict(),
            findings=tuple(dict.fromkeys(finding.code for finding in self.report.findings)) if self.report else (),
            ranks=self.ranks,
        )

    def _verdict(self) -> str | None:
        """A report from before the agent fell silent vouches for nothing."""
        if self.state == "waiting":
            return None
        fresh = self.report if self.state == "up" and not self.report_failure else None
        return fresh.verdict.value if fresh else Verdict.UNKNOWN.value


def _short(text: str) -> str:
    clean = one_line(text)
    return clean if len(clean) <= _REASON_LETTERS else clean[: _REASON_LETTERS - 3] + "..."
