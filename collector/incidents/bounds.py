"""The bounds of a database of incidents: what is too old or too much is dropped, by whoever writes."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Select, delete, func, select, text, tuple_

from laggard.collector.incidents.reads import MAX_CONFIRMATIONS
from laggard.collector.incidents.rows import count
from laggard.collector.incidents.schema import CONFIRMATIONS, DIGESTS, FAULTS, INCIDENT_NODES, INCIDENTS, NAMES

FULL_SHARE, PRUNED_SHARE = 0.9, 0.8
"""The share of max_bytes from which on incidents are dropped, and that until which they are."""

ROW_BYTES: Final = 200
"""The bytes that a row takes beside its document: header, other columns, entries in indexes. laggard's estimate."""

MAX_FAULT_ROWS: Final = 16_384
"""The most faults that are over and are kept; beyond them the oldest are dropped."""

MAX_FAULT_ROW_BYTES: Final = 1 << 10
"""The size of such a row; the table may take an eighth of max_bytes."""

MAX_DIGESTS: Final = 1024
"""The most digests of runs; beyond them the oldest of the user who has the most are dropped."""

DIGEST_SHARE, MAX_DIGEST_BYTES = 4, 16 << 10
"""Digests of this size, of which the largest jobs' are, may take a quarter of max_bytes."""

_BYTES: Final = {
    "sqlite": text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"),
    "postgresql": text(
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'"
    ),
}
_DOCUMENTS: Final = (INCIDENTS, FAULTS, NAMES, DIGESTS, CONFIRMATIONS)
_USED: Final = {
    "sqlite": text(
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()"
    ),
    "postgresql": text(
        "SELECT "
        + " + ".join(
            f"(SELECT {ROW_BYTES} * count(*) + coalesce(sum(pg_column_size(document)), 0) FROM {it.name})"
            for it in _DOCUMENTS
        )
        + f" + (SELECT {ROW_BYTES} * count(*) FROM incident_nodes)"
    ),
}
"""The size of the database, and what rows take of it."""


def size(connection: Connection) -> int:
    """The bytes of the database."""
    return int(connection.scalar(_BYTES[connection.dialect.name]) or 0)


def used(connection: Connection, max_bytes: int) -> float:
    """The share of max_bytes that rows take."""
    return int(connection.scalar(_USED[connection.dialect.name]) or 0) / max_bytes


def make_room(connection: Connection, max_bytes: int, share: float) -> None:
    """Drops incidents until `share` of max_bytes is taken, or none is left that is closed."""
    while used(connection, max_bytes) > share and _drop_of_heaviest(connection):
        pass


def _drop_of_heaviest(connection: Connection) -> bool:
    """Drops the oldest closed incidents of the user who has the most: who floods the file loses their own. Returns
    whether there was one."""
    it, closed = INCIDENTS.c, INCIDENTS.c.closed_at.is_not(None)
    most = select(it.owner, func.count()).where(closed).group_by(it.owner).order_by(func.count().desc()).limit(1)
    if (found := connection.execute(most).first()) is None:
        return False
    owner, number = found
    _drop(connection, select(it.id).where(it.owner == owner, closed).order_by(it.id).limit(max(1, number // 8)))
    return True


def _drop(connection: Connection, chosen: Select[Any]) -> None:
    """Drops the incidents whose ids `chosen` selects, and the rows of their nodes."""
    for table in (INCIDENT_NODES, INCIDENTS):
        connection.execute(delete(table).where(table.c.id.in_(chosen)))


def drop_older(connection: Connection, since: float) -> None:
    _drop(connection, select(INCIDENTS.c.id).where(INCIDENTS.c.closed_at < since))
    ages = (FAULTS.c.closed_at, NAMES.c.seen_at, CONFIRMATIONS.c.at, DIGESTS.c.made_at)
    for age in ages:
        connection.execute(delete(age.table).where(age < since))


def drop_beyond(connection: Connection, max_bytes: int) -> None:
    """Drops of the faults that are over, the measurements and the digests, the oldest beyond those that may be kept."""
    over = FAULTS.c.closed_at.is_not(None)
    kept = min(MAX_FAULT_ROWS, max_bytes // 8 // MAX_FAULT_ROW_BYTES)
    if (excess := count(connection, FAULTS, over) - kept) > 0:
        oldest = select(FAULTS.c.id).where(over).order_by(FAULTS.c.id).limit(excess)
        connection.execute(delete(FAULTS).where(FAULTS.c.id.in_(oldest)))
    key = tuple_(CONFIRMATIONS.c.node, CONFIRMATIONS.c.at)
    newest = select(*CONFIRMATIONS.primary_key).order_by(CONFIRMATIONS.c.at.desc()).limit(MAX_CONFIRMATIONS)
    connection.execute(delete(CONFIRMATIONS).where(key.not_in(newest)))
    kept = min(MAX_DIGESTS, max_bytes // DIGEST_SHARE // MAX_DIGEST_BYTES)
    keys, it = tuple_(*DIGESTS.primary_key), DIGESTS.c
    heaviest = select(it.owner).group_by(it.owner).order_by(func.count().desc()).limit(1).scalar_subquery()
    while (excess := count(connection, DIGESTS) - kept) > 0:
        oldest = select(*DIGESTS.primary_key).where(it.owner == heaviest).order_by(it.made_at)
        connection.execute(delete(DIGESTS).where(keys.in_(oldest.limit(max(1, excess // 2)))))
