"""The state of one agent at the collector: its last answers, and what is wrong with it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter

import msgspec

from laggard.collector.jobs.window import JobWindows
from laggard.collector.scrape.fetch import FetchFailure
from laggard.collector.scrape.node_clock import NodeClock
from laggard.collector.scrape.targets import Target
from laggard.collector.scrape.validation import RanksAnswer
from laggard.model import Finding, Report, Verdict
from laggard.text.words import counted, printable_line
from laggard.wire.nodes import MAX_RING_NODES, MAX_RING_PAIRS, NodeRow, RingPairs
from laggard.wire.ranks import UnseenProcess
from laggard.wire.ras import RasSource

_MAX_REASON_CHARACTERS = 200


@dataclasses.dataclass
class AgentState:
    """`since` is up to where the agent's steps were read, on its own clock; `answered_at` and `report_at` are when it
    last answered and last gave a report, in seconds on the collector's monotonic clock. `state` is up, down, slow,
    garbage or waiting, and `reason` says what is wrong."""

    target: Target
    state: str = "waiting"
    reason: str = "not asked yet"
    since: float = 0.0
    boot_id: str | None = None
    node: str | None = None
    ranks: tuple[int, ...] = ()
    ignored: str = ""
    job_findings: tuple[Finding, ...] = ()
    answered_at: float | None = None
    ras: RasSource | None = None
    unseen: tuple[UnseenProcess, ...] = ()
    report: Report | None = None
    report_at: float | None = None
    report_failure: str = ""
    clock: NodeClock = dataclasses.field(default_factory=NodeClock)

    @property
    def url(self) -> str:
        return self.target.url

    @property
    def name(self) -> str:
        """The node's name, the agent's URL before it is known."""
        return self.node or (self.report.node if self.report else self.url)

    def report_due(self, now: float, interval_seconds: float) -> bool:
        return self.report_at is None or bool(self.report_failure) or now - self.report_at >= interval_seconds

    def update_ranks(
        self, answer: RanksAnswer | FetchFailure, windows: JobWindows, now: float, asked_at: float
    ) -> None:
        """Takes over what the agent, asked at `asked_at`, answered, and ingests its ranks into `windows`."""
        if isinstance(answer, FetchFailure):
            self.state, self.reason = answer.state, _short(answer.reason)
            return
        document = answer.document
        self.state, self.reason, self.answered_at, self.node = "up", "", now, document.node
        self.ranks = tuple(sorted({row.rank for row in document.ranks}))
        self.job_findings = document.findings
        self.ras, self.unseen = document.ras, document.unseen
        self.ignored = "; ".join(_short(f"{item.count} x {item.reason}") for item in document.ignored[:3])
        if self.boot_id not in (None, document.boot_id):
            # Rebooted: its clock began anew, so `since` asked for the wrong steps. The next round reads them all.
            windows.drop_source(self.url)
            self.since, self.boot_id = 0.0, document.boot_id
            return
        self.since, self.boot_id = document.next, document.boot_id
        if document.now is not None:
            wall = time.time()
            self.clock.observe(document.now, wall - (now - asked_at), wall)
            document = self.clock.on_ours(document)
        refused = windows.ingest(self.url, document, answer.steps, now, asked_at)
        if refused:
            reasons = ", ".join(f"{count} {refusal.value}" for refusal, count in refused.most_common())
            self.reason = f"{refused.total()} of its ranks not shown: {reasons}"

    def update_report(self, answer: Report | FetchFailure | None, now: float, keep_seconds: float) -> None:
        """Takes over the agent's report. `answer` is None where none was asked for. An old report is kept for
        `keep_seconds`: its findings explain more than nothing."""
        if isinstance(answer, Report):
            self.report, self.report_at, self.report_failure = answer, now, ""
        elif isinstance(answer, FetchFailure):
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
            last_seen_seconds=None if self.answered_at is None else round(now - self.answered_at, 1),
            verdict=self._verdict(),
            findings=tuple(dict.fromkeys(finding.code for finding in self.report.findings)) if self.report else (),
            ranks=self.ranks,
            ring_age_seconds=self._ring_age(now),
            ring_pairs=self._ring_pairs(),
        )

    @property
    def skipped(self) -> str:
        """The number of its probes that were skipped and why, as one line; empty: none, or no report is known."""
        return _skipped(self.report) if self.report else ""

    def _ring_age(self, now: float) -> float | None:
        """The seconds since a ring measured the node: by the fact of the probe `ring`, and the age of the report."""
        fact = self.report.facts.get("ring") if self.report else None
        age = fact.get("age_seconds") if isinstance(fact, dict) else None
        if not isinstance(age, (int, float)) or not 0 <= age < math.inf or self.report_at is None:
            return None
        return round(age + now - self.report_at, 1)

    def _ring_pairs(self) -> RingPairs | None:
        """The pairs that its last ring measured, where the node led it; an agent may say anything."""
        fact = self.report.facts.get("ring") if self.report else None
        try:
            found = msgspec.convert(fact.get("pairs"), RingPairs | None) if isinstance(fact, dict) else None
        except msgspec.ValidationError:
            return None
        if found is None or len(found.nodes) > MAX_RING_NODES or len(found.pairs) > MAX_RING_PAIRS:
            return None
        places = [place for first, second, _ in found.pairs for place in (first, second)]
        places += [*found.slow_nodes, *(place for link in found.slow_links for place in link)]
        return found if all(0 <= place < len(found.nodes) for place in places) else None

    def _verdict(self) -> str | None:
        """The verdict of the node's report; unknown where the report is from before the agent fell silent."""
        if self.state == "waiting":
            return None
        current = self.report if self.state == "up" and not self.report_failure else None
        return current.verdict.value if current else Verdict.UNKNOWN.value


_MAX_REASONS = 2
_REASON_CHARACTERS = 60


def _skipped(report: Report) -> str:
    reasons = Counter(
        printable_line(probe.reason, _REASON_CHARACTERS) for probe in report.probes if probe.verdict is Verdict.SKIPPED
    )
    if not reasons:
        return ""
    why = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(_MAX_REASONS))
    return f"{reasons.total()} of {counted(len(report.probes), 'check')} skipped: {why}"


def _short(text: str) -> str:
    return printable_line(text, _MAX_REASON_CHARACTERS)
