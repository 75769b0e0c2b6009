"""Two collectors that watch the same jobs: whether they saw one thing, and what they know of it together. Pure.

Each collector says what it saw itself, again and again, and knows nothing of the other. So both may count the same
seconds: of two counts the larger one holds. What one has closed goes on where another saw it later.
"""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec import structs

from laggard.collector.incidents.fault import Fault
from laggard.collector.incidents.incident import Incident, family
from laggard.model import SEVERITIES, Culprit

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
    """Whether they are one: of one job, at one place, at one time. Places overlap, so this is no key."""
    culprits = ((a, b) for a in (one.culprit, one.opened_as) for b in (other.culprit, other.opened_as))
    return one.key == other.key and any(same_place(a, b) for a, b in culprits) and _at_one_time(one, other)


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
