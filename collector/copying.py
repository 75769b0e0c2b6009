"""`laggard incidents --copy-to`: copies what a collector keeps from one database to another, from a file to
PostgreSQL or back.

It may be ended at any moment and begun anew: each part is stored in one transaction, and what is there already is found
by what it is, as where several collectors write. What the target knows better stays.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from laggard.collector.incidents.database import reading
from laggard.collector.incidents.incident import Fault, Incident, KeptDigest, NodeName, incident_of, of_incident
from laggard.collector.incidents.postgres import PostgresReader, PostgresStore
from laggard.collector.incidents.shared_database import SharedIds, open_database, store_faults, store_incidents
from laggard.collector.incidents.tables import (
    DatabaseError,
    Engine,
    Store,
    count,
    decoded,
    put_confirmation_rows,
    put_later_digest,
    store_later_names,
)
from laggard.collector.settings import CollectorSettings, incidents_writer
from laggard.kit.address import is_database_url, without_login
from laggard.kit.errors import UsageError
from laggard.kit.words import counted
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

_PART: Final = 500
"""The rows of one transaction."""

_NO_BOUND: Final = 1 << 40
"""A copy drops nothing: the next collector bounds it by its settings."""


class Copied(Counter[str]):
    """The rows that were read, by table; those that were new as `TABLE new`; and `damaged`, which could not be read."""


def copy_database(source: str, target: str, writer: str) -> Copied:
    """Copies all that is kept. `writer`: the collector that goes on with what is open, where several share the target.
    Raises DatabaseError."""
    with reading(source) as old, contextlib.closing(_open(target)) as new, old.told(), new.told():
        if isinstance(old, PostgresReader):  # which has nothing to say while a part is stored
            old.run("SET idle_in_transaction_session_timeout = 0")
        copied, ids = Copied(), SharedIds()
        before = {table: count(new, table) for table, _, _ in _KINDS}
        for table, key, kind in _KINDS:
            for part in _parts(old, table, key):
                found = [(row, value) for row in part for value in decoded([row[-1]], kind)]
                with ids.incidents.kept(), ids.faults.kept(), new.transaction():
                    _store(new, table, found, ids)
                copied[table] += len(found)
                copied["damaged"] += len(part) - len(found)
        if isinstance(new, PostgresStore):
            for table in ("incidents", "faults"):
                new.run(f"UPDATE {table} SET writer = ? WHERE writer = ''", (writer,))
        copied.update({f"{table} new": count(new, table) - before[table] for table in before})
        return copied


def _open(place: str) -> Store:
    return open_database(place, _NO_BOUND, float("inf"), SharedIds(), "copy").engine


def _parts(engine: Engine, table: str, key: str) -> Iterator[list[tuple[Any, ...]]]:
    """The rows by their key, some at a time: the key's columns, and the document last."""
    columns = len(key.split(","))
    rows = engine.run(f"SELECT {key}, document FROM {table} ORDER BY {key} LIMIT ?", (_PART,))
    while rows:
        yield rows
        places = ", ".join("?" * columns)
        text = f"SELECT {key}, document FROM {table} WHERE ({key}) > ({places}) ORDER BY {key} LIMIT ?"
        rows = engine.run(text, (*rows[-1][:columns], _PART))


Found = list[tuple[tuple[Any, ...], Any]]
"""The rows whose documents can be read, each with its document."""


def _store(engine: Engine, table: str, found: Found, ids: SharedIds) -> None:
    values = [value for _, value in found]
    if table == "incidents":
        store_incidents(engine, values, ids.incidents)
    elif table == "faults":
        store_faults(engine, values, ids.faults)
    elif table == "names":
        store_later_names(engine, values)
    elif table == "confirmations":
        put_confirmation_rows(engine, values)
    else:
        for (owner, job_id, _, run, _), digest in found:
            number = incident_of(run)
            run = run if number is None else of_incident(ids.incidents.row(number) or number)
            put_later_digest(engine, KeptDigest(owner, job_id, run, digest))


_KINDS: Final[Sequence[tuple[str, str, Any]]] = (
    ("incidents", "id", Incident),
    ("faults", "id", Fault),
    ("names", "node, machine", NodeName),
    ("digests", "owner, job_id, started_at, run", Digest),
    ("confirmations", "node, at", Confirmation),
)
"""The tables with their keys, and what their documents are."""


_WORDS = {
    "incidents": "incident",
    "faults": "finding",
    "names": "name",
    "runs": "run",
    "digests": "digest",
    "advice": "advised run",
    "confirmations": "measurement",
}


def copy(source: str, target: str, writer: str | None) -> tuple[list[str], int]:
    """Returns what to say, and the exit status: 1 where rows could not be read. Raises UsageError."""
    if _same(source, target):
        raise UsageError(f"{_shown(source)} would be copied onto itself: name another place")
    try:
        copied = copy_database(source, target, writer or incidents_writer(CollectorSettings(), os.environ))
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    lines = [f"{_shown(source)} is in {_shown(target)} now.", *_figures(copied)]
    if damaged := copied["damaged"]:
        lines.append(f"  {counted(damaged, 'row')} could not be read, and stayed behind")
    return lines, 1 if damaged else 0


def _shown(place: str) -> str:
    return without_login(place) if is_database_url(place) else place


def _figures(copied: Copied) -> list[str]:
    return [f"  {counted(copied[table], word)}, {copied[f'{table} new']} new" for table, word in _WORDS.items()]


def _same(one: str, other: str) -> bool:
    if is_database_url(one) or is_database_url(other):
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)
