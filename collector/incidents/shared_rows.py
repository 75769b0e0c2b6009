"""Rows that several collectors write: what is the same is found before it is stored, and has one row.

All of it runs within a transaction that keeps the other collectors out, so nothing comes between what is looked for and
what is stored. A collector goes on with ids of its own; which row each is, it remembers here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from msgspec import structs

from laggard.collector.incidents import fault_rows, incident_rows
from laggard.collector.incidents.documents import decoded, documents
from laggard.collector.incidents.engine import Engine
from laggard.collector.incidents.fault import Fault
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.same import (
    SLACK_SECONDS,
    merged_fault,
    merged_incident,
    same_fault,
    same_incident,
)

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
    """`near`: the rows that may be the same as a new one. `whole`: the row that a row has become part of."""

    table: str
    of: type[T]
    near: Callable[[Engine, T], tuple[T, ...]]
    same: Callable[[T, T], bool]
    merged: Callable[[T, T], T]
    whole: Callable[[T], int | None] = lambda _: None


def store_incidents(engine: Engine, incidents: Iterable[Incident], ids: Ids) -> tuple[Incident, ...]:
    """Stores incidents, each under the id of its row. Returns them as they are stored."""
    stored = _resolved(engine, _INCIDENTS, tuple(incidents), ids)
    numbered = tuple(_with_part(it, ids) for it in stored)
    incident_rows.store(engine, numbered)
    return numbered


def store_faults(engine: Engine, faults: Iterable[Fault], ids: Ids) -> tuple[Fault, ...]:
    """Stores faults, each under the id of its row. Returns them as they are stored."""
    stored = tuple(_resolved(engine, _FAULTS, tuple(faults), ids))
    fault_rows.store(engine, stored)
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
            near = [it for it in kind.near(engine, value) if it.id not in taken and kind.same(it, value)]
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


def _near_incidents(engine: Engine, it: Incident) -> tuple[Incident, ...]:
    text = (
        "SELECT document FROM incidents WHERE owner = ? AND job_id = ? AND (closed_at IS NULL OR closed_at >= ?)"
        " ORDER BY id DESC LIMIT ?"
    )
    return documents(engine.run(text, (it.owner, it.job_id, it.opened_at - SLACK_SECONDS, _CHUNK)), Incident)


def _near_faults(engine: Engine, it: Fault) -> tuple[Fault, ...]:
    text = (
        "SELECT document FROM faults WHERE (node = ? OR (machine = ? AND machine != ''))"
        " AND (closed_at IS NULL OR closed_at >= ?) ORDER BY id DESC LIMIT ?"
    )
    return documents(engine.run(text, (it.node, it.machine, it.opened_at - SLACK_SECONDS, _CHUNK)), Fault)


def _superseded_by(it: Incident) -> int | None:
    return it.part_of if it.closed_because == "superseded" else None


_INCIDENTS: Final = _Kind("incidents", Incident, _near_incidents, same_incident, merged_incident, _superseded_by)
_FAULTS: Final = _Kind("faults", Fault, _near_faults, same_fault, merged_fault)
