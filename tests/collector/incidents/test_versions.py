"""A database of an earlier release, as it was kept, is brought to this one's tables and back, with all that it holds,
in a file and in PostgreSQL."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect
from support.paths import REPOSITORY
from support.postgres import Server
from support.stores import WALL, incident, open_store, stored

from laggard.cli import main
from laggard.collector.incidents import schema
from laggard.collector.incidents.incident import LAST, AskedDigest, IncidentQuery
from laggard.collector.incidents.reads import read_confirmations, read_digest, read_faults, read_incidents, read_machine
from laggard.collector.incidents.schema import OLDEST, VERSION, DatabaseError
from laggard.collector.incidents.store import Batch, Store

KEPT = REPOSITORY / "tests" / "data" / "incidents"


def as_kept(place: str, postgres: Server, version: int = OLDEST) -> None:
    """Puts what a collector of that version kept into the place."""
    kind = "postgresql" if place.startswith("postgresql") else "sqlite"
    statements = (KEPT / f"version_{version}.{kind}.sql").read_text()
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(place)) as connection:
            connection.executescript(statements)
        return
    with postgres.connect("tests") as connection:
        connection.execute(statements)


def tables(store: Store) -> dict[str, Any]:
    """The columns and indexes of each table, by name."""
    found = inspect(store.connection)
    with store.connection.begin():
        return {
            name: ({it["name"]: str(it["type"]) for it in found.get_columns(name)},
                   sorted((str(it["name"]), it["column_names"]) for it in found.get_indexes(name)))
            for name in schema.TABLES.tables
        }  # fmt: skip


def test_what_an_earlier_release_kept_is_there_and_goes_on(place: str, postgres: Server, tmp_path: Path) -> None:
    as_kept(place, postgres)
    with pytest.raises(
        DatabaseError, match=f"is of version {OLDEST}: a collector of this laggard brings it to {VERSION}"
    ):
        read_incidents(place, IncidentQuery())
    store = open_store(place)
    assert [(it.id, it.job_id, it.closed_because) for it in stored(place)] == [
        (1, "train", "recovered"),
        (2, "op\0en", None),
    ]
    assert [it.id for it in store.open_incidents(10)] == [2], "it goes on with its own"
    assert [it.code for it in read_faults(place, 0.0)] == ["GPU_XID"] and len(read_confirmations(place)) == 1
    assert [it.node for it in read_machine(place, "n1", 10).names] == ["n1"]
    assert read_digest(place, AskedDigest(LAST, 1000, "now", 9.0, "t.py", 4)) is not None
    store.write(Batch([incident(2, job="op\0en", closed_at=WALL + 20)]), WALL + 20)
    assert [it.closed_at for it in stored(place)] == [WALL + 9, WALL + 20]


def test_a_database_that_was_brought_here_is_as_one_that_is_new(place: str, postgres: Server, tmp_path: Path) -> None:
    new = tables(open_store(tmp_path / "new.sqlite")) if not place.startswith("postgresql") else None
    if new is None:
        first = open_store(place)
        new = tables(first)
        first.close()
        postgres.database()
    as_kept(place, postgres)
    assert tables(open_store(place)) == new


def test_there_and_back_is_what_it_was(place: str, postgres: Server, capsys: pytest.CaptureFixture[str]) -> None:
    as_kept(place, postgres)
    open_store(place).close()
    assert main(["incidents", "--database", place, "--migrate", str(OLDEST)]) == 0
    assert f"is of version {OLDEST} now" in capsys.readouterr().out
    store = open_store(place)
    before = stored(place)
    store.close()
    assert [it.id for it in before] == [1, 2]
    assert main(["incidents", "--database", place, "--migrate", str(VERSION + 1)]) == 64
    assert f"this laggard knows {OLDEST} to {VERSION}" in capsys.readouterr().err
    assert stored(place) == before


def test_a_change_that_fails_in_the_middle_changes_nothing(
    place: str, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_kept(place, postgres)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_note_version", lambda connection, _: connection.exec_driver_sql("SELECT no_such_thing"))
        with pytest.raises(DatabaseError, match="no_such_thing"):
            open_store(place)
    open_store(place)
    assert [it.id for it in stored(place)] == [1, 2]
