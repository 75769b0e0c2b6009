"""The table of acknowledgements, in a database that several collectors share; one alone keeps a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, NoTables, put
from laggard.collector.incidents.postgres import PostgresStore, reading
from laggard.wire import encode
from laggard.wire.acknowledgement import Acknowledgement

MAX_ROWS: Final = 4096
"""The most that are read: four times as many as may hold at once."""

_PUT: Final = put("acknowledgements", ("id", "until", "document"), 1)

Known = tuple[Acknowledgement, ...]


def read(engine: Engine, now: float) -> Known:
    """Those that hold, in the order in which they end."""
    text = "SELECT document FROM acknowledgements WHERE until > ? ORDER BY until LIMIT ?"
    return documents(engine.run(text, (now, MAX_ROWS)), Acknowledgement)


def store(engine: Engine, known: Iterable[Acknowledgement]) -> None:
    """Stores them, in place of those with the same ids."""
    engine.many(_PUT, [(it.id, it.until, encode(it)) for it in known])


def read_shared(place: str) -> Known:
    """Those that hold. Raises DatabaseError."""
    try:
        with reading(place) as engine:
            return read(engine, time.time())
    except NoTables:
        return ()


def change_shared(place: str, change: Callable[[Known], Known]) -> Known:
    """Replaces those that hold by what `change` makes of them, which is returned; other collectors wait meanwhile.
    Raises DatabaseError, and what `change` raises; then nothing is changed."""
    engine = PostgresStore.open(place, 1, "acknowledgements")
    try:
        with engine.told(), engine.transaction():
            known = read(engine, time.time())
            changed = change(known)
            left = {it.id for it in changed}
            engine.many("DELETE FROM acknowledgements WHERE id = ?", [(it.id,) for it in known if it.id not in left])
            engine.run("DELETE FROM acknowledgements WHERE until <= ?", (time.time(),))
            store(engine, changed)
            return changed
    finally:
        engine.close()
