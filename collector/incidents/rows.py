"""Which row what a collector stores belongs into: what several collectors saw has one.

All of it runs within the transaction in which the values are stored, so nothing comes between what is looked for and
what is stored. A collector goes on with ids of its own; which row each is, is remembered here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from msgspec import structs
from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_, select

from laggard.collector.incidents.identity import SLACK_SECONDS, merged_fault, merged_incident, same_fault, same_incident
from laggard.collector.incidents.incident import Fault, Incident, KeptDigest, incident_of, of_incident
from laggard.collector.incidents.reads import decoded, documents
from laggard.collector.incidents.schema import FAULTS, INCIDENTS

MAX_IDS: Final = 65_536
"""The most ids whose rows are remembered, the last ones."""

CHUNK: Final = 500
"""The most values in one statement."""

T = TypeVar("T", Incident, Fault)
Row = dict[str, Any]


class Ids:
    """The row of each id that a collector gave away. It outlives connections. What a transaction notes is known while
    it lasts, and after it was committed: a row that was not stored may be another's next."""

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

    def adopt(self, row: int) -> bool:
        """Goes on with a row that another collector, or this one before its start, has made; False where this one gave
        that id to something else. Any thread may call it."""
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


class OwnIds:
    """The rows by a collector's own ids."""

    def __init__(self) -> None:
        self.incidents, self.faults = Ids(), Ids()

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

    def digest(self, it: KeptDigest) -> KeptDigest:
        """The digest under the id of its incident's row."""
        number = incident_of(it.run)
        return it if number is None else it._replace(run=of_incident(self.incidents.row(number) or number))


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """`place`: the condition that selects the rows at the place of a value. `whole`: the row that a row has become part
    of."""

    table: Table
    of: type[T]
    row: Callable[[T], Row]
    place: Callable[[T], ColumnElement[bool]]
    same: Callable[[T, T], bool]
    merged: Callable[[T, T], T]
    whole: Callable[[T], int | None] = lambda _: None
    nodes: Callable[[T], Iterable[str]] = lambda _: ()
    linked: Callable[[T, Ids], T] = lambda it, _: it


def _linked(it: Incident, ids: Ids) -> Incident:
    """The incident, part of the row that its whole has."""
    whole = None if it.part_of is None else ids.row(it.part_of)
    return it if whole is None else structs.replace(it, part_of=whole)


OF_INCIDENTS: Final = Kind[Incident](
    INCIDENTS,
    Incident,
    lambda it: {"owner": it.owner, "job_id": it.job_id},
    lambda it: and_(INCIDENTS.c.owner == it.owner, INCIDENTS.c.job_id == it.job_id),
    same_incident,
    merged_incident,
    lambda it: it.part_of if it.closed_because == "superseded" else None,
    lambda it: it.culprit.machines,
    _linked,
)
OF_FAULTS: Final = Kind[Fault](
    FAULTS,
    Fault,
    lambda it: {"machine": it.machine, "node": it.node},
    lambda it: or_(FAULTS.c.node == it.node, and_(FAULTS.c.machine == it.machine, FAULTS.c.machine != "")),
    same_fault,
    merged_fault,
)


def resolved(connection: Connection, kind: Kind[T], values: Sequence[T], ids: Ids) -> list[T]:
    """The values as they are to be stored. Those of one id come together as the last of them."""
    rows, used = _by_id(connection, kind, [ids.row(value.id) or value.id for value in values])
    taken = ids.rows()
    stored: dict[int, T] = {}
    for value in values:
        number = ids.row(value.id)
        if number is None:
            number = _row_of_new(connection, kind, value, rows, used | stored.keys(), taken)
        row = stored.get(number, rows.get(number))
        if row is not None and (whole := _whole(connection, kind, row, value)):
            number, row = whole.id, stored.get(whole.id, whole)
        ids.note(value.id, number)
        taken.add(number)
        stored[number] = structs.replace(value, id=number) if row is None else kind.merged(row, value)
    return list(stored.values())


def _row_of_new(
    connection: Connection, kind: Kind[T], value: T, rows: dict[int, T], used: set[int], taken: set[int]
) -> int:
    """The row of a value that this collector has not stored yet: its own, whose answer was lost; that of another
    collector that saw the same; or a new one, under the first id from its own on that is free. `taken`: the rows of
    other values of this collector."""
    row = rows.get(value.id)
    if row is not None and row.opened_at == value.opened_at and kind.same(row, value):
        return value.id
    near = [it for it in _near(connection, kind, value) if it.id not in taken and kind.same(it, value)]
    if found := min(near, key=lambda it: abs(it.opened_at - value.opened_at), default=None):
        rows[found.id] = found
        return found.id
    number = value.id
    while number in used or (number != value.id and count(connection, kind.table, kind.table.c.id == number)):
        number += 1
    return number


def _whole(connection: Connection, kind: Kind[T], row: T, value: T) -> T | None:
    """The row with which a value goes on whose own has become part of that by another collector's word: one names
    the rank, and then its machine; the other named the machine from the beginning."""
    number = kind.whole(row)
    if number is None or kind.whole(value) is not None or value.seen_at <= row.seen_at:
        return None
    found = _by_id(connection, kind, [number])[0].get(number)
    return found if found is not None and kind.same(found, value) else None


def _by_id(connection: Connection, kind: Kind[T], numbers: Sequence[int]) -> tuple[dict[int, T], set[int]]:
    """The rows with these ids, and which of the ids have one, also one that cannot be read."""
    it = kind.table.c
    found: list[Any] = []
    for some in chunks(numbers):
        found += connection.execute(select(it.id, it.document).where(it.id.in_(some))).all()
    read = {it.id: it for it in decoded((document for _, document in found), kind.of)}
    return read, {number for number, _ in found}


def _near(connection: Connection, kind: Kind[T], value: T) -> tuple[T, ...]:
    """The rows at its place, at about its time: they may be the same."""
    it = kind.table.c
    at_its_time = or_(it.closed_at.is_(None), it.closed_at >= value.opened_at - SLACK_SECONDS)
    chosen = select(it.document).where(kind.place(value), at_its_time).order_by(it.id.desc()).limit(CHUNK)
    return documents(connection, chosen, kind.of)


def count(connection: Connection, table: Table, *where: ColumnElement[bool]) -> int:
    return connection.scalar(select(func.count()).select_from(table).where(*where)) or 0


def chunks(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
