"""Those that a failure made fail: the ranks that complained of others, and the lines that show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.job.cause import Cause
from laggard.diagnose.job.events import Event
from laggard.diagnose.joined.clue import Clue, JobFile, Role
from laggard.diagnose.joined.roster import OF_A_LAUNCHER, Roster

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


def then(events: Iterable[Event], files: Sequence[JobFile]) -> tuple[Clue, ...]:
    listed_events = list(events)[:MAX_SHOWN]
    return tuple(Clue.of_event(Role.THEN, event, files[event.place.file].path) for event in listed_events)


def on_host(host: str | None, roster: Roster) -> tuple[int, ...]:
    return tuple(sorted(rank for rank, its in roster.hosts.items() if host and its == host))
