"""What is one and the same: a machine under another name, what two collectors saw, and what came back within a week.
No clock, no file."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from msgspec import structs

from laggard.collector.incidents.incident import WEEK_SECONDS, Fault, Incident, NodeName, NodeSight, Return, family
from laggard.model import MAX_SUMMARY, SEVERITIES, Culprit
from laggard.wire.nodes import NodeFinding

SAME_SHARE = 0.5
"""The share of the GPUs, of the fewer of the two, from which on two sets are one machine: single GPUs are replaced, or
have fallen off the bus. laggard's choice."""

RENEW_SECONDS = 3600.0
"""The largest age of what is stored of a name that is seen."""

MAX_NAMES = 65_536
"""The most names that are remembered."""

MAX_NAMES_OF_GPU = 64
"""The most names, the newest, that are looked at where a GPU is seen under another one: no machine has had more, and
agents that all tell of one GPU are not compared each with each."""


class MachineNames:
    def __init__(self, known: Iterable[NodeName] = ()) -> None:
        self._by_node: dict[str, NodeName] = {}
        self._stored_at: dict[str, float] = {}
        self._nodes_of_gpu: dict[str, dict[str, None]] = {}  # the names in the order in which they came
        for name in sorted(known, key=lambda it: it.seen_at):
            self._take(name)

    def machine(self, node: str) -> str:
        """The machine that has the name; empty where its GPUs are not known."""
        found = self._by_node.get(node)
        return found.machine if found else ""

    def observe(self, sights: Sequence[NodeSight], wall: float) -> list[NodeName]:
        """Takes one round in. Returns what is to be stored."""
        changed = []
        for sight in sights:
            was = self._by_node.get(sight.node)
            now = self._named(sight, was, wall)
            is_other = was is None or (was.machine, was.gpus) != (now.machine, now.gpus)
            if is_other and was is None and len(self._by_node) >= MAX_NAMES:
                continue
            self._take(now)
            if is_other or abs(wall - self._stored_at.get(sight.node, 0.0)) >= RENEW_SECONDS:
                self._stored_at[sight.node] = wall
                changed.append(now)
        return changed

    def _take(self, name: NodeName) -> None:
        was = self._by_node.get(name.node)
        self._by_node[name.node] = name
        before = was.gpus if was else ()
        if before == name.gpus:
            return
        for gpu in dict.fromkeys(before):
            nodes = self._nodes_of_gpu[gpu]
            del nodes[name.node]
            if not nodes:
                del self._nodes_of_gpu[gpu]
        for gpu in dict.fromkeys(name.gpus):
            self._nodes_of_gpu.setdefault(gpu, {})[name.node] = None

    def _elsewhere(self, gpus: Sequence[str]) -> NodeName | None:
        """The name under which a machine with these GPUs was seen last; None where there is none."""
        nodes = {node for gpu in gpus for node in islice(reversed(self._nodes_of_gpu.get(gpu, {})), MAX_NAMES_OF_GPU)}
        found = [it for node in nodes if _is_same((it := self._by_node[node]).gpus, gpus)]
        return max(found, key=lambda it: (it.seen_at, it.node), default=None)

    def _named(self, sight: NodeSight, was: NodeName | None, wall: float) -> NodeName:
        gpus = tuple(sorted(sight.gpus))
        if was is not None and (not gpus or not was.gpus or _is_same(was.gpus, gpus)):
            machine = was.machine or (gpus[0] if gpus else "")
            return structs.replace(was, machine=machine, gpus=gpus or was.gpus, seen_at=max(was.seen_at, wall))
        found = self._elsewhere(gpus)
        return NodeName(sight.node, found.machine if found else gpus[0] if gpus else "", wall, wall, gpus)


def _is_same(some: Sequence[str], others: Sequence[str]) -> bool:
    shared = len(set(some) & set(others))
    return shared > 0 and shared >= SAME_SHARE * min(len(some), len(others))


# Two collectors that watch the same jobs: whether they saw one thing, and what they know of it together. Pure.
#
# Each collector says what it saw itself, again and again, and knows nothing of the other. So both may count the same
# seconds: of two counts the larger one holds. What one has closed goes on where another saw it later.

SLACK_SECONDS: Final = 30.0
"""The most by which rounds of two collectors tell of one moment at different times. laggard's choice: six rounds."""

T = TypeVar("T", Incident, Fault)


def same_place(one: Culprit, other: Culprit) -> bool:
    """Whether one incident goes on with the other culprit: ranks in common, or the same ends of a link."""
    if family(one) != family(other):
        return False
    if one.ranks or other.ranks:
        return not set(one.ranks).isdisjoint(other.ranks)
    return (one.node, one.device, one.link, one.group) == (other.node, other.device, other.link, other.group)


def same_incident(one: Incident, other: Incident) -> bool:
    """Whether they are one: of one run of a job, as far as runs are known, at one place, at one time. Places overlap,
    so this is no key."""
    same_run = None in (one.run, other.run) or one.run == other.run
    culprits = ((a, b) for a in (one.culprit, one.opened_as) for b in (other.culprit, other.opened_as))
    return one.key == other.key and same_run and any(same_place(a, b) for a, b in culprits) and _at_one_time(one, other)


def merged_incident(one: Incident, other: Incident) -> Incident:
    """Returns what both know, under the id of `one`."""
    first, last = (one, other) if one.opened_at <= other.opened_at else (other, one), _seen_last(one, other)
    ratios = [it for it in (one.most_recoverable_ratio, other.most_recoverable_ratio) if it is not None]
    closing = _closing(one, other)
    return structs.replace(
        last,
        id=one.id,
        opened_at=first[0].opened_at,
        opened_as=first[0].opened_as,
        returned=first[0].returned or first[1].returned,
        findings=tuple(dict.fromkeys((*one.findings, *other.findings)))[:64],
        most_recoverable_ratio=max(ratios, default=None),
        gaps=max(one.gaps, other.gaps),
        progressed_at=max(one.progressed_at, other.progressed_at),
        lost_gpu_hours=max(one.lost_gpu_hours, other.lost_gpu_hours),
        closed_at=closing and closing.closed_at,
        closed_because=closing and closing.closed_because,
        part_of=closing and closing.part_of,
    )


def same_fault(one: Fault, other: Fault) -> bool:
    """Whether they are one: the same finding of one machine at one time."""
    where = (one.machine == other.machine) if one.machine and other.machine else (one.node == other.node)
    what = (one.code, one.device, one.detail) == (other.code, other.device, other.detail)
    return where and what and _at_one_time(one, other)


def merged_fault(one: Fault, other: Fault) -> Fault:
    """Returns what both know, under the id of `one`."""
    closing = _closing(one, other)
    return structs.replace(
        _seen_last(one, other),
        id=one.id,
        opened_at=min(one.opened_at, other.opened_at),
        machine=one.machine or other.machine,
        gpu=one.gpu or other.gpu,
        severity=min(one.severity, other.severity, key=SEVERITIES.index),
        returned=one.returned or other.returned,
        closed_at=closing and closing.closed_at,
        closed_because=closing and closing.closed_because,
    )


def _at_one_time(one: Incident | Fault, other: Incident | Fault) -> bool:
    return _until(one) + SLACK_SECONDS >= other.opened_at and _until(other) + SLACK_SECONDS >= one.opened_at


def _until(it: Incident | Fault) -> float:
    return float("inf") if it.closed_at is None else it.closed_at


def _seen_last(one: T, other: T) -> T:
    return other if other.seen_at >= one.seen_at else one


def _closing(one: T, other: T) -> T | None:
    """The one that says how it ended; None where it goes on, since one that has not closed it saw it after that."""
    closed = [it for it in (one, other) if it.closed_at is not None]
    if len(closed) == 2:
        return max(closed, key=_until)
    if not closed:
        return None
    still = other if closed[0] is one else one
    return None if still.seen_at > _until(closed[0]) else closed[0]


# Faults that were over and are there again within a week: the ends of earlier faults by their place. No clock, no file.

MAX_PLACES = 16_384
"""The most places whose ends are remembered, the last ones."""

MAX_ENDS = 64
"""The most ends of one place."""


class Ends:
    """The ends of faults, by place, in Unix seconds."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, list[float]] = {}

    def note(self, place: Hashable, ended_at: float) -> None:
        ends = self._ends.pop(place, [])
        # One that is known was told of by another collector, too.
        self._ends[place] = ends if ended_at in ends else [*ends, ended_at][-MAX_ENDS:]
        while len(self._ends) > MAX_PLACES:
            del self._ends[next(iter(self._ends))]

    def before(self, place: Hashable, began_at: float) -> Return | None:
        """The earlier ones of what began at the place then; None where there were none within the week. An end that
        lies after the begin is of a clock that was set back: it was before, whatever the clock says."""
        ends = [min(end, began_at) for end in self._ends.get(place, ()) if began_at - end <= WEEK_SECONDS]
        return Return(len(ends), max(ends)) if ends else None


EVIDENCE = "came_back"
"""The key of a finding's evidence: how often it was over within the week before, and when it last ended (Unix time)."""


def with_returns(findings: Iterable[NodeFinding], faults: Sequence[Fault]) -> tuple[NodeFinding, ...]:
    """The findings, each with what its fault tells of the week before."""
    back = {(it.node, it.code, it.device): it for it in faults if it.returned is not None}
    if not back:
        return tuple(findings)
    return tuple(_told(it, back.get((it.node, it.finding.code, it.finding.device))) for it in findings)


def _told(found: NodeFinding, fault: Fault | None) -> NodeFinding:
    if fault is None or fault.returned is None:
        return found
    it = fault.returned
    days = max(0.0, fault.opened_at - it.ended_at) / 86400
    over = f"{days:.1f} days" if days >= 1 else f"{24 * days:.1f} hours"
    times = "" if it.times == 1 else f", and {it.times} times within the week before"
    words = f" (came back: it had been over for {over}{times})"
    summary = found.finding.summary[: MAX_SUMMARY - len(words)] + words
    evidence = {**found.finding.evidence, EVIDENCE: {"times": it.times, "ended_at": round(it.ended_at)}}
    return structs.replace(found, finding=structs.replace(found.finding, summary=summary, evidence=evidence))
