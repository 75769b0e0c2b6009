"""Both places in which incidents are kept: tests that take `place` run with a file, and with PostgreSQL; and what is
kept there."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import text

from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.incident import Incident, IncidentQuery, Moment
from laggard.collector.incidents.reads import read_incidents, reading
from laggard.collector.incidents.store import Store, StoreSettings
from laggard.collector.jobs.snapshot import JobSnapshot, unknown_location
from laggard.locate.against.digest import digest_of
from laggard.locate.job_timings import build_timings
from laggard.model import Culprit, JobKey, Location, Verdict
from laggard.wire.digest import Digest
from support.postgres import Server
from support.timings import job as timings_of

WALL = 1.79e9

_opened: list[Store] = []


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    """Closes what a test has opened and left open."""
    yield
    while _opened:
        _opened.pop().close()


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file that is not there yet, or the URL of an empty database."""
    if request.param == "file":
        return str(tmp_path / "incidents.sqlite")
    server: Server = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def url(postgres: Server) -> str:
    """Of an empty database of PostgreSQL."""
    return postgres.database()


def open_store(place: object, max_bytes: int = 1 << 20, keep_seconds: float = 1e9, writer: str = "one") -> Store:
    """As a collector of its own does. Raises DatabaseError."""
    _opened.append(Store(StoreSettings(str(place), max_bytes, keep_seconds, 300.0, writer)))
    return _opened[-1]


def run(store: Store, statement: str, **words: object) -> list[tuple[Any, ...]]:
    """A statement of the test's own, in a transaction of the store."""
    with store.transaction() as connection:
        found = connection.execute(text(statement), words)
        return [tuple(row) for row in found] if found.returns_rows else []


def query(place: str, statement: str) -> list[tuple[Any, ...]]:
    """A question of the test's own, beside whoever writes."""
    with reading(place) as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


class Clock:
    """The collector's clock, `at` seconds after WALL."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> Moment:
        return Moment(WALL + self.at, 50.0 + self.at)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start_history(clock: Clock) -> Iterator[Callable[..., IncidentHistory]]:
    """Starts one that keeps its incidents at `place`."""
    with contextlib.ExitStack() as stack:

        def start(place: object, **changes: Any) -> IncidentHistory:
            values: dict[str, Any] = dict(max_bytes=1 << 20, keep_seconds=1e9, quiet_seconds=300.0)
            history = IncidentHistory(HistorySettings(str(place), **{**values, **changes}), clock)
            stack.callback(history.close)
            history.start()
            return history

        yield start


def incident(
    number: int, ranks: tuple[int, ...] = (2,), job: str = "train", owner: int = 1000, **changes: Any
) -> Incident:
    """It began `number` seconds after WALL, and was seen a second later."""
    text = ("e" * 200,) * 5
    culprit = Culprit("slow_compute", ranks, node="n1", phase="forward", advice="look there", evidence=text)
    values: dict[str, Any] = dict(what="rank 2 on n1 is slow", opened_at=WALL + number, seen_at=WALL + number + 1)
    return Incident(number, owner, job, opened_as=culprit, culprit=culprit, **{**values, **changes})


def stored(place: str) -> list[Incident]:
    """The oldest first."""
    return list(read_incidents(place, IncidentQuery(limit=10_000)).incidents)[::-1]


def location(job: str, *culprits: Culprit, **changes: Any) -> Location:
    """A verdict on the job: on these culprits, or that all is well."""
    values: dict[str, Any] = dict(verdict=Verdict.FAIL if culprits else Verdict.OK, culprits=culprits, notes=())
    return structs.replace(unknown_location("", "", job), **{**values, **changes})


def job(*ranks: int, name: str = "train", owner: int = 1000, running: bool = True) -> JobSnapshot:
    """A job in which these ranks are slow."""
    culprits = [Culprit("slow_compute", (rank,), node="n1", phase="forward", advice="look there") for rank in ranks]
    timings = build_timings(name, 4, {}, {}, {})
    return JobSnapshot(JobKey(owner, name), running, timings, location(name, *culprits), progressed_at=WALL)


def kept_digest(**changes: Any) -> Digest:
    """Of a healthy run of four ranks, twenty steps long."""
    made = digest_of(timings_of(ranks=4, steps=20), script="t.py", started_at=5.0, made_at=WALL, healthy=True)
    assert made is not None
    return structs.replace(made, **changes)
