"""The history of incidents: follows the verdicts of each round, and keeps what it sees in a database.

Without a database, or with one that fails, the incidents that are open are known all the same, until the collector
ends; what is wrong stands in the answers, on the page and in a metric, and the place is tried again. Nothing waits for
the disk but a thread of its own (writer.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from laggard.collector.incidents import reads
from laggard.collector.incidents.fault_tracker import FaultTracker, observation
from laggard.collector.incidents.identity import merged_fault, merged_incident
from laggard.collector.incidents.incident import (
    WEEK_SECONDS,
    AskedDigest,
    Fault,
    HistoryState,
    Incident,
    IncidentQuery,
    IncidentsDocument,
    KeptDigest,
    MachineRows,
    Moment,
    NodeSight,
    incident_of,
    of_incident,
    with_confirmation,
)
from laggard.collector.incidents.reads import MAX_CONFIRMATIONS
from laggard.collector.incidents.rows import OwnIds
from laggard.collector.incidents.schema import DatabaseError
from laggard.collector.incidents.store import News, Store, StoreSettings
from laggard.collector.incidents.tracker import MAX_OPEN, IncidentTracker, Moved
from laggard.collector.incidents.writer import Newest, Writer
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.settings import INCIDENTS_DATABASE, CollectorSettings, incidents_path, incidents_writer
from laggard.kit.address import is_database_url
from laggard.wire.digest import Digest
from laggard.wire.exclusion import MAX_SECONDS, Confirmation

log = logging.getLogger("laggard.collector")

T = TypeVar("T")

MAX_KNOWN = 8192
"""The most incidents that are remembered without the database, the last ones, to tell which nodes and links jobs led
to."""

LATELY_SECONDS = 300.0
"""The time for which an incident that was closed is told of as such: five scrapes of a Prometheus that comes once a
minute."""

MAX_CLOSED_LATELY = 1024
"""The most incidents that are told of as closed, the last ones."""

REMEMBER_SECONDS = 86400.0
"""The time for which a job that has ended may still be reported after its incidents were closed."""


class HistorySettings(NamedTuple):
    """`path` empty: no database is asked for. `quiet_seconds`: docs/incidents.md. `optional`: whether a missing folder
    is no failure, as with the default path. Where `path` is a URL of PostgreSQL, `writer` is this collector's name
    there, the same after a restart. `takes_over`: whether jobs move between the collectors there, and their incidents
    with them (move()); then it goes on with none by itself."""

    path: str
    max_bytes: int
    keep_seconds: float
    quiet_seconds: float
    optional: bool = False
    writer: str = "collector"
    takes_over: bool = False

    @classmethod
    def of(cls, settings: CollectorSettings, environ: Mapping[str, str]) -> HistorySettings:
        return cls(
            path=incidents_path(settings, environ),
            max_bytes=settings.incidents_max_bytes,
            keep_seconds=settings.incidents_keep_seconds,
            quiet_seconds=settings.incident_quiet_seconds,
            optional=settings.incidents_database == INCIDENTS_DATABASE,
            takes_over=bool(settings.evaluators),
            writer=incidents_writer(settings, environ),
        )

    @property
    def store(self) -> StoreSettings:
        return StoreSettings(self.path, self.max_bytes, self.keep_seconds, self.quiet_seconds, self.writer)


def now() -> Moment:
    return Moment(time.time(), time.monotonic())


class IncidentHistory:
    """observe() is called by one thread at a time, everything else by any."""

    def __init__(self, settings: HistorySettings, clock: Callable[[], Moment] = now) -> None:
        self._settings, self._clock = settings, clock
        self.ids = OwnIds()  # all the same as the rows' where no other collector writes
        self.writer = Writer(settings.store, self.ids, clock, self)
        self._lock = threading.RLock()
        self._known: Newest[tuple[bool, int], Incident] = Newest(MAX_KNOWN)  # by whether it is its own, and id
        self._ended_elsewhere: list[Incident] = []
        self._confirmations: list[Confirmation] = []
        self._tracker = IncidentTracker(settings.quiet_seconds, clock())
        self._fault_tracker = FaultTracker(settings.quiet_seconds, clock())
        self._open_now: tuple[Incident, ...] = ()
        self._faults_now: tuple[Fault, ...] = ()
        self._closed_lately: Newest[int, tuple[Incident, float]] = Newest(MAX_CLOSED_LATELY)
        self.lost: dict[str, float] = {}
        self.opened: dict[str, int] = {}
        self.closed: Counter[str] = Counter()
        self.refused = 0

    def start(self) -> None:
        """Opens the database, and goes on with what is open there. To be called once, before the first observe()."""
        if why := _why_off(self._settings):
            log.info("incidents are not kept over restarts: %s", why)
            self.writer.state = HistoryState("off", why)
            return
        self.writer.start()

    def begun(self, store: Store, is_first: bool) -> Sequence[Incident]:
        """Takes what a database holds that was opened just now: at the start goes on with it, and later closes what is
        open there and was never watched, which is returned. Called by the writer. Raises DatabaseError."""
        moment, quiet = self._clock(), self._settings.quiet_seconds
        left = () if self._settings.takes_over else store.open_incidents(MAX_OPEN)
        confirmations = store.confirmations()
        if not is_first:
            self.know(News((), confirmations))
            watched = {it.id for it in self.open}
            return [it for it in left if it.id not in watched]
        closed = store.closed_since(moment.wall - MAX_SECONDS, MAX_OPEN)
        nodes = store.nodes(moment.wall - WEEK_SECONDS)
        self._tracker = IncidentTracker(quiet, moment, left)
        since = moment.wall - REMEMBER_SECONDS
        self._tracker.remember(it for it in closed if (it.closed_at or since) >= since)
        self._tracker.remember_ends(closed)
        self._fault_tracker = FaultTracker(quiet, moment, nodes.faults, nodes.names)
        self._fault_tracker.remember(nodes.ended)
        with self._lock:
            is_own = not self._settings.store.is_shared
            self._known.put(((is_own, it.id), it) for it in closed)
            self._known.put(((True, it.id), it) for it in left)
            self._closed_lately.put((it.id, (it, moment.monotonic - _ago(it, moment.wall))) for it in closed)
            self._open_now, self._faults_now = self._tracker.open, self._fault_tracker.open
        self.know(News((), confirmations))
        return ()

    def know(self, news: News) -> None:
        """Takes what other collectors wrote. Called by the writer."""
        with self._lock:
            self._known.put(((False, it.id), it) for it in news.incidents)
            if self._settings.takes_over:  # what comes back may come back to another collector
                self._ended_elsewhere += [it for it in news.incidents if it.closed_at is not None]
                del self._ended_elsewhere[:-MAX_OPEN]
            known = {(it.node, it.at): it for it in (*news.confirmations, *self._confirmations)}
            self._confirmations = sorted(known.values(), key=lambda it: it.at)[-MAX_CONFIRMATIONS:]

    def move(self, moved: Moved) -> None:
        """Lets go of jobs that another collector watches from now on, and goes on with the incidents of those that have
        come here. To be called by the thread that calls observe(), before it."""
        with self._lock:
            ended, self._ended_elsewhere = self._ended_elsewhere, []
        self._tracker.remember_ends(ended)
        if not moved:
            return
        released = self._tracker.release(moved.released)
        here = [it for key in {it.key for it in moved.incidents} for it in self._tracker.known(key)]
        known = {self.ids.incidents.row(it.id) or it.id for it in here}  # also what the database has as open yet
        new = [it for it in moved.incidents if it.id not in known and self.ids.incidents.adopt(it.id)]
        self._tracker.take_over(new, moved.incidents, self._clock())
        with self._lock:
            self.writer.put(incidents=released)  # what stands there of them is up to a minute old
            self._known.drop((True, it.id) for it in released)
            self._known.put(((False, it.id), it) for it in self._numbered(released))
            self._open_now = self._tracker.open

    def observe(self, jobs: Sequence[JobSnapshot], nodes: Sequence[NodeSight] = ()) -> None:
        """Takes the verdicts and the nodes' reports of one round in."""
        moment = self._clock()
        changed = self._tracker.observe([observation(job) for job in jobs], moment)
        faults, names = self._fault_tracker.observe(nodes, moment)
        with self._lock:
            closed = [it for it in changed if it.closed_at is not None]
            self._closed_lately.put((it.id, (it, moment.monotonic)) for it in closed)
            self.closed = self.closed + Counter(it.opened_as.kind for it in closed)
            self._known.put(((True, it.id), it) for it in changed)
            self._open_now, self._faults_now = self._tracker.open, self._fault_tracker.open
            self.lost, self.opened = dict(self._tracker.lost), dict(self._tracker.opened)
            self.refused = self._tracker.refused
        self.writer.put(incidents=changed, faults=faults, names=names)

    @property
    def open(self) -> tuple[Incident, ...]:
        """The incidents that are open, of the jobs that this collector watches."""
        return self._numbered(self._open_now)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that are open, of the nodes that this collector watches."""
        return tuple(map(self.ids.fault, self._faults_now))

    def _numbered(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """The incidents under the ids that they have in the database."""
        return tuple(map(self.ids.incident, incidents))

    @property
    def closed_lately(self) -> tuple[Incident, ...]:
        """The incidents that this collector closed within LATELY_SECONDS, the last ones."""
        with self._lock:
            since = self._clock().monotonic - LATELY_SECONDS
            return tuple(it for it, at in self._closed_lately if at >= since)

    def machine(self, node: str, limit: int) -> MachineRows:
        """The faults of the machine of that name, the newest first, and its names."""
        fresh = [it for it in map(self.ids.fault, self.writer.waiting("faults")) if it.node == node]
        here = [it for it in self.faults if it.node == node]
        kept = self._stored(MachineRows(), lambda place: reads.read_machine(place, node, limit))
        newest = sorted(_faults((*kept.faults, *fresh, *here)), key=lambda it: -it.id)[:limit]
        return kept._replace(faults=tuple(newest))

    def all_faults(self, since: float) -> tuple[Fault, ...]:
        """The faults of all machines that were open then or later."""
        kept = self._stored(tuple[Fault, ...](), lambda place: reads.read_faults(place, since))
        return tuple(_faults((*kept, *self.faults)))

    def keep(self, digests: Iterable[KeptDigest]) -> None:
        """Keeps digests of runs. While there is no database they are lost."""
        if self.state.state == "on":
            self.writer.put(digests=map(self._with_own_id, digests))

    def _with_own_id(self, kept: KeptDigest) -> KeptDigest:
        """The digest of an incident that is open, under the id that this collector gave that, until it is written."""
        number = incident_of(kept.run)
        if number is None:
            return kept
        of_job = (it for it in self._open_now if (it.owner, it.job_id) == (kept.owner, kept.job_id))
        own = next((it.id for it in of_job if number in (it.id, self.ids.incident(it).id)), number)
        return kept._replace(run=of_incident(own))

    def digest(self, asked: AskedDigest) -> Digest | None:
        """The digest that is kept of a run; None where there is none, or no database."""
        return self._stored(None, lambda place: reads.read_digest(place, asked))

    def _stored(self, otherwise: T, read: Callable[[str], T]) -> T:
        """Reads from the place of the database; `otherwise` where there is none, or it fails."""
        try:
            return read(self._settings.path) if self.told_state().state == "on" else otherwise
        except DatabaseError as error:
            log.error("nothing of an earlier time is told: %s", error)
            return otherwise

    def slow_links(self, since: float) -> tuple[Incident, ...]:
        """The suspects() whose culprit is a link: a ring may measure their machines hours later."""
        return tuple(it for it in self.suspects(since) if it.culprit.kind == "slow_link")

    def suspects(self, since: float) -> tuple[Incident, ...]:
        """The incidents that were open at `since` (Unix seconds) or later, also of jobs that are gone, and where there
        is no database: the nodes of a job that has ended are suspected until they were measured, or long enough."""
        with self._lock:
            others = [it for (is_own, _), it in self._known.items() if not is_own]
            own = [it for (is_own, _), it in self._known.items() if is_own]
            known = {it.id: it for it in (*others, *self._numbered((*own, *self._open_now)))}
        return tuple(it for it in known.values() if IncidentQuery(since=since).matches(it))

    def confirmations(self) -> tuple[Confirmation, ...]:
        """The measurements of suspects, the oldest first."""
        with self._lock:
            return tuple(self._confirmations)

    def confirm(self, confirmation: Confirmation) -> tuple[int, ...]:
        """Keeps a measurement of a suspect. Returns the ids of the incidents, of those that are open or were of late,
        in which it stands now."""
        with self._lock:
            self._confirmations = [*self._confirmations, confirmation][-MAX_CONFIRMATIONS:]
        self.writer.put(confirmations=[confirmation])
        known = self.suspects(confirmation.at - MAX_SECONDS)
        return tuple(it.id for it in known if with_confirmation(it, (confirmation,)) is not it)

    def document(self, query: IncidentQuery) -> IncidentsDocument:
        """The answer to a query: what the database holds, and over it what is known better."""
        known = {it.id: it for it in (*self._numbered(self.writer.waiting("incidents")), *self.open)}
        opened, state, rows = len(self.open), self.told_state(), reads.Rows(())
        if state.state == "on":
            try:
                rows = reads.read_incidents(self._settings.path, query)
            except DatabaseError as error:
                state = HistoryState("failed", str(error))
        stored, following = {it.id: it for it in rows.incidents}, rows.last_id
        if self._settings.store.is_shared:
            opened = max(rows.opened, opened)
            known = {key: merged_incident(stored.get(key, it), it) for key, it in known.items()}
        found = sorted((it for it in {**stored, **known}.values() if query.matches(it)), key=lambda it: -it.id)
        if len(found) > query.limit:
            following = found[query.limit - 1].id
        of_page = (it for it in found[: query.limit] if following is None or it.id >= following)
        told = tuple(with_confirmation(it, self.confirmations()) for it in of_page)
        return IncidentsDocument(told, following, opened, self._clock().wall, state)

    @property
    def state(self) -> HistoryState:
        return self.writer.state

    def told_state(self) -> HistoryState:
        """The state, `failed` also while the disk does not answer."""
        return self.writer.told_state()

    def flush(self, seconds: float) -> bool:
        """Returns whether everything was written within `seconds`."""
        return self.writer.flush(seconds)

    def close(self) -> None:
        """Writes what is left, if the disk answers soon."""
        self.writer.close()


def _ago(it: Incident, wall: float) -> float:
    """For how many seconds it has been closed; 0 where the clock was set back since."""
    return max(0.0, wall - (it.closed_at or wall))


def _faults(faults: Iterable[Fault]) -> Iterable[Fault]:
    """The faults, one of each id: what is known last, with what other collectors know of the same."""
    found: dict[int, Fault] = {}
    for it in faults:
        found[it.id] = merged_fault(found[it.id], it) if it.id in found else it
    return found.values()


def _why_off(settings: HistorySettings) -> str:
    """The reason why there is no database, in words; empty where there is to be one."""
    if not settings.path:
        return "incidents_database is empty in the collector's settings"
    if is_database_url(settings.path):
        return ""
    folder = os.path.dirname(os.path.abspath(settings.path))
    if settings.optional and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        return f"{folder} is not there, or not the collector's to write: make it, or set incidents_database"
    return ""
