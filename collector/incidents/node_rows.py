"""The rows that a round changes beside the incidents: nodes' faults and names. So many are kept."""

from __future__ import annotations

from typing import Final, NamedTuple

from laggard.collector.incidents import fault_rows
from laggard.collector.incidents.engine import Engine
from laggard.collector.incidents.fault import Fault, NodeName

MAX_ROWS: Final = 16_384
"""The most faults that are over and are kept; beyond them the oldest are dropped."""

MAX_ROW_BYTES: Final = 1 << 10
"""The size of such a row; the table may take an eighth of the file."""


class NodeRows(NamedTuple):
    """The rows that a round changed beside the incidents."""

    faults: tuple[Fault, ...] = ()
    names: tuple[NodeName, ...] = ()


def keep(engine: Engine, rows: NodeRows, since: float, max_bytes: int) -> None:
    """Stores faults and names in place of what was stored of them, and drops what is too old or too much.
    `since`: older ones are dropped."""
    fault_rows.store(engine, rows.faults)
    fault_rows.store_names(engine, rows.names)
    bound(engine, since, max_bytes)


def bound(engine: Engine, since: float, max_bytes: int) -> None:
    """Drops what is too old or too much. `since`: older ones are dropped."""
    most = min(MAX_ROWS, max_bytes // 8 // MAX_ROW_BYTES)
    fault_rows.bound(engine, since, most)


def read_open(engine: Engine, since: float) -> tuple[NodeRows, tuple[Fault, ...]]:
    """The rows that a collector goes on with: the open faults and the names; and the faults that ended since."""
    faults, names = fault_rows.read_open(engine)
    return NodeRows(faults, names), fault_rows.read_ended(engine, since)
