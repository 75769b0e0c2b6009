"""Notices of incidents, for people elsewhere: when one opens, changes its culprit, and closes. No clock, no file.

What was told of an incident is known as long as it is open, also to the next collector: a culprit that comes and goes
is not told twice, and an incident that was never told is told as opened, whenever it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, structs

from laggard.collector.incidents.incident import Incident, bounded
from laggard.collector.jobs.key import JobKey
from laggard.model import Culprit, Location
from laggard.wire import encode

if TYPE_CHECKING:  # a command that reads the database starts without numpy
    from laggard.collector.jobs.snapshot import JobSnapshot

OPENED: Final = "opened"
CHANGED: Final = "changed"
CLOSED: Final = "closed"

CHANGE_SECONDS: Final = 60.0
"""The least time between two notices that an incident's culprit is another: one that changes in every round is told
once a minute."""

MAX_NOTICE_BYTES: Final = 128 << 10
"""The most bytes of a notice: one with more has no verdict."""

MAX_VERDICT_CULPRITS: Final = 32
MAX_NOTES: Final = 32
MAX_NOTE_CHARACTERS: Final = 400


class Notice(Struct, frozen=True):
    """One thing to tell of an incident. `id` stays the same however often it is sent. `event`: opened, changed or
    closed; `at`: Unix seconds on the collector's clock. `verdict`: the job's, then; None where the job was gone."""

    id: str
    event: str
    at: float
    incident: Incident
    verdict: Location | None = None
    script: str = ""
    started_at: float | None = None


class Told(Struct, frozen=True, array_like=True):
    """The last that was told of an open incident: who its culprit is, and when."""

    gist: str
    at: float


class NoticeChanges(NamedTuple):
    """The changes that are to be written: notices that were made, those that need not be sent any more, by id, and what
    was told of incidents; None of those that are closed."""

    made: tuple[Notice, ...] = ()
    done: tuple[str, ...] = ()
    told: Mapping[int, Told | None] = {}

    def __bool__(self) -> bool:
        return bool(self.made or self.done or self.told)


NOTHING: Final = NoticeChanges()


class NoticeMaker:
    """Makes notices of each round's incidents. `new_id` makes an id that nobody else has. Not thread-safe."""

    def __init__(self, new_id: Callable[[], str], told: Mapping[int, Told] | None = None) -> None:
        self._new_id = new_id
        self._told: dict[int, Told] = dict(told or {})

    def learn(self, told: Mapping[int, Told]) -> None:
        """Takes what a former collector told; what is known here counts more."""
        self._told = {**told, **self._told}

    def forget(self, incidents: Iterable[int]) -> None:
        """Forgets what was told of incidents, by id, which another collector goes on with."""
        for number in incidents:
            self._told.pop(number, None)

    def observe(
        self, open_now: Sequence[Incident], closed: Iterable[Incident], jobs: Sequence[JobSnapshot], wall: float
    ) -> NoticeChanges:
        """The notices of a round, and how what was told changes with them. `closed`: since the round before."""
        by_key = {job.key: job for job in jobs}
        made: list[Notice] = []
        told: dict[int, Told | None] = {}
        for incident in open_now:
            event = self._event(incident, wall)
            if event:
                told[incident.id] = self._told[incident.id] = Told(gist(incident.culprit), wall)
                made.append(self._notice(event, incident, by_key, wall))
        for incident in closed:
            if self._told.pop(incident.id, None) is not None:
                told[incident.id] = None
                made.append(self._notice(CLOSED, incident, by_key, wall))
        return NoticeChanges(tuple(made), told=told)

    def _event(self, incident: Incident, wall: float) -> str:
        before = self._told.get(incident.id)
        if before is None:
            return OPENED
        is_due = not 0 <= wall - before.at < CHANGE_SECONDS
        return CHANGED if is_due and before.gist != gist(incident.culprit) else ""

    def _notice(self, event: str, incident: Incident, jobs: Mapping[JobKey, JobSnapshot], wall: float) -> Notice:
        job = jobs.get(incident.key)
        verdict, script, began = (
            (bounded_verdict(job.location), job.script, job.started_at) if job else (None, "", None)
        )
        notice = Notice(self._new_id(), event, wall, incident, verdict, script[:MAX_NOTE_CHARACTERS], began)
        return notice if len(encode(notice)) <= MAX_NOTICE_BYTES else structs.replace(notice, verdict=None)


def gist(culprit: Culprit) -> str:
    """Returns what makes it another culprit for a reader: its kind and place, not its phase or its findings."""
    ranks = ",".join(map(str, culprit.ranks))
    return "|".join(
        (culprit.kind, ranks, *culprit.machines, culprit.device or "", "stopped" if culprit.stopped else "")
    )


def bounded_verdict(location: Location) -> Location:
    """The verdict in some tens of kilobytes at most, whatever the job's ranks reported."""
    notes = (
        structs.replace(note, text=note.text[:MAX_NOTE_CHARACTERS], ranks=note.ranks[:64])
        for note in location.notes[:MAX_NOTES]
    )
    culprits = tuple(bounded(culprit) for culprit in location.culprits[:MAX_VERDICT_CULPRITS])
    return structs.replace(location, culprits=culprits, notes=tuple(notes))
