"""The few statements that tables of incidents ask of a database, in words that SQLite and PostgreSQL both take.

Statements have `?` for each value, no other `?` and no `%`. A place is a file's path, or a URL that begins with
`postgresql://`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class DatabaseError(Exception):
    """The database cannot be used. The text is one line that names it and says what is wrong and what to do."""


class Engine(Protocol):
    """One connection, used by one thread at a time."""

    def run(self, text: str, words: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns all rows of the answer."""

    def many(self, text: str, rows: Iterable[Sequence[object]]) -> None:
        """The statement once for each row."""

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing. Where several collectors write, one after the other."""

    def told(self) -> AbstractContextManager[None]:
        """Turns what the database reports into a DatabaseError."""


class Store(Engine, Protocol):
    """The connection of a collector, which writes."""

    def used(self) -> float:
        """The share of the largest size that rows take."""

    def bytes(self) -> int:
        """The size of the database."""

    def give_back(self) -> None:
        """Gives what dropped rows took back to the disk, where that is to be asked for."""

    def is_full(self, error: Exception) -> bool:
        """Whether it was refused for the largest size, so that dropping rows helps."""

    def close(self) -> None: ...


def put(table: str, columns: Sequence[str], key: int) -> str:
    """The statement that stores a row in place of the one with the same key, which are the first `key` columns."""
    keys, others = columns[:key], columns[key:]
    values = ", ".join("?" * len(columns))
    changed = ", ".join(f"{name} = excluded.{name}" for name in others)
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changed}"
    )


def drop_oldest_of_heaviest(engine: Engine, table: str, key: str, age: str, most: int) -> None:
    """Drops rows of the user who has the most, those with the smallest `age` first, until `most` are left. `key`: the
    columns of the primary key."""
    heaviest = f"SELECT owner FROM {table} GROUP BY owner ORDER BY count(*) DESC LIMIT 1"
    oldest = f"SELECT {key} FROM {table} WHERE owner = ({heaviest}) ORDER BY {age} LIMIT ?"
    while (excess := count(engine, table) - most) > 0:
        engine.run(f"DELETE FROM {table} WHERE ({key}) IN ({oldest})", (max(1, excess // 2),))


def count(engine: Engine, what: str) -> int:
    """The rows of a table, with a condition or without."""
    return int(engine.run(f"SELECT count(*) FROM {what}")[0][0])
