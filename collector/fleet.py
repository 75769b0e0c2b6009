"""Decides whether one more node may be drained, and which nodes the next job leaves out. What many nodes have at once
has one cause, and drains none.

A defect of the checks themselves, or of something that all nodes share, makes every node fail at once; draining them
all would be the outage. So beyond a small share of the fleet failing, no gate drains: people look first. The count
follows the agents' reports, which are up to a minute old: a gate therefore waits until the collector knows that its own
node fails (`asker_fails`), so that of several nodes each counts those that failed before it, or are drained: of three
that came at once one drains, where one may. A node whose agent fell silent after it failed still counts: else who keeps
the agent busy, as any user of the node can, would have the node pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.targets import LAGGARD, JobUsers
from laggard.kit.words import counted, printable_line
from laggard.model import Culprit, JobKey, Note, Severity, Verdict
from laggard.wire.exclusion import Confirmation, Exclusion, ExclusionsDocument, LeftIn
from laggard.wire.nodes import DrainsDocument, NodeFinding, NodeRow

# What is wrong on many nodes at once: one cause that they share (a setting of all, a leaf switch, a defect of the
# checks), which is told as one thing and drains nobody. And how fast nodes may be drained for the rest. Pure.
#
# When a node began to fail is known to this collector alone, and from its start on. What it found failing in its first
# rounds may have failed for a second or for a month.

WINDOW_SECONDS: Final = 3600.0
MIN_NODES: Final = 5
"""The least nodes that are many: in a small cluster a few broken ones are a coincidence."""
_FIRST_ROUNDS_SECONDS: Final = 120.0
"""The time from the collector's start in which it comes to know who fails."""


class FailingSince(NamedTuple):
    """When each node began to fail for each code (`began`: by its name and the code of a critical finding), and for
    any without a break (`first`), in seconds of the collector's clock; None: before it knew. `ended`: the begins that
    are over, of nodes that failed no more, for an hour."""

    began: Mapping[tuple[str, str], float | None] = {}
    first: Mapping[str, float | None] = {}
    ended: tuple[tuple[str, float], ...] = ()
    started_at: float | None = None
    well: frozenset[str] = frozenset()
    """The nodes that this collector has seen well: when they begin to fail it knows."""


def failing_since(
    before: FailingSince, findings: Iterable[NodeFinding], now: float, reporting: Iterable[str] = ()
) -> FailingSince:
    """`before` after a round at `now`. `findings`: those of all nodes; `reporting`: the nodes of which there is a
    report."""
    started_at = now if before.started_at is None else before.started_at
    knows = now - started_at > _FIRST_ROUNDS_SECONDS
    failing = {(it.node, it.finding.code) for it in findings if it.finding.severity is Severity.CRITICAL}
    begins = {node: now if knows or node in before.well else None for node, _ in failing}
    began = {each: before.began.get(each, begins[each[0]]) for each in sorted(failing)}
    first = {node: before.first.get(node, begin) for node, begin in begins.items()}
    over = ((node, at) for node, at in before.first.items() if at is not None and node not in first)
    ended = tuple((node, at) for node, at in {*before.ended, *over} if now - at < WINDOW_SECONDS)
    well = before.well.union(reporting) - first.keys()
    return FailingSince(began, first, ended, started_at, well)


def fleet_wide_codes(since: FailingSince, answering: int, ratio: float, drain_ratio: float) -> Mapping[str, int]:
    """The codes that many nodes have at once, with their number: more than `ratio` of the nodes began within an hour,
    or more than `drain_ratio` of them have it, whenever they began."""
    times: dict[str, list[float | None]] = {}
    for (_, code), at in since.began.items():
        times.setdefault(code, []).append(at)
    most, always = max(MIN_NODES - 1, ratio * answering), max(MIN_NODES - 1, drain_ratio * answering)
    return {code: len(at) for code, at in times.items() if len(at) > always or _most_within_an_hour(at) > most}


def _most_within_an_hour(times: Sequence[float | None]) -> int:
    known = sorted(at for at in times if at is not None)
    first, most = 0, 0
    for last, at in enumerate(known):
        while at - known[first] > WINDOW_SECONDS:
            first += 1
        most = max(most, last - first + 1)
    return most


def for_that_alone(since: FailingSince, codes: Collection[str]) -> frozenset[str]:
    """The nodes that fail for nothing but these codes."""
    others = {node for node, code in since.began if code not in codes}
    return frozenset(node for node, code in since.began if code in codes and node not in others)


def waiting_seconds(since: FailingSince, codes: Collection[str], per_hour: int, now: float) -> Mapping[str, float]:
    """For how long each node is still to wait before it may be drained: of the nodes that began to fail, for more than
    `codes`, only so many are drained within an hour, the first ones first. Nodes that need not wait are left out."""
    begins: dict[str, float] = {}
    for (node, code), at in since.began.items():
        if code not in codes:
            begins[node] = min(begins.get(node, now), now - WINDOW_SECONDS if at is None else at)
    allowed: list[float] = []
    waiting: dict[str, float] = {}
    over = {node: at for node, at in sorted(since.ended, key=lambda item: item[1])}  # a node that flaps: once
    turns = [*((at, node, False) for node, at in over.items()), *((at, node, True) for node, at in begins.items())]
    for at, node, fails in sorted(turns):
        allowed.append(max(at, allowed[-per_hour] + WINDOW_SECONDS) if len(allowed) >= per_hour else at)
        if fails and allowed[-1] > now:
            waiting[node] = allowed[-1] - now
    return waiting


def fleet_wide_notes(codes: Mapping[str, int], answering: int) -> tuple[Note, ...]:
    return tuple(
        Note("fleet_wide", fleet_wide_words(code, number, answering)) for code, number in sorted(codes.items())
    )


def fleet_wide_words(code: str, number: int, answering: int) -> str:
    return (
        f"{code} is on {number} of {counted(answering, 'node')}: one cause that they share, or a defect of the check, "
        "and no node is drained for it"
    )


def drains_document(snapshot: ClusterSnapshot, max_ratio: float, node: str | None) -> DrainsDocument:
    """The answer to whether `node`, which asks, may be drained; it is not counted itself. `max_ratio`: the share of the
    answering nodes that may fail at once; at least one may, unless it is 0. Where no agent answers, the answer is no:
    the collector then knows nothing of the fleet."""
    answering = [row for row in snapshot.nodes if row.state == "up"]
    fails = [row.node for row in (*failing_nodes(snapshot), *_silent_since_they_failed(snapshot)) if row.node]
    failing = {it for it in fails if it not in snapshot.failing_together and it != node}
    ahead = {it for it in failing | _drained(snapshot) if it != node and _is_ahead(snapshot, it, node, fails)}
    cap = cap_of(len(answering), max_ratio)
    how = "are drained, or failed before the one that asks" if node else "fail now"
    counts = f"of {counted(len(answering), 'node')} {len(ahead)} {how}, at most {cap} may be out at once"
    reason = _why_unknown(snapshot, len(answering)) or counts
    held_back = _why_held_back(snapshot, node, len(answering))
    return DrainsDocument(
        may_drain=len(ahead) < cap and not held_back,
        reason=held_back or reason,
        nodes=len(snapshot.nodes),
        answering=len(answering),
        failing=len(failing),
        cap=cap,
        max_drain_ratio=max_ratio,
        asker_fails=node in fails,
        asker_known=node is None or any(row.node == node for row in snapshot.nodes),
        asker_is_well=node not in fails and any(row.node == node and not row.reason for row in answering),
    )


def _drained(snapshot: ClusterSnapshot) -> frozenset[str]:
    """The nodes that laggard has drained, and that are not resumed yet, as SLURM says."""
    return frozenset(node for node, out in snapshot.out.items() if out.by == LAGGARD)


def _is_ahead(snapshot: ClusterSnapshot, other: str, node: str | None, fails: Collection[str]) -> bool:
    """Whether `other` takes its place under the cap before `node`, which asks: it is drained, or began to fail earlier,
    by its name of two that began at once. Of those that failed before this collector knew each counts the others."""
    out = _drained(snapshot)
    if node not in fails or (other in out) != (node in out):
        return node not in fails or other in out
    mine, theirs = snapshot.failing_since.get(node or ""), snapshot.failing_since.get(other)
    return theirs is None or (mine is not None and (theirs, other) < (mine, node or ""))


def cap_of(answering: int, max_ratio: float) -> int:
    """The number of the answering nodes that may be out at once: at least one, unless `max_ratio` is 0."""
    return max(1, int(max_ratio * answering)) if answering and max_ratio > 0 else 0


def failing_nodes(snapshot: ClusterSnapshot) -> list[NodeRow]:
    """The nodes that answer and fail their checks."""
    return [row for row in snapshot.nodes if row.state == "up" and row.verdict == Verdict.FAIL.value]


def _silent_since_they_failed(snapshot: ClusterSnapshot) -> list[NodeRow]:
    return [row for row in snapshot.nodes if row.verdict == Verdict.UNKNOWN.value and row.node in snapshot.last_failed]


def _why_held_back(snapshot: ClusterSnapshot, node: str | None, answering: int) -> str:
    """The reason why this node is not to be drained now, whatever the cap says; empty: nothing holds it back."""
    if node in snapshot.failing_together:
        codes = {it.finding.code for it in snapshot.findings if it.node == node}
        mine = [code for code in sorted(snapshot.fleet_wide) if code in codes]
        return "; ".join(fleet_wide_words(code, snapshot.fleet_wide[code], answering) for code in mine)
    seconds = snapshot.waiting_seconds.get(node or "")
    if seconds is None:
        return _why_no_black_hole(snapshot, node or "", answering)
    return f"as many nodes as may be drained within an hour were first; this one may be in {seconds / 60:.0f} min"


# A node on which each job fails at once, beside the other nodes.

_HOLE: Final = "JOBS_FAIL_AT_ONCE"
_PRIOR_USERS: Final = 10.0
"""Before anything is known of the fleet, one of ten users has a program that fails at once. laggard's choice."""
_MOST_LIKE_IT: Final = 0.01
"""The healthy nodes of the fleet that may look like it by chance."""


def job_users(facts: Mapping[str, Any]) -> JobUsers:
    """What a report's facts tell of its node's jobs; an agent may say anything."""
    of_probe = facts.get("jobs")
    told = of_probe.get("users") if isinstance(of_probe, dict) else None
    return JobUsers(*(_uids(told.get(name)) for name in JobUsers._fields)) if isinstance(told, dict) else JobUsers()


def _uids(told: object) -> frozenset[int]:
    return frozenset(it for it in told if isinstance(it, int)) if isinstance(told, list) else frozenset()


def _why_no_black_hole(snapshot: ClusterSnapshot, node: str, answering: int) -> str:
    """Why jobs that fail at once on `node` are no fault of it alone; empty: they are, or something else is critical.

    Of the users of other nodes a share has a program that fails at once. That all users of a row have one is that share
    to the power of their number, if they have nothing but the node in common. Whose jobs fail elsewhere as well says
    nothing about it. A node like it is another such one, as long as these are no more than one in twenty."""
    critical = [it for it in snapshot.findings if it.finding.severity is Severity.CRITICAL]
    mine = [it.finding for it in critical if it.node == node]
    if not mine or any(it.code != _HOLE for it in mine):
        return ""
    holes = {it.node for it in critical if it.finding.code == _HOLE}
    few = len(holes) <= max(1, answering // 20)
    others = [it for name, it in snapshot.job_users.items() if name != node and not (few and name in holes)]
    failed = frozenset[int]().union(*(it.failed for it in others))
    known = failed.union(*(it.ran for it in others))
    row = _uids(mine[0].evidence.get("users")) - failed
    share = (1 + len(failed)) / (_PRIOR_USERS + len(known))
    if answering * share ** len(row) <= _MOST_LIKE_IT:
        return ""
    return (
        f"jobs of {len(failed)} of {counted(len(known), 'user')} fail at once on other nodes, too: that those of "
        f"{counted(len(row), 'more user')} do here may be chance"
    )


# The nodes that the next job is to leave out: those that a measurement confirmed as slow, those with a critical
# finding, and those that jobs' culprits lead to. Pure.
#
# A culprit's node is only suspected: the next job may find it well. So it is left out for a while, and only where a
# second witness says so: a finding that explains it, another job or another rank there, the kernel's own word, or a
# measurement. A finding counts as long as it stands, and a node whose agent fell silent then as one that
# still has it. What many nodes have at once has one cause that they share, and leaves out none of them.

_OF_RINGS: Final = frozenset(("RING_SLOW", "RING_FAILED"))
"""The findings that tell of a ring: what measured the node again later is better known."""
_KINDS: Final = frozenset(("slow_compute", "slow_host", "corrupt"))
"""The kinds of culprits that are their machine's fault, whatever the job does."""
_ENDS: Final = frozenset(("gpu_error", "memory_error"))
"""The causes of a rank's end that are, by the kernel's word: what else ends one may be the job's own doing."""
_MAX_LEFT_IN: Final = 256
_MAX_REASON: Final = 300
_ORDER: Final = {"confirmed": 0, "finding": 1, "culprit": 2}


class Suspicion(NamedTuple):
    """A culprit of a job, of the incident `id`, from `since` until `seen_at` (Unix time). `text`: in words."""

    id: int
    job: JobKey
    culprit: Culprit
    text: str
    since: float
    seen_at: float
    recoverable_ratio: float | None


def exclusions_document(
    snapshot: ClusterSnapshot,
    suspicions: Iterable[Suspicion],
    confirmations: Iterable[Confirmation],
    max_ratio: float,
    seconds: float,
    now: float,
) -> ExclusionsDocument:
    """`seconds`: for how long a node is left out after it was last named. `now`: Unix time."""
    answering = sum(row.state == "up" for row in snapshot.nodes)
    newest = _newest(confirmations, now - seconds)
    found: dict[str, list[Exclusion]] = {}
    left_in: list[LeftIn] = []
    each: Exclusion | LeftIn
    for each in (
        *_confirmed(newest.values(), seconds),
        *_of_findings(snapshot, newest),
        *_of_culprits(suspicions, newest, _busy(snapshot), now - seconds, seconds),
    ):
        if isinstance(each, LeftIn):
            left_in.append(each)
        else:
            found.setdefault(each.node, []).append(each)
    worst = sorted(map(_joined, found.values()), key=_rank)
    return ExclusionsDocument(
        tuple(worst),
        cap_of(answering, max_ratio),
        answering,
        len(snapshot.nodes),
        seconds,
        now,
        _why_unknown(snapshot, answering),
        tuple(dict.fromkeys(it for it in left_in if it.node not in found))[:_MAX_LEFT_IN],
    )


def _why_unknown(snapshot: ClusterSnapshot, answering: int) -> str:
    if answering:
        return ""
    return "no agent answers" if snapshot.rounds else "the agents have not been asked yet"


def _newest(confirmations: Iterable[Confirmation], since: float) -> dict[str, Confirmation]:
    newest: dict[str, Confirmation] = {}
    for it in confirmations:
        if it.at >= since and (it.node not in newest or it.at >= newest[it.node].at):
            newest[it.node] = it
    return newest


def _confirmed(newest: Iterable[Confirmation], seconds: float) -> Iterator[Exclusion]:
    for it in newest:
        if it.outcome == "confirmed":
            text = f"measured against {', '.join(it.peers)}: {it.why}"
            yield Exclusion(it.node, "confirmed", _line(text), it.at, it.at + seconds, confirmation=it)


def _of_findings(snapshot: ClusterSnapshot, newest: Mapping[str, Confirmation]) -> Iterator[Exclusion | LeftIn]:
    critical: dict[str, dict[str, str]] = {}
    for it in snapshot.findings:
        if it.finding.severity is Severity.CRITICAL:
            critical.setdefault(it.node, {}).setdefault(it.finding.code, f"{it.finding.device} {it.finding.summary}")
    rows = {row.node: row for row in snapshot.nodes if row.node}
    failing = {node for node, row in rows.items() if row.state == "up" and row.verdict == Verdict.FAIL.value}
    for node in sorted(failing | (snapshot.last_failed & rows.keys())):
        codes, since = critical.get(node, {}), snapshot.failing_since.get(node)
        shared = [code for code in codes if code in snapshot.fleet_wide]
        if node in snapshot.failing_together:
            yield LeftIn(node, _line(f"{', '.join(shared)} has one cause that many nodes share"))
        elif codes and codes.keys() <= _OF_RINGS and _is_acquitted(newest.get(node), since or 0.0):
            yield LeftIn(node, f"{', '.join(codes)}: it was measured again since, and acquitted")
        else:
            yield Exclusion(node, "finding", _finding_text(node, failing, codes), since, None, tuple(codes))


def _finding_text(node: str, failing: Collection[str], codes: Mapping[str, str]) -> str:
    if node not in failing:
        return "its agent fell silent after its checks had failed"
    code, text = next(iter(codes.items()), ("", "its checks fail"))
    more = f", and {counted(len(codes) - 1, 'more code')}" if len(codes) > 1 else ""
    return _line(f"{code} {text}{more}")


def _is_acquitted(confirmation: Confirmation | None, last_named: float) -> bool:
    return confirmation is not None and confirmation.outcome == "acquitted" and confirmation.at >= last_named


def _busy(snapshot: ClusterSnapshot) -> frozenset[str]:
    """The nodes on which a job runs of which their agents tell."""
    running = {node for job in snapshot.jobs if job.running for node in job.timings.nodes if node}
    return frozenset(row.node for row in snapshot.nodes if row.node in running and row.ranks)


def _of_culprits(
    suspicions: Iterable[Suspicion],
    newest: Mapping[str, Confirmation],
    busy: Collection[str],
    since: float,
    seconds: float,
) -> Iterator[Exclusion | LeftIn]:
    """A job whose agents no longer tell of it is held for a while, and its culprits with it: a measurement of a node
    that runs it no more counts all the same."""
    lately = [it for it in suspicions if it.seen_at > since]
    named = {each for it in lately if not why_not_its_machine(it.culprit) for each in _named_by(it)}
    witnesses = Counter(node for node, _, _ in named)
    for it in lately:
        for node in it.culprit.machines:
            known = newest.get(node)
            if _is_acquitted(known, it.seen_at if node in busy else it.since):
                yield LeftIn(node, f"{_line(it.text)}: it was measured since, and acquitted")
            elif why := why_not_its_machine(it.culprit):
                yield LeftIn(node, f"{_line(it.text)}: {why}")
            elif witnesses[node] < 2 and not _has_witness(it.culprit):
                how = f"suspect by one job alone, and not left out: laggard confirm {node} measures it"
                yield LeftIn(node, f"{_line(it.text)}: {how}")
            else:
                ratio, until = it.recoverable_ratio, it.seen_at + seconds
                codes = it.culprit.findings
                yield Exclusion(node, "culprit", _line(it.text), it.since, until, codes, (it.id,), ratio)


def _named_by(it: Suspicion) -> Iterator[tuple[str, JobKey, int | None]]:
    """Each machine that it names with the job and each of the ranks: so many witnesses there are."""
    for node in it.culprit.machines:
        yield from ((node, it.job, rank) for rank in it.culprit.ranks or (None,))


def _has_witness(culprit: Culprit) -> bool:
    """Whether anything beside the job's own times says that it is the machine."""
    return bool(culprit.findings) or (culprit.end is not None and culprit.end.cause in _ENDS)


def why_not_its_machine(culprit: Culprit) -> str:
    """Returns why a culprit is no reason to leave its machine out; empty: it is one."""
    if culprit.is_in_the_code and culprit.stack:
        return f"it alone is in {culprit.stack.place}: look at the code"
    if culprit.persistence == "transient":
        return "it was so for a moment only"
    if culprit.kind == "slow_link":
        return "" if len(culprit.machines) == 1 else "which end of the link is at fault is not known"
    if culprit.kind in _KINDS or culprit.device_stopped or (culprit.end is not None and culprit.end.cause in _ENDS):
        return ""
    return "it may be the job's own doing"


def _joined(of_node: list[Exclusion]) -> Exclusion:
    """One entry of several for a node: the worst, from the first of all until the last."""
    worst = min(of_node, key=_rank)
    begins = [it.since for it in of_node]
    ends = [it.until for it in of_node]
    return Exclusion(
        worst.node,
        worst.basis,
        worst.reason,
        None if None in begins else min(at for at in begins if at is not None),
        None if None in ends else max(at for at in ends if at is not None),
        tuple(dict.fromkeys(code for it in of_node for code in it.codes)),
        tuple(dict.fromkeys(id for it in of_node for id in it.incidents)),
        max((it.recoverable_ratio for it in of_node if it.recoverable_ratio is not None), default=None),
        next((it.confirmation for it in of_node if it.confirmation is not None), None),
    )


def _rank(it: Exclusion) -> tuple[int, float, str]:
    return _ORDER[it.basis], -(it.recoverable_ratio or 0.0), it.node


def _line(text: str) -> str:
    return printable_line(text, _MAX_REASON)
