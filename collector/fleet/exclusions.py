"""The nodes that the next job is to leave out: those that a measurement confirmed as slow, those with a critical
finding, and those that jobs' culprits lead to. Pure.

A culprit's node is only suspected: the next job may find it well. So it is left out for a while, until a measurement
confirms or acquits it. A finding counts as long as it stands, and a node whose agent fell silent then as one that still
has it. What many nodes have at once has one cause that they share, and leaves out none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.collector.fleet.drain_cap import cap_of
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.model import Culprit, Severity, Verdict
from laggard.text.words import counted, printable_line
from laggard.wire.exclusion import Confirmation, Exclusion, ExclusionsDocument, LeftIn

_OF_RINGS: Final = frozenset(("RING_SLOW", "RING_FAILED"))
"""The findings that tell of a ring: what measured the node again later is better known."""
_KINDS: Final = frozenset(("slow_compute", "slow_host", "corrupt"))
"""The kinds of culprits that are their machine's fault, whatever the job does."""
_ENDS: Final = frozenset(("gpu_error", "memory_error"))
"""The causes of a rank's end that are: what else ends one may be the job's own doing."""
_MAX_LEFT_IN: Final = 256
_MAX_REASON: Final = 300
_ORDER: Final = {"confirmed": 0, "finding": 1, "culprit": 2}


class Suspicion(NamedTuple):
    """A culprit of a job, of the incident `id`, from `since` until `seen_at` (Unix time). `text`: in words."""

    id: int
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
    for it in suspicions:
        if it.seen_at <= since:
            continue
        for node in it.culprit.machines:
            known = newest.get(node)
            if _is_acquitted(known, it.seen_at if node in busy else it.since):
                yield LeftIn(node, f"{_line(it.text)}: it was measured since, and acquitted")
            elif why := why_not_its_machine(it.culprit):
                yield LeftIn(node, f"{_line(it.text)}: {why}")
            else:
                ratio, until = it.recoverable_ratio, it.seen_at + seconds
                codes = it.culprit.findings
                yield Exclusion(node, "culprit", _line(it.text), it.since, until, codes, (it.id,), ratio)


def why_not_its_machine(culprit: Culprit) -> str:
    """Returns why a culprit is no reason to leave its machine out; empty: it is one."""
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
