"""The table of suspects' measurements, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, put
from laggard.wire import encode
from laggard.wire.exclusion import Confirmation

TABLES: Final = """
CREATE TABLE confirmations (
    node TEXT NOT NULL,
    at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (node, at)
) STRICT;
"""

MAX_CONFIRMATIONS: Final = 1024
"""The most measurements of suspects; beyond them the oldest are dropped."""

_PUT: Final = put("confirmations", ("node", "at", "document"), 2)


def keep(engine: Engine, confirmations: Iterable[Confirmation], since: float) -> None:
    """Stores measurements within the transaction of whoever calls it, and drops what is too old or too much. `since`:
    older ones are dropped."""
    engine.run("DELETE FROM confirmations WHERE at < ?", (since,))
    put_all(engine, confirmations)
    newest = "SELECT node, at FROM confirmations ORDER BY at DESC LIMIT ?"
    engine.run(f"DELETE FROM confirmations WHERE (node, at) NOT IN ({newest})", (MAX_CONFIRMATIONS,))


def put_all(engine: Engine, confirmations: Iterable[Confirmation]) -> None:
    """Stores measurements, and drops nothing."""
    engine.many(_PUT, [(it.node, it.at, encode(it)) for it in confirmations])


def read(engine: Engine) -> tuple[Confirmation, ...]:
    """All, the oldest first."""
    text = "SELECT document FROM confirmations ORDER BY at DESC LIMIT ?"
    return documents(engine.run(text, (MAX_CONFIRMATIONS,)), Confirmation)[::-1]
