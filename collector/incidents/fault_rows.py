"""The tables of nodes' faults, and of the names that machines have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from laggard.collector.incidents.documents import documents
from laggard.collector.incidents.engine import Engine, count, put
from laggard.collector.incidents.fault import Fault, NodeName
from laggard.wire import encode

TABLES: Final = """
CREATE TABLE faults (
    id INTEGER PRIMARY KEY,
    machine TEXT NOT NULL,
    node TEXT NOT NULL,
    closed_at REAL,
    document BLOB NOT NULL
) STRICT;
CREATE INDEX faults_of_node ON faults (node, id);
CREATE INDEX faults_of_machine ON faults (machine, id);
CREATE INDEX faults_by_end ON faults (closed_at);
CREATE TABLE names (
    node TEXT NOT NULL,
    machine TEXT NOT NULL,
    seen_at REAL NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (node, machine)
) STRICT;
CREATE INDEX names_of_machine ON names (machine);
"""

MAX_FAULTS: Final = 16_384
"""The most faults that are over in one answer, and twice as many that are open."""

MAX_NAMES: Final = 65_536
"""The most names that a collector goes on with."""

_PUT: Final = put("faults", ("id", "machine", "node", "closed_at", "document"), 1)
_PUT_NAME: Final = put("names", ("node", "machine", "seen_at", "document"), 2)


class MachineRows(NamedTuple):
    """The faults of one machine, the newest first, and the names that it had. Until `others_until` (Unix seconds; 0:
    never) another machine had its present name."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()
    others_until: float = 0.0


def store(engine: Engine, faults: Iterable[Fault]) -> None:
    """Stores faults, in place of what was stored of them."""
    engine.many(_PUT, [(it.id, it.machine, it.node, it.closed_at, encode(it)) for it in faults])


def store_names(engine: Engine, names: Iterable[NodeName]) -> None:
    """Stores names, in place of what was stored of them."""
    engine.many(_PUT_NAME, [name_row(it) for it in names])


def store_later_names(engine: Engine, names: Iterable[NodeName]) -> None:
    """Stores names; of one that two saw the later sight holds."""
    engine.many(f"{_PUT_NAME} WHERE excluded.seen_at >= names.seen_at", [name_row(it) for it in names])


def name_row(it: NodeName) -> tuple[str, str, float, bytes]:
    return it.node, it.machine, it.seen_at, encode(it)


def bound(engine: Engine, since: float, most: int) -> None:
    """Drops faults that ended before `since` and names that were last seen before it, and faults that are over beyond
    `most`, the oldest."""
    engine.run("DELETE FROM faults WHERE closed_at < ?", (since,))
    engine.run("DELETE FROM names WHERE seen_at < ?", (since,))
    over = "SELECT id FROM faults WHERE closed_at IS NOT NULL ORDER BY id LIMIT ?"
    if (excess := count(engine, "faults WHERE closed_at IS NOT NULL") - most) > 0:
        engine.run(f"DELETE FROM faults WHERE id IN ({over})", (excess,))


def read_open(engine: Engine) -> tuple[tuple[Fault, ...], tuple[NodeName, ...]]:
    """The open faults, and the names."""
    text = "SELECT document FROM faults WHERE closed_at IS NULL ORDER BY id DESC LIMIT ?"
    opened = documents(engine.run(text, (2 * MAX_FAULTS,)), Fault)
    names = engine.run("SELECT document FROM names ORDER BY seen_at DESC LIMIT ?", (MAX_NAMES,))
    return opened, documents(names, NodeName)


def read_ended(engine: Engine, since: float) -> tuple[Fault, ...]:
    """Those that ended then or later, the oldest first."""
    text = "SELECT document FROM faults WHERE closed_at >= ? ORDER BY id DESC LIMIT ?"
    return documents(engine.run(text, (since, MAX_FAULTS)), Fault)[::-1]


def read_machine(engine: Engine, node: str, limit: int) -> MachineRows:
    """The faults of the machine that has the name now, under whatever name it had them, and its names."""
    run = engine.run
    found = run("SELECT document FROM names WHERE node = ? ORDER BY seen_at DESC LIMIT 1", (node,))
    (named,) = documents(found, NodeName) or (None,)
    if named is None or not named.machine:
        faults = run("SELECT document FROM faults WHERE node = ? ORDER BY id DESC LIMIT ?", (node, limit))
        return MachineRows(documents(faults, Fault), (named,) if named else ())
    of_machine = "machine = ? OR (machine = '' AND node = ?)"
    words = (named.machine, node, limit)
    faults = run(f"SELECT document FROM faults WHERE {of_machine} ORDER BY id DESC LIMIT ?", words)
    names = run("SELECT document FROM names WHERE machine = ? ORDER BY seen_at DESC LIMIT 64", (named.machine,))
    others = run("SELECT max(seen_at) FROM names WHERE node = ? AND machine != ? AND machine != ''", words[1::-1])
    return MachineRows(documents(faults, Fault), documents(names, NodeName), others[0][0] or 0.0)


def read_since(engine: Engine, since: float) -> tuple[Fault, ...]:
    """The faults that were open then or later, of all machines."""
    text = "SELECT document FROM faults WHERE closed_at IS NULL OR closed_at >= ? ORDER BY id DESC LIMIT ?"
    return documents(engine.run(text, (since, MAX_FAULTS)), Fault)
