"""Both places in which incidents are kept: tests that take `place` run with a file, and with PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.incident import Moment
from laggard.collector.incidents.shared_database import SharedDatabase, SharedIds, open_database
from support.postgres import Server

WALL = 1.79e9

_opened: list[IncidentDatabase] = []


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    """Closes the connections to PostgreSQL that a test has opened; a file's may be closed already."""
    yield
    while _opened:
        if isinstance(_opened[-1], SharedDatabase):
            _opened[-1].close()
        _opened.pop()


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file that is not there yet, or the URL of an empty database."""
    if request.param == "file":
        return str(tmp_path / "incidents.sqlite")
    server: Server = request.getfixturevalue("postgres")
    return server.database()


def open_store(
    place: str, max_bytes: int = 1 << 20, keep_seconds: float = 1e9, writer: str = "one"
) -> IncidentDatabase:
    """As a collector of its own does. Raises DatabaseError."""
    _opened.append(open_database(place, max_bytes, keep_seconds, SharedIds(), writer, 300.0))
    return _opened[-1]


class Clock:
    """The collector's clock, `at` seconds after WALL."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> Moment:
        return Moment(WALL + self.at, 50.0 + self.at)


@pytest.fixture
def clock() -> Clock:
    return Clock()
