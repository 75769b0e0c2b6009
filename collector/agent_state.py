"""The state of one agent at the collector: its last answers, its clock, what is wrong with it. What many agents
report alike is held once."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from laggard.collector.incidents.fault_tracker import node_sight
from laggard.collector.incidents.incident import NodeSight
from laggard.collector.jobs.window import JobWindows
from laggard.collector.node_findings import NodeGpus
from laggard.collector.outliers import ComparedNode, FleetComparison, compared_node, consensus, tells_the_same
from laggard.collector.scrape.fetch import FetchFailure
from laggard.collector.scrape.validation import RanksAnswer
from laggard.collector.targets import Target
from laggard.kit.words import counted, listed, printable_line
from laggard.locate.job_timings import WINDOW_SECONDS, WINDOW_STEPS
from laggard.model import Finding, Report, Verdict
from laggard.wire import encode
from laggard.wire.nodes import MAX_RING_NODES, MAX_RING_PAIRS, NodeFinding, NodeRow, RingPairs
from laggard.wire.ranks import RankRow, RanksDocument, RasSource, UnseenProcess

# A node's clock beside the collector's. The ends of ranks are told in their node's Unix time, and who of several nodes
# died first can only be said on one clock.

TOLERATED_SECONDS: Final = 0.5
"""The tolerated difference of clocks, which locate/hang/deaths.py allows between nodes too: chrony and NTP keep clocks
far closer."""


class NodeClock:
    """`ahead_seconds`: by how much the node's clock is ahead of the collector's, 0 where the two agree within what an
    answer can tell; `uncertain_seconds`: by how much that may be wrong, to either side."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0
        self.uncertain_seconds = 0.0

    def observe(self, at: float, asked_at: float, answered_at: float) -> None:
        """`at` is the node's Unix time while it answered; it was asked, and the answer was there, at these Unix times
        of the collector. What is known already stays while it explains the answer, so that ends do not wander."""
        for known in (0.0, self.ahead_seconds):
            if asked_at - TOLERATED_SECONDS <= at - known <= answered_at + TOLERATED_SECONDS:
                self.ahead_seconds = known
                self.uncertain_seconds = self.uncertain_seconds if known else 0.0
                return
        self.ahead_seconds = at - (asked_at + answered_at) / 2
        self.uncertain_seconds = (answered_at - asked_at) / 2

    def on_ours(self, answer: RanksDocument) -> RanksDocument:
        """The answer with the ends of its ranks in the collector's Unix time."""
        if not self.ahead_seconds:
            return answer
        return structs.replace(answer, ranks=tuple(map(self._row, answer.ranks)))

    def _row(self, row: RankRow) -> RankRow:
        end = row.end
        if end is None:
            return row
        at = max(0.0, end.at_seconds - self.ahead_seconds + self.uncertain_seconds)
        uncertain = end.uncertain_seconds + 2 * self.uncertain_seconds
        return structs.replace(row, end=structs.replace(end, at_seconds=at, uncertain_seconds=uncertain))


_MAX_REASON_CHARACTERS = 200


class ReadReport(NamedTuple):
    """What a round needs of a report, and what it was read of. `skipped`: the number of its probes that were skipped
    and why, as one line; empty: none."""

    report: Report
    name: str
    gpus: NodeGpus
    skipped: str
    sight: NodeSight
    compared: ComparedNode

    @classmethod
    def of(cls, report: Report, name: str, before: ReadReport | None) -> ReadReport:
        is_same = before is not None and tells_the_same(before.report, report)
        compared = before.compared if before is not None and is_same else compared_node(report.facts)
        return cls(report, name, NodeGpus.of(report.facts), _skipped(report), node_sight(name, report), compared)


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
    _read: ReadReport | None = None

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
    def read(self) -> ReadReport | None:
        """What its report says, read once; None where there is none."""
        if self.report is None:
            return None
        if self._read is None or self._read.report is not self.report or self._read.name != self.name:
            self._read = ReadReport.of(self.report, self.name, self._read)
        return self._read

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


def compare_nodes(agents: Sequence[AgentState]) -> FleetComparison:
    """Compares the nodes whose agents answer now: the facts of a silent node are not counted."""
    by_label: dict[str, AgentState] = {}
    nodes: dict[str, ComparedNode] = {}
    for agent in agents:
        if (read := agent.read) is not None and agent.state == "up":
            label = agent.name if agent.name not in by_label else f"{agent.name} ({agent.url})"
            by_label[label], nodes[label] = agent, read.compared
    agreed = consensus(nodes)
    found = ((by_label[label], finding) for label, findings in agreed.findings.items() for finding in findings)
    return FleetComparison(tuple(NodeFinding(it.url, it.name, finding) for it, finding in found), agreed.notes)


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


log = logging.getLogger("laggard.collector")

LINE_SECONDS: Final = 60.0
_MAX_NAMED: Final = 4


class StateChanges:
    """Collects the changes of a round; says() what is due."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, str]] = {}  # by state: the agents that are in it since, with the reason
        self._said_at: dict[str, float] = {}

    def forget(self, url: str) -> None:
        for agents in self._pending.values():
            agents.pop(url, None)

    def add(self, url: str, state: str, reason: str) -> None:
        self.forget(url)
        self._pending.setdefault(state, {})[url] = reason

    def lines(self, now: float) -> list[tuple[int, str]]:
        """The levels and lines to log now; what came too soon after a line of its state waits for the next."""
        due = [
            state
            for state, agents in self._pending.items()
            if agents and now - self._said_at.get(state, now - LINE_SECONDS) >= LINE_SECONDS
        ]
        self._said_at.update(dict.fromkeys(due, now))
        return [
            (logging.INFO if state == "up" else logging.WARNING, _line(state, self._pending.pop(state)))
            for state in due
        ]


def _line(state: str, agents: dict[str, str]) -> str:
    named = [f"{url} ({reason})" if reason else url for url, reason in agents.items()]
    verb = "is" if len(agents) == 1 else "are"
    return f"{counted(len(agents), 'agent')} {verb} {state}: {listed(named, _MAX_NAMED)}"


MAX_PARTS: Final = 16_384
"""The most parts that are remembered. With more all are forgotten, and those of the next reports take their place."""

MAX_PART_BYTES: Final = 16 << 10
"""The largest part that is remembered, as JSON."""


class SharedReports:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, bytes], Any] = {}

    def of(self, report: Report) -> Report:
        """The same report, but that how long each probe took is 0: that is another time on each node, and no collector
        looks at it."""
        if len(self._parts) > MAX_PARTS:
            self._parts.clear()
        probes = tuple(self._one("", structs.replace(it, elapsed_seconds=0.0)) for it in report.probes)
        facts = {name: self._one(name, value) for name, value in report.facts.items()}
        return structs.replace(report, probes=probes, facts=facts)

    def _one(self, name: str, part: Any) -> Any:
        """The part that was there first of those with this text: to Python 1 and true would be equal."""
        try:
            told = encode(part)
        except RecursionError:  # facts may be nested as deeply as could just be read
            return part
        return part if len(told) > MAX_PART_BYTES else self._parts.setdefault((name, told), part)


# The steps that an agent is asked for at first. Its rank files hold up to ten times as many as a collector keeps: to
# read them all takes minutes where thousands of agents are asked anew, as after a restart. Pure.

SPARE: Final = 2.0
"""The time that is asked for, over that which steps of the usual length take: the last ones may be longer."""


def last_steps_since(document: RanksDocument) -> float:
    """The time, on the node's monotonic clock, from which on the last WINDOW_STEPS steps of all its ranks are told, and
    those of WINDOW_SECONDS; 0.0, for all, where that cannot be told. `document`: what the agent answered without
    steps."""
    if document.now is None or not document.ranks:
        return 0.0
    return max(0.0, document.next - max(_seconds_back(row, document.now) for row in document.ranks))


def _seconds_back(row: RankRow, now: float) -> float:
    """The seconds from now back to the first of the rank's last steps, and before: one that hangs made none of late."""
    if not row.steps:
        return SPARE * WINDOW_SECONDS
    quiet = max(0.0, now - row.last_progress_timestamp_seconds)
    return quiet + SPARE * max(WINDOW_SECONDS, WINDOW_STEPS * row.step_seconds / row.steps)
