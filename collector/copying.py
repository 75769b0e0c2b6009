"""`laggard incidents --copy-to`: copies what a collector keeps from one database to another, from a file to
PostgreSQL or back; `--migrate`: brings one to another version of its tables.

A copy may be ended at any moment and begun anew: each part is stored in one transaction, and what is there already is
found by what it is, as where several collectors write. What the target knows better stays.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, select, text, tuple_

from laggard.collector.incidents.incident import Fault, Incident, KeptDigest, NodeName
from laggard.collector.incidents.reads import decoded, reading, shown
from laggard.collector.incidents.rows import count
from laggard.collector.incidents.schema import CONFIRMATIONS, DIGESTS, FAULTS, INCIDENTS, NAMES, DatabaseError
from laggard.collector.incidents.store import Batch, Store, StoreSettings
from laggard.collector.settings import CollectorSettings, incidents_writer
from laggard.kit.address import is_database_url
from laggard.kit.errors import UsageError
from laggard.kit.words import counted
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

_PART: Final = 500
"""The rows of one transaction."""

_NO_BOUND: Final = 1 << 40
"""A copy drops nothing: the next collector bounds it by its settings."""

_KINDS: Final[dict[str, tuple[Table, Any, str]]] = {
    "incidents": (INCIDENTS, Incident, "incident"),
    "faults": (FAULTS, Fault, "finding"),
    "names": (NAMES, NodeName, "name"),
    "digests": (DIGESTS, Digest, "digest"),
    "confirmations": (CONFIRMATIONS, Confirmation, "measurement"),
}
"""The tables, what their documents are, and the word for one."""


class Copied(Counter[str]):
    """The rows that were read, by table; those that were new as `TABLE new`; and `damaged`, which could not be read."""


def copy_database(source: str, target: str, writer: str) -> Copied:
    """Copies all that is kept. `writer`: the collector that goes on with what is open, where several share the target.
    Raises DatabaseError."""
    settings = StoreSettings(target, _NO_BOUND, math.inf, writer="")
    with reading(source) as old, contextlib.closing(Store(settings)) as new:
        if old.dialect.name == "postgresql":  # which has nothing to say while a part is stored
            old.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        copied = Copied()
        for name, (table, kind, _) in _KINDS.items():
            with new.transaction() as connection:
                before = count(connection, table)
            for part in _parts(old, table):
                found = [value for row in part for value in _values(row, kind)]
                new.write(Batch(**{name: found}), 0.0)
                copied[name] += len(found)
                copied["damaged"] += len(part) - len(found)
            with new.transaction() as connection:
                copied[f"{name} new"] = count(connection, table) - before
        if settings.is_shared:
            new.name_writer(writer)
        return copied


def _parts(connection: Connection, table: Table) -> Iterator[Sequence[Any]]:
    """The rows by their key, some at a time."""
    key = tuple_(*table.primary_key)
    chosen = select(*table.primary_key, table.c.document).order_by(*table.primary_key).limit(_PART)
    rows = connection.execute(chosen).all()
    while rows:
        yield rows
        rows = connection.execute(chosen.where(key > tuple_(*rows[-1][:-1]))).all()


def _values(row: Any, kind: Any) -> Iterator[Any]:
    """What the row holds; nothing where that cannot be read."""
    for value in decoded([row.document], kind):
        yield KeptDigest(row.owner, row.job_id, row.run, value) if kind is Digest else value


def copy(source: str, target: str, writer: str | None) -> tuple[list[str], int]:
    """Returns what to say, and the exit status: 1 where rows could not be read. Raises UsageError."""
    if _same(source, target):
        raise UsageError(f"{shown(source)} would be copied onto itself: name another place")
    try:
        copied = copy_database(source, target, writer or incidents_writer(CollectorSettings(), os.environ))
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    lines = [f"{shown(source)} is in {shown(target)} now."]
    lines += [f"  {counted(copied[it], word)}, {copied[f'{it} new']} new" for it, (_, _, word) in _KINDS.items()]
    if damaged := copied["damaged"]:
        lines.append(f"  {counted(damaged, 'row')} could not be read, and stayed behind")
    return lines, 1 if damaged else 0


def migrate(place: str, version: int) -> list[str]:
    """Brings a database to the version of another release. Returns what to say. Raises UsageError."""
    try:
        Store(StoreSettings(place, _NO_BOUND, math.inf, writer=""), version=version).close()
    except DatabaseError as error:
        raise UsageError(str(error)) from None
    return [f"{shown(place)} is of version {version} now."]


def _same(one: str, other: str) -> bool:
    if is_database_url(one) or is_database_url(other):
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)
