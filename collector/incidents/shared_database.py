"""The database of incidents that several collectors write. What two saw has one row, rows of one that is gone are
closed, and jobs move with their incidents.

A row is written again while its collector watches what it tells of. One that nobody has written for long is of a
collector that is gone, and of nothing that another watches: whoever sees that first closes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import structs

from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.identity import SLACK_SECONDS, merged_fault, merged_incident, same_fault, same_incident
from laggard.collector.incidents.incident import (
    WEEK_SECONDS,
    Fault,
    Incident,
    IncidentQuery,
    KeptDigest,
    incident_of,
    of_incident,
)
from laggard.collector.incidents.postgres import PostgresStore
from laggard.collector.incidents.tables import (
    MAX_FAULTS,
    Engine,
    NodeRows,
    bound_node_rows,
    decoded,
    documents,
    has_first_digest,
    keep_digest_rows,
    read_confirmation_rows,
    read_ended_faults,
    read_incident_rows,
    read_open_faults,
    store_fault_rows,
    store_incident_rows,
    store_later_names,
)
from laggard.kit.address import is_database_url
from laggard.model import JobKey
from laggard.wire.exclusion import Confirmation

# Rows that several collectors write: what is the same is found before it is stored, and has one row.
#
# All of it runs within a transaction that keeps the other collectors out, so nothing comes between what is looked for
# and what is stored. A collector goes on with ids of its own; which row each is, it remembers here.

MAX_IDS: Final = 65_536
"""The most ids that are remembered, the last ones."""

_CHUNK: Final = 500
"""The most values in one statement."""

T = TypeVar("T", Incident, Fault)


class Ids:
    """The row of each id that this collector gave away. What a transaction notes is known while it lasts, and after it
    was committed: a row that was not stored may be another's next."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._new: dict[int, int] = {}

    def row(self, own: int) -> int | None:
        """None where the id has no row yet."""
        return self._new.get(own, self._rows.get(own))

    def rows(self) -> set[int]:
        return {*self._rows.values(), *self._new.values()}

    def note(self, own: int, row: int) -> None:
        self._new[own] = row

    def inherit(self, row: int) -> bool:
        """Goes on with a former collector's row under its id; False where this one gave that id to something else."""
        if self.row(row) not in (None, row):
            return False
        self.note(row, row)
        return True

    def adopt(self, row: int) -> bool:
        """Does what inherit() does, outside of a transaction and from another thread than that of the writer."""
        return self._rows.setdefault(row, row) == row

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Goes around a transaction."""
        try:
            yield
            self._rows |= self._new
            while len(self._rows) > MAX_IDS:
                del self._rows[next(iter(self._rows))]
        finally:
            self._new = {}


@dataclasses.dataclass
class SharedIds:
    """The rows by a collector's own ids. It outlives connections."""

    incidents: Ids = dataclasses.field(default_factory=Ids)
    faults: Ids = dataclasses.field(default_factory=Ids)

    def incident(self, it: Incident) -> Incident:
        """The incident under the id of its row."""
        number, part_of = self.incidents.row(it.id) or it.id, it.part_of
        if part_of is not None:
            part_of = self.incidents.row(part_of) or part_of
        return it if (number, part_of) == (it.id, it.part_of) else structs.replace(it, id=number, part_of=part_of)

    def fault(self, it: Fault) -> Fault:
        """The fault under the id of its row."""
        number = self.faults.row(it.id) or it.id
        return it if number == it.id else structs.replace(it, id=number)


@dataclasses.dataclass(frozen=True)
class _Kind(Generic[T]):
    """`place`: the condition that selects the rows at the place of a value, and `words` what it has of that. `whole`:
    the row that a row has become part of."""

    table: str
    of: type[T]
    place: str
    words: Callable[[T], tuple[object, ...]]
    same: Callable[[T, T], bool]
    merged: Callable[[T, T], T]
    whole: Callable[[T], int | None] = lambda _: None


def store_incidents(engine: Engine, incidents: Iterable[Incident], ids: Ids) -> tuple[Incident, ...]:
    """Stores incidents, each under the id of its row. Returns them as they are stored."""
    stored = _resolved(engine, _INCIDENTS, tuple(incidents), ids)
    numbered = tuple(_with_part(it, ids) for it in stored)
    store_incident_rows(engine, numbered)
    return numbered


def store_faults(engine: Engine, faults: Iterable[Fault], ids: Ids) -> tuple[Fault, ...]:
    """Stores faults, each under the id of its row. Returns them as they are stored."""
    stored = tuple(_resolved(engine, _FAULTS, tuple(faults), ids))
    store_fault_rows(engine, stored)
    return stored


def _resolved(engine: Engine, kind: _Kind[T], values: Sequence[T], ids: Ids) -> list[T]:
    """The values as they are to be stored. Those of one id come together as the last of them."""
    rows, used = _by_id(engine, kind, [ids.row(it.id) or it.id for it in values])
    taken = ids.rows()
    stored: dict[int, T] = {}
    for value in values:
        number = ids.row(value.id)
        if number is None:
            row = rows.get(value.id)
            number = value.id if row is not None and _is_own(kind, row, value) else None
        if number is None:
            near = [it for it in _near(engine, kind, value) if it.id not in taken and kind.same(it, value)]
            found = min(near, key=lambda it: abs(it.opened_at - value.opened_at), default=None)
            if found is not None:
                number, rows[found.id] = found.id, found
            elif value.id in used or value.id in stored:
                number = _free(engine, kind.table, value.id, stored)
            else:
                number = value.id
        row = stored.get(number, rows.get(number))
        if row is not None and (whole := _whole(engine, kind, row, value)):
            number, row = whole.id, stored.get(whole.id, whole)
        ids.note(value.id, number)
        taken.add(number)
        stored[number] = structs.replace(value, id=number) if row is None else kind.merged(row, value)
    return list(stored.values())


def _whole(engine: Engine, kind: _Kind[T], row: T, value: T) -> T | None:
    """The row with which a value goes on whose own has become part of that by another collector's word: one names the
    rank, and then its machine; the other named the machine from the beginning."""
    number = kind.whole(row)
    if number is None or kind.whole(value) is not None or value.seen_at <= row.seen_at:
        return None
    found = _by_id(engine, kind, [number])[0].get(number)
    return found if found is not None and kind.same(found, value) else None


def _is_own(kind: _Kind[T], row: T, value: T) -> bool:
    """Whether the row with the value's own id is of the value, and not what another collector opened just then."""
    return row.opened_at == value.opened_at and kind.same(row, value)


def _by_id(engine: Engine, kind: _Kind[T], numbers: Sequence[int]) -> tuple[dict[int, T], set[int]]:
    """The rows with these ids, and which of the ids have one, also one that cannot be read."""
    found: dict[int, T] = {}
    used: set[int] = set()
    for start in range(0, len(numbers), _CHUNK):
        some = numbers[start : start + _CHUNK]
        places = ", ".join("?" * len(some))
        rows = engine.run(f"SELECT id, document FROM {kind.table} WHERE id IN ({places})", some)
        used |= {number for number, _ in rows}
        found |= {it.id: it for it in decoded((document for _, document in rows), kind.of)}
    return found, used


def _free(engine: Engine, table: str, wanted: int, stored: Mapping[int, object]) -> int:
    """The first id from `wanted` on that no row has."""
    while True:
        rows = engine.run(f"SELECT id FROM {table} WHERE id >= ? ORDER BY id LIMIT ?", (wanted, _CHUNK))
        used = {row[0] for row in rows}
        for number in range(wanted, wanted + _CHUNK):
            if number not in used and number not in stored:
                return number
        wanted += _CHUNK


def _with_part(it: Incident, ids: Ids) -> Incident:
    whole = None if it.part_of is None else ids.row(it.part_of)
    return it if whole is None else structs.replace(it, part_of=whole)


def _near(engine: Engine, kind: _Kind[T], it: T) -> tuple[T, ...]:
    """The rows at its place, at about its time: they may be the same."""
    text = (
        f"SELECT document FROM {kind.table} WHERE {kind.place} AND (closed_at IS NULL OR closed_at >= ?)"
        " ORDER BY id DESC LIMIT ?"
    )
    return documents(engine.run(text, (*kind.words(it), it.opened_at - SLACK_SECONDS, _CHUNK)), kind.of)


_INCIDENTS: Final = _Kind[Incident](
    "incidents",
    Incident,
    "owner = ? AND job_id = ?",
    lambda it: (it.owner, it.job_id),
    same_incident,
    merged_incident,
    lambda it: it.part_of if it.closed_because == "superseded" else None,
)
_FAULTS: Final = _Kind[Fault](
    "faults",
    Fault,
    "(node = ? OR (machine = ? AND machine != ''))",
    lambda it: (it.node, it.machine),
    same_fault,
    merged_fault,
)


LEFT_SECONDS: Final = 900.0
"""The time after which an incident that nobody has written is one that nobody watches. It is written once a minute
while somebody does, and closed when its job has been silent for incident_quiet_seconds."""

LEFT_FAULT_SECONDS: Final = 3 * 3600.0
"""The same of a fault, which is written once an hour."""

_MAX_NEWS: Final = 4096
"""The most incidents of others that are learnt at once, the last ones."""


class News(NamedTuple):
    """News of other collectors: incidents that they wrote, and all measurements of suspects."""

    incidents: tuple[Incident, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()


class SharedDatabase(IncidentDatabase):
    """A collector's connection to a database that others write, too. `ids`: outlives it."""

    def __init__(
        self, engine: PostgresStore, max_bytes: int, keep_seconds: float, ids: SharedIds, quiet_seconds: float
    ) -> None:
        super().__init__(engine, max_bytes, keep_seconds)
        self._store, self._ids = engine, ids
        self._left_seconds = max(LEFT_SECONDS, 3 * quiet_seconds)
        self._opened_at = time.monotonic()
        self._learnt_until: float | None = None

    def _store_incidents(self, incidents: tuple[Incident, ...]) -> None:
        engine, writer = self._store, self._store.writer
        with self._ids.incidents.kept(), engine.transaction():
            stored = store_incidents(engine, incidents, self._ids.incidents)
            mine = {self._ids.incidents.row(it.id) or it.id for it in incidents if it.closed_at is None}
            written = [(writer, it.id) for it in stored if it.id in mine or it.closed_at is not None]
            engine.many("UPDATE incidents SET writer = ?, written_at = now() WHERE id = ?", written)

    def keep_nodes(self, rows: NodeRows, now: float) -> None:
        engine, writer = self._store, self._store.writer
        with self._ids.faults.kept(), self._changing():
            faults = store_faults(engine, rows.faults, self._ids.faults)
            text = "UPDATE faults SET writer = ?, written_at = now() WHERE id = ?"
            engine.many(text, [(writer, it.id) for it in faults])
            store_later_names(engine, rows.names)
            bound_node_rows(engine, now - self._keep_seconds, self._max_bytes)

    def keep_digests(self, kept: Iterable[KeptDigest], now: float) -> None:
        """Stores digests as in a file, but of what a run was like when an incident began the first one holds."""
        numbered = [self._numbered(it) for it in kept]
        with self._changing() as engine:
            keep_digest_rows(engine, [it for it in numbered if not has_first_digest(engine, it)],
                             now - self._keep_seconds, self._max_bytes)  # fmt: skip

    def _numbered(self, it: KeptDigest) -> KeptDigest:
        number = incident_of(it.run)
        return it if number is None else it._replace(run=of_incident(self._ids.incidents.row(number) or number))

    def open_incidents(self, limit: int) -> tuple[Incident, ...]:
        """The newest that are open and that this collector goes on with: its own, and those that nobody watches any
        more. Raises DatabaseError."""
        text = f"SELECT document FROM incidents WHERE closed_at IS NULL AND {_MINE} ORDER BY id DESC LIMIT ?"
        with self.engine.told():
            found = documents(self.engine.run(text, (self._store.writer, self._left_seconds, limit)), Incident)
        with self._ids.incidents.kept():
            return tuple(it for it in found if self._ids.incidents.inherit(it.id))

    def open_nodes(self, since: float) -> tuple[NodeRows, tuple[Fault, ...]]:
        run, writer = self.engine.run, self._store.writer
        with self.engine.told():
            text = f"SELECT document FROM faults WHERE closed_at IS NULL AND {_MINE} ORDER BY id DESC LIMIT ?"
            faults = documents(run(text, (writer, LEFT_FAULT_SECONDS, 2 * MAX_FAULTS)), Fault)
            _, names = read_open_faults(self.engine)
            ended = read_ended_faults(self.engine, since)
        with self._ids.faults.kept():
            faults = tuple(it for it in faults if self._ids.faults.inherit(it.id))
        return NodeRows(faults, names), ended

    def news(self) -> News:
        """Returns what others wrote since it was asked last. Raises DatabaseError."""
        with self._changing() as engine:
            if time.monotonic() - self._opened_at >= self._left_seconds:
                self._close_left()
            now = float(engine.run("SELECT extract(epoch FROM now())")[0][0])
            since = now - WEEK_SECONDS if self._learnt_until is None else self._learnt_until
            text = (
                "SELECT document FROM incidents WHERE written_at >= to_timestamp(?) AND writer != ?"
                " ORDER BY written_at DESC LIMIT ?"
            )
            found = documents(engine.run(text, (since, self._store.writer, _MAX_NEWS)), Incident)[::-1]
            self._learnt_until = now
            return News(found, read_confirmation_rows(engine))

    def _close_left(self) -> None:
        """Closes what nobody watches any more, where this collector has been there for long: after a time without the
        database all collectors are late."""
        engine = self._store
        text = f"SELECT document FROM incidents WHERE closed_at IS NULL AND {_LEFT} LIMIT 1024"
        left = documents(engine.run(text, (self._left_seconds,)), Incident)
        because = "ended_while_down"
        closed = [structs.replace(it, closed_at=it.seen_at, closed_because=because) for it in left]
        store_incident_rows(engine, closed)
        engine.many("UPDATE incidents SET written_at = now() WHERE id = ?", [(it.id,) for it in closed])
        text = f"SELECT document FROM faults WHERE closed_at IS NULL AND {_LEFT} LIMIT 1024"
        faults = documents(engine.run(text, (WEEK_SECONDS,)), Fault)
        store_fault_rows(engine, [structs.replace(it, closed_at=it.seen_at, closed_because="gone") for it in faults])


_LEFT: Final = "written_at < now() - make_interval(secs => ?)"
_MINE: Final = f"(writer = ? OR {_LEFT})"


def open_database(
    place: str,
    max_bytes: int,
    keep_seconds: float,
    ids: SharedIds,
    writer: str = "",
    quiet_seconds: float = 0.0,
) -> IncidentDatabase:
    """`writer`: the name under which this collector writes a database that others write, too; `ids`: what it knows of
    its rows there. Raises DatabaseError."""
    if not is_database_url(place):
        return IncidentDatabase.open(place, max_bytes, keep_seconds)
    engine = PostgresStore.open(place, max_bytes, writer)
    return SharedDatabase(engine, max_bytes, keep_seconds, ids, quiet_seconds)


# Jobs that move from one collector to another, and their incidents with them.
#
# Whoever takes a job over goes on with its open incidents under the ids that their rows have: so an incident is neither
# opened a second time nor closed by one that no longer looks. The one before may write once more after that, so what it
# wrote is read again for SETTLE_SECONDS: an incident goes on where somebody saw it after it was closed.

SETTLE_SECONDS: Final = 30.0
"""The time for which whoever watched a job before may still write of it: a beat, a round, and what the database takes.
laggard's estimate."""

MAX_OF_JOB: Final = 128
"""The most incidents of one job that are taken over, the last ones: twice as many as can be open."""


class Moved(NamedTuple):
    """The jobs that others watch from now on; the incidents of those that this collector takes over, open or closed of
    late."""

    released: frozenset[JobKey] = frozenset()
    incidents: tuple[Incident, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.released or self.incidents)


NOBODY: Final = Moved()


def taken_over(engine: Engine, keys: Iterable[JobKey], since: float) -> Moved:
    """Reads what goes with the jobs, of what was open at `since` (Unix seconds) or later."""
    found: list[Incident] = []
    for key in keys:
        query = IncidentQuery(key.job_id, key.owner, since, limit=MAX_OF_JOB)
        found += read_incident_rows(engine, query).incidents
    return Moved(incidents=tuple(found))
