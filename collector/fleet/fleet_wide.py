"""What is wrong on many nodes at once: one cause that they share (a setting of all, a leaf switch, a defect of the
checks), which is told as one thing and drains nobody. And how fast nodes may be drained for the rest. Pure.

When a node began to fail is known to this collector alone, and from its start on. What it found failing in its first
rounds may have failed for a second or for a month.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from laggard.model import Note, Severity
from laggard.text.words import counted
from laggard.wire.node_finding import NodeFinding

WINDOW_SECONDS: Final = 3600.0
MIN_NODES: Final = 5
"""The least nodes that are many: in a small cluster a few broken ones are a coincidence."""
_FIRST_ROUNDS_SECONDS: Final = 120.0
"""The time from the collector's start in which it comes to know who fails."""

Failing = tuple[str, str]
"""A node's name and the code of a critical finding there."""


class FailingSince(NamedTuple):
    """When each node began to fail for each code, in seconds of the collector's clock; None: before it knew. `ended`:
    the begins of those that do not fail any more, for an hour."""

    began: Mapping[Failing, float | None] = {}
    ended: tuple[tuple[str, float], ...] = ()
    started_at: float | None = None


def observed(before: FailingSince, findings: Iterable[NodeFinding], now: float) -> FailingSince:
    """`before` after a round at `now`. `findings`: those of all nodes."""
    started_at = now if before.started_at is None else before.started_at
    begin = now if now - started_at > _FIRST_ROUNDS_SECONDS else None
    failing = {(it.node, it.finding.code) for it in findings if it.finding.severity is Severity.CRITICAL}
    began = {each: before.began.get(each, begin) for each in sorted(failing)}
    nodes = {node for node, _ in failing}
    over = ((node, at) for (node, _), at in before.began.items() if at is not None and node not in nodes)
    ended = tuple((node, at) for node, at in {*before.ended, *over} if now - at < WINDOW_SECONDS and node not in nodes)
    return FailingSince(began, ended, started_at)


def fleet_wide(since: FailingSince, answering: int, ratio: float, drain_ratio: float) -> Mapping[str, int]:
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


def first_failed(since: FailingSince) -> Mapping[str, float]:
    """When each node that fails began to, for the code that it has had the longest; without those that failed before
    this collector knew."""
    begins: dict[str, list[float | None]] = {}
    for (node, _), at in since.began.items():
        begins.setdefault(node, []).append(at)
    return {node: min(at for at in all_of if at is not None) for node, all_of in begins.items() if None not in all_of}


def waiting_seconds(since: FailingSince, codes: Collection[str], per_hour: int, now: float) -> Mapping[str, float]:
    """For how long each node is still to wait before it may be drained: of the nodes that began to fail, for more than
    `codes`, only so many are drained within an hour, the first ones first. Nodes that need not wait are left out."""
    alone = for_that_alone(since, codes)
    begins: dict[str, float] = dict(since.ended)
    for (node, code), at in since.began.items():
        if node not in alone and code not in codes:
            begins[node] = min(begins.get(node, now), now - WINDOW_SECONDS if at is None else at)
    allowed: list[float] = []
    waiting: dict[str, float] = {}
    failing = {node for node, _ in since.began}
    for node, at in sorted(begins.items(), key=lambda item: (item[1], item[0])):
        allowed.append(max(at, allowed[-per_hour] + WINDOW_SECONDS) if len(allowed) >= per_hour else at)
        if node in failing and allowed[-1] > now:
            waiting[node] = allowed[-1] - now
    return waiting


def notes(codes: Mapping[str, int], answering: int) -> tuple[Note, ...]:
    return tuple(Note("fleet_wide", words(code, number, answering)) for code, number in sorted(codes.items()))


def words(code: str, number: int, answering: int) -> str:
    return (
        f"{code} is on {number} of {counted(answering, 'node')}: one cause that they share, or a defect of the check, "
        "and no node is drained for it"
    )
