"""The history of incidents: follows the verdicts of each round, and keeps what it sees in a database.

Without a database, or with one that fails, the incidents that are open are known all the same, until the collector
ends; what is wrong stands in the answers, on the page and in a metric, and the file is tried again each minute.
Nothing waits for the disk but a thread of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from msgspec import structs

from laggard.collector.incidents.database import (
    IncidentDatabase,
    read_digest,
    read_faults,
    read_incidents,
    read_machine,
)
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
    Moment,
    NodeSight,
    incident_of,
    of_incident,
    with_confirmation,
)
from laggard.collector.incidents.shared_database import Moved, SharedDatabase, SharedIds, open_database
from laggard.collector.incidents.tables import MAX_CONFIRMATIONS, DatabaseError, MachineRows, NodeRows
from laggard.collector.incidents.tracker import MAX_OPEN, IncidentTracker
from laggard.collector.incidents.waiting import Batch, Newest, Waiting
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.kit.address import is_database_url, without_login
from laggard.wire.digest import Digest
from laggard.wire.exclusion import MAX_SECONDS, Confirmation

log = logging.getLogger("laggard.collector")

T = TypeVar("T")

RETRY_SECONDS = 60.0
SHARED_RETRY_SECONDS = 5.0
"""The same where a server keeps them, which is soon there again, or another machine in its place."""

STUCK_SECONDS = 30.0
NEWS_SECONDS = 30.0
"""The time after which a collector asks again what others wrote into a database that they share."""

MAX_SLOW_LINKS = 1024
"""The most slow links that are remembered without the database, the last ones."""

MAX_SUSPECTS = 4096
"""The most incidents that are remembered without the database, the last ones, to tell which nodes jobs led to."""

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

    @property
    def is_shared(self) -> bool:
        return is_database_url(self.path)


def now() -> Moment:
    return Moment(time.time(), time.monotonic())


class IncidentHistory:
    """observe() is called by one thread at a time, everything else by any."""

    def __init__(self, settings: HistorySettings, clock: Callable[[], Moment] = now) -> None:
        self._settings, self._clock = settings, clock
        self._database: IncidentDatabase | None = None
        self._ids = SharedIds()  # empty where no other collector writes
        self._news_at = clock().monotonic
        self._waiting = Waiting()
        self._changed = threading.Condition()
        self._slow_links: Newest[int, Incident] = Newest(MAX_SLOW_LINKS)
        self._past: Newest[int, Incident] = Newest(MAX_SUSPECTS)
        self._others: Newest[int, Incident] = Newest(MAX_SUSPECTS)  # that other collectors wrote
        self._ended_elsewhere: Newest[int, Incident] = Newest(MAX_SUSPECTS)
        self._confirmations: list[Confirmation] = []
        self._writing_since: float | None = None
        self._ends = False
        self._writer: threading.Thread | None = None
        self._tracker = IncidentTracker(settings.quiet_seconds, clock())
        self._fault_tracker = FaultTracker(settings.quiet_seconds, clock())
        self._open_now: tuple[Incident, ...] = ()
        self._faults_now: tuple[Fault, ...] = ()
        self.lost: dict[str, float] = {}
        self.state = HistoryState("off", "the database has not been opened yet")
        self.opened: dict[str, int] = {}
        self.closed: Counter[str] = Counter()
        self._closed_lately: Newest[int, tuple[Incident, float]] = Newest(MAX_CLOSED_LATELY)
        self.refused = 0

    def start(self) -> None:
        """Opens the database, and goes on with the incidents that are open there. To be called once, before the first
        observe()."""
        if why := _why_off(self._settings):
            log.info("incidents are not kept over restarts: %s", why)
            self.state = HistoryState("off", why)
            return
        before, closed = self._open()
        self._tracker = IncidentTracker(self._settings.quiet_seconds, self._clock(), before)
        since = self._clock().wall - REMEMBER_SECONDS
        self._tracker.remember(it for it in closed if (it.closed_at or since) >= since)
        self._remember(before)
        if self._settings.is_shared:
            self._others.put((it.id, it) for it in closed)
        else:
            self._remember(closed)
        self._go_on_with_nodes()
        self._open_now = self._tracker.open
        self._writer = threading.Thread(target=self._write_for_ever, name="incidents", daemon=True)
        self._writer.start()

    def _go_on_with_nodes(self) -> None:
        """Goes on with the faults and names of the database, and remembers what was over within the week."""
        if self._database is None:
            return
        since = self._clock().wall - WEEK_SECONDS
        try:
            rows, closed = self._database.open_nodes(since)
            ended = self._database.closed_since(since, MAX_OPEN)
        except DatabaseError as error:
            log.error("faults that come back are not told of: %s", error)
            return
        quiet, moment = self._settings.quiet_seconds, self._clock()
        self._tracker.remember_ends(ended)
        self._fault_tracker = FaultTracker(quiet, moment, rows.faults, rows.names)
        self._fault_tracker.remember(closed)
        self._faults_now = self._fault_tracker.open

    def move(self, moved: Moved) -> None:
        """Lets go of jobs that another collector watches from now on, and goes on with the incidents of those that have
        come here. To be called by the thread that calls observe(), before it."""
        with self._changed:
            self._tracker.remember_ends(self._ended_elsewhere.take().values())
        if not moved:
            return
        released = self._tracker.release(moved.released)
        here = [it for key in {it.key for it in moved.incidents} for it in self._tracker.known(key)]
        known = {self._ids.incidents.row(it.id) or it.id for it in here}  # also what the database has as open yet
        new = [it for it in moved.incidents if it.id not in known and self._ids.incidents.adopt(it.id)]
        self._tracker.inherit((it for it in new if it.closed_at is None), self._clock())
        for it in moved.incidents:
            self._tracker.learn(it)
        closed = [it for it in new if it.closed_at is not None]
        self._tracker.remember(closed)
        self._tracker.remember_ends(closed)
        with self._changed:
            left = {it.id: it for it in released}
            self._waiting.incidents.put(left.items())  # what stands there of them is up to a minute old
            self._past.drop(left)
            self._slow_links.drop(left)
            self._others.put((it.id, it) for it in self._numbered(released))
            self._open_now = self._tracker.open
            self._changed.notify_all()

    def observe(self, jobs: Sequence[JobSnapshot], nodes: Sequence[NodeSight] = ()) -> None:
        """Takes the verdicts and the nodes' reports of one round in."""
        moment = self._clock()
        changed = self._tracker.observe([observation(job) for job in jobs], moment)
        faults, names = self._fault_tracker.observe(nodes, moment)
        with self._changed:
            self._note_closed(changed, moment.monotonic)
            self._faults_now = self._fault_tracker.open
            self.lost = dict(self._tracker.lost)
            self._waiting.faults.put((it.id, it) for it in faults)
            self._waiting.names.put(((it.node, it.machine), it) for it in names)
            self._waiting.incidents.put((it.id, it) for it in changed)
            self._remember(changed)
            self._open_now, self.refused = self._tracker.open, self._tracker.refused
            self.opened = dict(self._tracker.opened)
            if self.state.state == "off":
                self._waiting.take()
            self._changed.notify_all()

    @property
    def open(self) -> tuple[Incident, ...]:
        """The incidents that are open, of the jobs that this collector watches."""
        return self._numbered(self._open_now)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that are open, of the nodes that this collector watches."""
        return tuple(map(self._ids.fault, self._faults_now))

    def _numbered(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """The incidents under the ids that they have in the database."""
        return tuple(map(self._ids.incident, incidents))

    def _note_closed(self, incidents: Iterable[Incident], now: float) -> None:
        """Remembers those of them that were closed in this round: `closed_at` may be minutes before."""
        closed = [it for it in incidents if it.closed_at is not None]
        self._closed_lately.put((it.id, (it, now)) for it in closed)
        self.closed = self.closed + Counter(it.opened_as.kind for it in closed)

    @property
    def closed_lately(self) -> tuple[Incident, ...]:
        """The incidents that this collector closed within LATELY_SECONDS, the last ones."""
        with self._changed:
            since = self._clock().monotonic - LATELY_SECONDS
            return tuple(it for it, at in self._closed_lately if at >= since)

    def machine(self, node: str, limit: int) -> MachineRows:
        """The faults of the machine of that name, the newest first, and its names."""
        with self._changed:
            here = [it for it in self.faults if it.node == node]
            fresh = [it for it in map(self._ids.fault, self._waiting.faults) if it.node == node]
        kept = self._stored(MachineRows(), "no faults of an earlier time", lambda at: read_machine(at, node, limit))
        faults = self._faults((*kept.faults, *fresh, *here))
        newest = sorted(faults.values(), key=lambda it: -it.id)[:limit]
        return MachineRows(tuple(newest), kept.names, kept.others_until)

    def all_faults(self, since: float) -> tuple[Fault, ...]:
        """The faults of all machines that were open then or later."""
        kept = self._stored(tuple[Fault, ...](), "no faults of an earlier time", lambda at: read_faults(at, since))
        return tuple(self._faults((*kept, *self.faults)).values())

    def _faults(self, faults: Iterable[Fault]) -> dict[int, Fault]:
        """The faults by id: what is known last, with what other collectors know of the same."""
        found: dict[int, Fault] = {}
        for it in faults:
            found[it.id] = merged_fault(found[it.id], it) if it.id in found else it
        return found

    def keep(self, digests: Iterable[KeptDigest]) -> None:
        """Keeps digests of runs. While there is no database they are lost."""
        with self._changed:
            if self.state.state == "on":
                own = map(self._with_own_id, digests)
                self._waiting.digests.put(((it.owner, it.job_id, it.run), it) for it in own)
                self._changed.notify_all()

    def _with_own_id(self, kept: KeptDigest) -> KeptDigest:
        """The digest of an incident that is open, under the id that this collector gave that, until it is written."""
        number = incident_of(kept.run)
        if number is None:
            return kept
        of_job = (it for it in self._open_now if (it.owner, it.job_id) == (kept.owner, kept.job_id))
        own = next((it.id for it in of_job if number in (it.id, self._ids.incident(it).id)), number)
        return kept._replace(run=of_incident(own))

    def digest(self, asked: AskedDigest) -> Digest | None:
        """The digest that is kept of a run; None where there is none, or no database."""
        return self._stored(None, "no digest of an earlier run", lambda at: read_digest(at, asked))

    def _stored(self, otherwise: T, lack: str, read: Callable[[str], T]) -> T:
        """Reads from the place of the database; `otherwise` where there is none, or it fails: `lack` is then told."""
        try:
            return read(self._settings.path) if self.told_state().state == "on" else otherwise
        except DatabaseError as error:
            log.error("%s: %s", lack, error)
            return otherwise

    def slow_links(self, since: float) -> tuple[Incident, ...]:
        """Those of slow links that were open at `since` (Unix seconds) or later, also of jobs that are gone, and where
        there is no database: a ring may measure their machines hours later."""
        with self._changed:
            own = (it for it in (*self._slow_links, *self._open_now) if it.culprit.kind == "slow_link")
            others = (it for it in self._others if it.culprit.kind == "slow_link")
            known = {it.id: it for it in (*others, *self._numbered(own))}
        return tuple(it for it in known.values() if IncidentQuery(since=since).matches(it))

    def suspects(self, since: float) -> tuple[Incident, ...]:
        """The incidents that were open at `since` (Unix seconds) or later, also of jobs that are gone, and where there
        is no database: the nodes of a job that has ended are suspected until they were measured, or long enough."""
        with self._changed:
            known = {it.id: it for it in (*self._others, *self._numbered((*self._past, *self._open_now)))}
        return tuple(it for it in known.values() if IncidentQuery(since=since).matches(it))

    def confirmations(self) -> tuple[Confirmation, ...]:
        """The measurements of suspects, the oldest first."""
        with self._changed:
            return tuple(self._confirmations)

    def confirm(self, confirmation: Confirmation) -> tuple[int, ...]:
        """Keeps a measurement of a suspect. Returns the ids of the incidents, of those that are open or were of late,
        in which it stands now."""
        with self._changed:
            self._confirmations = [*self._confirmations, confirmation][-MAX_CONFIRMATIONS:]
            if self.state.state != "off":
                self._waiting.confirmations.put([((confirmation.node, confirmation.at), confirmation)])
                self._changed.notify_all()
        known = self.suspects(confirmation.at - MAX_SECONDS)
        return tuple(it.id for it in known if with_confirmation(it, (confirmation,)) is not it)

    def _remember(self, incidents: Collection[Incident]) -> None:
        self._past.put((it.id, it) for it in incidents)
        self._slow_links.put((it.id, it) for it in incidents if it.culprit.kind == "slow_link")

    def document(self, query: IncidentQuery) -> IncidentsDocument:
        """The answer to a query: what the database holds, and over it what is known better."""
        with self._changed:
            known = {it.id: it for it in (*self._numbered(self._waiting.incidents), *self.open)}
        opened = len(self.open)
        state, stored, following = self.told_state(), {}, None
        if state.state == "on":
            try:
                rows, count = read_incidents(self._settings.path, query)
                stored, following = {it.id: it for it in rows.incidents}, rows.last_id
                if self._settings.is_shared:
                    opened = max(count, opened)
                    known = {key: merged_incident(stored.get(key, it), it) for key, it in known.items()}
            except DatabaseError as error:
                state = HistoryState("failed", str(error))
        found = sorted((it for it in {**stored, **known}.values() if query.matches(it)), key=lambda it: -it.id)
        if len(found) > query.limit:
            following = found[query.limit - 1].id
        known_of_nodes = self.confirmations()
        found = [
            with_confirmation(it, known_of_nodes)
            for it in found[: query.limit]
            if following is None or it.id >= following
        ]
        return IncidentsDocument(tuple(found), following, opened, self._clock().wall, state)

    def told_state(self) -> HistoryState:
        """The state, `failed` also while the disk does not answer."""
        since = self._writing_since
        if since is not None and self._clock().monotonic - since > STUCK_SECONDS:
            who = "the database" if self._settings.is_shared else "the disk"
            return HistoryState("failed", f"{without_login(self._settings.path)}: {who} has not answered for over 30 s")
        return self.state

    def flush(self, seconds: float) -> bool:
        """Returns whether everything was written within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and self._writing_since is None, seconds)

    def close(self) -> None:
        """Writes what is left, if the disk answers soon."""
        if self.state.state == "on":
            self.flush(2.0)
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        if self._writer is not None:
            self._writer.join(2.0)  # it closes the file; a disk that hangs does not keep the collector

    def _open(self) -> tuple[tuple[Incident, ...], tuple[Incident, ...]]:
        """Opens the database. Returns the incidents that are open there, and those closed of late."""
        settings = self._settings
        try:
            database = open_database(
                settings.path,
                settings.max_bytes,
                settings.keep_seconds,
                self._ids,
                settings.writer,
                settings.quiet_seconds,
            )
        except DatabaseError as error:
            self._failed(error)
            return (), ()
        try:
            found = () if settings.takes_over else database.open_incidents(MAX_OPEN)
            closed = database.closed_since(self._clock().wall - MAX_SECONDS, MAX_OPEN)
            confirmations, size = database.confirmations(), database.bytes()
        except DatabaseError as error:
            database.close()
            self._failed(error)
            return (), ()
        with self._changed:  # one that is opened late has those of before, too
            self._know(confirmations)
        self._database, self.state = database, HistoryState("on", bytes=size)
        return found, closed

    def _failed(self, error: DatabaseError) -> None:
        log.error("no history of incidents: %s", error)
        self.state = HistoryState("failed", str(error))
        if self._database is not None:
            self._database.close()
            self._database = None

    def _write_for_ever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends, self._patience())
                if self._ends:
                    break
                batch = self._waiting.take()
                self._writing_since = self._clock().monotonic
            was_open = self._database is not None
            written = self._write(batch)
            with self._changed:
                self._writing_since = None
                if not written:
                    self._waiting.put_back(batch)
                self._changed.notify_all()
                pause = self._pause(was_open)
                if not written and self._changed.wait_for(lambda: self._ends, pause):
                    break
        if self._database is not None:
            self._database.close()

    def _pause(self, was_open: bool) -> float:
        """The seconds until what failed is tried again. A connection may have ended long ago, with a server that is
        there again."""
        if not self._settings.is_shared:
            return RETRY_SECONDS
        return 0.0 if was_open else SHARED_RETRY_SECONDS

    def _patience(self) -> float | None:
        """The seconds until others are to be asked for news; None where there are none."""
        if not self._settings.is_shared:
            return None
        return max(0.0, NEWS_SECONDS - (self._clock().monotonic - self._news_at))

    def _write(self, batch: Batch) -> bool:
        """Returns whether it is in the database; opens one that could not be used before."""
        incidents = batch.incidents
        if self._database is None:
            left, _ = self._open()
            incidents = {**{it.id: it for it in self._unwatched(left)}, **incidents}
        if self._database is None:
            return False
        wall = self._clock().wall
        try:
            size = self._database.write(incidents.values(), wall)
            rows = NodeRows(tuple(batch.faults.values()), tuple(batch.names.values()))
            self._database.keep_nodes(rows, wall)
            if batch.confirmations:
                self._database.keep_confirmations(batch.confirmations.values(), wall)
        except DatabaseError as error:
            self._failed(error)
            return False
        self.state = HistoryState("on", bytes=size)
        try:
            self._database.keep_digests(batch.digests.values(), wall)
        except DatabaseError as error:  # incidents are worth more
            log.error("no digests of runs: %s", error)
            return True
        try:
            self._learn(self._database)
        except DatabaseError as error:
            log.error("no news of other collectors: %s", error)
        return True

    def _learn(self, database: IncidentDatabase) -> None:
        """Takes what other collectors wrote, where it is time to. Raises DatabaseError."""
        if not isinstance(database, SharedDatabase) or self._patience():
            return
        self._news_at = self._clock().monotonic
        news = database.news()
        with self._changed:
            self._others.put((it.id, it) for it in news.incidents)
            if self._settings.takes_over:  # what comes back may come back to another collector
                self._ended_elsewhere.put((it.id, it) for it in news.incidents if it.closed_at is not None)
            self._know(news.confirmations)

    def _know(self, confirmations: Iterable[Confirmation]) -> None:
        """Takes measurements of suspects that are in the database."""
        known = {(it.node, it.at): it for it in (*confirmations, *self._confirmations)}
        self._confirmations = sorted(known.values(), key=lambda it: it.at)[-MAX_CONFIRMATIONS:]

    def _unwatched(self, left: Sequence[Incident]) -> list[Incident]:
        """The incidents that a file which is opened late holds as open, and this collector has never watched, as closed
        ones."""
        watched = {it.id for it in self.open}
        return [
            structs.replace(it, closed_at=it.seen_at, closed_because="ended_while_down")
            for it in left
            if it.id not in watched
        ]


def _why_off(settings: HistorySettings) -> str:
    """The reason why there is no database, in words; empty where there is to be one."""
    if not settings.path:
        return "incidents_database is empty in the collector's settings"
    if settings.is_shared:
        return ""
    folder = os.path.dirname(os.path.abspath(settings.path))
    if settings.optional and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        return f"{folder} is not there, or not the collector's to write: make it, or set incidents_database"
    return ""
