"""The nodes that may be tainted now, and for how long each has been in its state. Pure: the circuit breaker between a
verdict and the scheduler.

A defect of the checks, or of something that all nodes share (a file server, the fabric manager), makes every node fail
at once, and to taint them all would be the outage. So a fleet of which too much fails, or too little answers, gets no
taint at all: people look first. The rate limits what a slower defect can take away before somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.kit.words import counted

HOUR: Final = 3600.0


class Limits(NamedTuple):
    """`max_ratio`: the share of the answering nodes that may fail, though one always may; 0: none. `per_hour`: taints
    in an hour. `min_answering_ratio`: the share of the agents that must answer."""

    max_ratio: float
    per_hour: int
    min_answering_ratio: float


class Fleet(NamedTuple):
    """Names of nodes. `watched` have an agent, `answering` one that says whether they are healthy; `failing` have a
    critical finding now; `due` have had one for long enough and no taint yet. `tainted_seconds_ago`: the age of each
    taint that the controller has set."""

    watched: Collection[str]
    answering: Collection[str]
    failing: Collection[str]
    due: Sequence[str]
    tainted_seconds_ago: Sequence[float]


class Permission(NamedTuple):
    """The nodes that may be tainted now, and why not the others that are due; empty: nothing is held back."""

    taint: tuple[str, ...]
    held_back: str = ""


def permit(fleet: Fleet, limits: Limits) -> Permission:
    if not fleet.due:
        return Permission(())
    cap = max(1, int(limits.max_ratio * len(fleet.answering))) if limits.max_ratio > 0 else 0
    if len(fleet.answering) < limits.min_answering_ratio * len(fleet.watched):
        told = f"of {counted(len(fleet.watched), 'agent')} only {len(fleet.answering)} can tell"
        return Permission((), f"{told}: nothing is tainted before more do")
    if len(fleet.failing) > cap:
        told = f"of {counted(len(fleet.answering), 'node')} {len(fleet.failing)} fail, and at most {cap} may"
        return Permission((), f"{told}: look for what they share; nothing is tainted meanwhile")
    lately = sum(age < HOUR for age in fleet.tainted_seconds_ago)
    room = max(0, limits.per_hour - lately)
    if len(fleet.due) > room:
        told = f"{counted(lately, 'node')} tainted within an hour, at most {limits.per_hour} may be"
        return Permission(tuple(fleet.due[:room]), f"{told}: {len(fleet.due) - room} more wait")
    return Permission(tuple(fleet.due))


class Streak(NamedTuple):
    status: str
    since: float


class Streaks:
    """Times in monotonic seconds. A restarted controller begins to count anew: it acts later, never sooner."""

    def __init__(self) -> None:
        self._held: dict[str, Streak] = {}

    def update(self, statuses: Mapping[str, str], now: float) -> None:
        """Takes the nodes' statuses now; a node that is not among them is forgotten."""
        self._held = {
            name: held if (held := self._held.get(name)) and held.status == status else Streak(status, now)
            for name, status in statuses.items()
        }

    def lasts(self, name: str, status: str, now: float) -> float:
        """The seconds for which the node has been in `status`; negative where it is not."""
        held = self._held.get(name)
        return now - held.since if held and held.status == status else -1.0
