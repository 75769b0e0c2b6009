"""What explains a failure: a fault of its host, by a table of causes, or a rank that says nothing while the others
complain."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.cause import Cause
from laggard.diagnose.job.events import Event, Weight
from laggard.diagnose.joined.roster import OF_A_LAUNCHER, Clue, First, Role, Roster
from laggard.diagnose.rules import table
from laggard.kit.words import ranks_text
from laggard.model import Fix

_TABLE: Final = table("explains")
_KINDS: Final = {
    kind: frozenset(code for row in _TABLE.of(kind) for code in row.pattern.split()) for kind in _TABLE.sections
}
HARDWARE, PORTS, MEMORY = (_KINDS[kind] for kind in ("hardware", "ports", "memory"))
_BEFORE: Final = {
    code: frozenset[str]().union(*(_KINDS[kind] for kind in kinds.split()))
    for code, kinds in _TABLE.sections["before"].more.items()
}
WAITING: Final = (Weight.WAITED, Weight.SUMMARY)


def faults_before(event: Event) -> frozenset[str]:
    """Returns the codes of the faults that can be why this event came. What a program raised itself has none."""
    return _BEFORE.get("waiting" if event.weight in WAITING else event.code, frozenset())


MAX_SHOWN: Final = 8
"""The most lines of consequences that are shown."""


class Victims(NamedTuple):
    events: tuple[Event, ...]
    ranks: tuple[int, ...]


def victims_of(cause: Cause, of: Iterable[int] = ()) -> Victims:
    """The first event of each rank that complained, the culprits' own aside."""
    culprits = set(of)
    kept: dict[object, Event] = {}
    for event in (cause.first, *cause.same, *cause.later):
        if event.writer.rank not in culprits and event.kind not in OF_A_LAUNCHER:
            kept.setdefault(event.writer.rank if event.writer.rank is not None else event.writer, event)
    events = tuple(kept.values())
    return Victims(events, tuple(sorted(event.writer.rank for event in events if event.writer.rank is not None)))


def shown(role: Role, events: Iterable[Event], roster: Roster) -> tuple[Clue, ...]:
    return tuple(Clue.of_event(role, event, roster) for event in itertools.islice(events, MAX_SHOWN))


def on_host(host: str | None, roster: Roster) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, its in roster.hosts.items() if host and its == host))


_ADVICE: Final = table("hangs").advice


def of_silent(ranks: Sequence[int], behind: str, cause: Cause, roster: Roster) -> First:
    victims = victims_of(cause, ranks)
    waiters = ranks_text(victims.ranks) or "the others"
    timed_out = any(event.weight is Weight.WAITED for event in victims.events)
    it, were = ("it", "was") if len(ranks) == 1 else ("they", "were")
    lost = f"hung or {were} lost" if timed_out else f"{were} lost"
    if behind:
        says = f"hung: {it} {behind} {waiters} waited"
    elif roster.stuck & set(ranks):
        says = f"hung: {it} did not even end on SIGTERM (stopped, or stuck in the kernel), while {waiters} waited"
    elif timed_out:
        says = f"{lost}: {_own_log(ranks, roster)}, while {waiters} waited until they timed out"
    else:
        says = f"{lost}: {_own_log(ranks, roster)}, and the connections of {waiters} to it closed"
    if not (behind or roster.stuck) and not _are_one(ranks, roster):
        return _of_one_among(ranks, victims, timed_out, roster)
    if not (behind or roster.stuck or any(rank in roster.files for rank in ranks)):
        if _have_logs_each(roster) or _have_hosts_each(ranks, roster):
            return _of_missing_log(ranks, cause, victims, timed_out, roster)
        says = f"{lost}, or no log of it is here, while {waiters} waited"
    stuck = (event for event in roster.evidence.events if event.kind == "stuck_process")
    clues = (*silent_clues(ranks, roster), *shown(Role.SHOWS, stuck, roster), *shown(Role.THEN, victims.events, roster))
    code, fix = (cause.first.code, _ADVICE["silent"]) if timed_out else ("JOB_KILLED", _ADVICE["lost"])
    return First(code, roster.named(ranks), says, fix, clues, roster.one_host(ranks), tuple(ranks))


def _are_one(ranks: Sequence[int], roster: Roster) -> bool:
    """Whether ranks can be lost by one cause: one rank, or all of a host that is not the only one."""
    hosts = {roster.hosts.get(rank) for rank in ranks}
    host = next(iter(hosts))
    all_of_it = host is not None and set(on_host(host, roster)) == set(ranks)
    return len(ranks) == 1 or (len(hosts) == 1 and all_of_it and len(set(roster.hosts.values())) > 1)


def _have_logs_each(roster: Roster) -> bool:
    """Whether each rank that has a log has it for itself: then one without may only lack it. In a stream of all
    ranks it would have been seen."""
    places = Counter((path, roster.hosts.get(rank)) for rank, paths in roster.files.items() for path in paths)
    return len(places) > 1 and max(places.values()) == 1


def _have_hosts_each(ranks: Sequence[int], roster: Roster) -> bool:
    """Whether what is here comes from hosts with a rank each, and nothing comes from a host of `ranks`."""
    hosts = [roster.hosts.get(rank) for rank in sorted(roster.ranks - set(ranks))]
    return (
        len(hosts) > 1 and None not in hosts and len(set(hosts)) == len(hosts) and not roster.hosts.keys() & set(ranks)
    )


def _of_missing_log(ranks: Sequence[int], cause: Cause, victims: Victims, timed_out: bool, roster: Roster) -> First:
    waited, fix = ("waited until they timed out", "silent") if timed_out else ("found peers gone", "lost")
    says = f"{waited}, none of them was first, and no log of {roster.named(ranks)} is here: give it too"
    clues = shown(Role.THEN, victims.events, roster)
    return First(cause.first.code, ranks_text(victims.ranks), says, _ADVICE[fix], clues, by_cause=False)


def _of_one_among(ranks: Sequence[int], victims: Victims, timed_out: bool, roster: Roster) -> First:
    """Several ranks say nothing: one of them was first, and it is not told which."""
    waited = "waited until they timed out" if timed_out else "found their peers gone"
    hosts = {roster.hosts.get(rank) for rank in ranks}
    return First(
        "JOB_COLLECTIVE_TIMEOUT" if timed_out else "JOB_KILLED",
        f"one of {roster.named(ranks)}",
        f"was first, and nothing says which: none of them has an error, while {ranks_text(victims.ranks)} {waited}",
        Fix(_ADVICE["silent"].text, _ADVICE["lost"].commands) if timed_out else _ADVICE["lost"],
        (*silent_clues(ranks, roster), *shown(Role.THEN, victims.events, roster)),
        hosts.pop() if len(hosts) == 1 else None,
    )


def _own_log(ranks: Sequence[int], roster: Roster) -> str:
    there = [rank for rank in ranks if rank in roster.files]
    whose = "its log ends" if len(ranks) == 1 else "their logs end"
    return f"{whose} without an error" if there else "no line of any file is of it (is its log missing?)"


def silent_clues(ranks: Sequence[int], roster: Roster, role: Role = Role.FIRST) -> tuple[Clue, ...]:
    return tuple(
        Clue(role, path, host=roster.hosts.get(rank), ranks=(rank,), is_last_line=True)
        for rank in ranks[:MAX_SHOWN]
        for path in roster.files.get(rank, ())
        if path not in roster.dumps
    )
