"""Incidents in a real SQLite file: over restarts, with files that cannot be used, bounded, paged, read by others."""

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from support.rows import rows
from support.stores import WALL, Clock, incident, job, open_store, run

from laggard.catalogue.exposition import exposition
from laggard.cli import main
from laggard.collector.incidents import bounds
from laggard.collector.incidents.history import LATELY_SECONDS, MAX_CLOSED_LATELY, IncidentHistory
from laggard.collector.incidents.incident import IncidentQuery, IncidentsDocument, query_for
from laggard.collector.incidents.reads import read_incidents
from laggard.collector.incidents.schema import DatabaseError
from laggard.collector.incidents.store import Batch, Store
from laggard.collector.jobs.snapshot import ClusterSnapshot, JobSnapshot
from laggard.collector.settings import CollectorSettings, incidents_path
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.tenants import TenantIncidents
from laggard.model import Culprit
from laggard.wire import decode, encode

HOSTILE = "<script>alert(1)</script>\x1b[2J\n\u202e"
Make = Callable[..., IncidentHistory]


@pytest.fixture
def make(tmp_path: Path, start_history: Make) -> Make:
    return partial(start_history, place=tmp_path / "incidents.sqlite")


@pytest.fixture
def make_at(place: str, start_history: Make) -> Make:
    """As `make`, in a file and in PostgreSQL."""
    return partial(start_history, place=place)


def observe(history: IncidentHistory, clock: Clock, *jobs: JobSnapshot, rounds: int = 2) -> None:
    for _ in range(rounds):
        clock.at += 5.0
        history.observe(jobs)


def end(history: IncidentHistory) -> None:
    """Ends it as a collector that was killed ends: what was written is there, and nothing else is."""
    assert history.flush(60.0)
    store = history.writer.store
    assert store is not None
    if store.settings.is_shared:
        store.close()
    else:
        os.close(store.lock)  # the kernel's part
        store.lock = os.open(os.devnull, os.O_RDONLY)


def test_an_incident_goes_on_after_a_restart(make_at: Make, clock: Clock) -> None:
    first = make_at()
    observe(first, clock, job(2), job(name="other", owner=7))
    end(first)
    second = make_at()
    (known,) = second.open
    assert known.id == first.open[0].id and known.culprit.advice == "look there"
    observe(second, clock, job(2), rounds=1)
    observe(second, clock, job(2, running=False), rounds=3)
    (told,) = second.document(IncidentQuery()).incidents
    assert (told.id, told.closed_because, told.opened_at) == (known.id, "job_ended", known.opened_at)
    assert second.flush(60.0)
    rows = read_incidents(second._settings.path, IncidentQuery())
    assert [it.closed_because for it in rows.incidents] == ["job_ended"] and rows.opened == 0


def scraped(incidents: IncidentHistory) -> str:
    """What a scrape has of a collector without agents."""
    source: Any = SimpleNamespace(snapshot=ClusterSnapshot(nodes=()), incidents=incidents)
    return exposition(CollectorMetrics(source, 0.05).families(), "")[0].decode()


def told(incidents: IncidentHistory) -> list[str]:
    """What a scrape sees of incidents."""
    text = scraped(incidents)
    return [
        line
        for line in text.splitlines()
        if line.startswith(("laggard_job_incident{", "laggard_incidents_closed_total{"))
    ]


def test_what_opens_and_closes_between_two_scrapes_is_told_for_minutes(make: Make, clock: Clock) -> None:
    history = make()
    what = 'kind="slow_compute",rank="2",user="1000",what="rank 2 on n1 is slow in forward"}'
    open_one = f'laggard_job_incident{{hostname="n1",job_id="train",{what} '
    assert told(history) == []
    observe(history, clock, job(2))
    assert told(history) == told(TenantIncidents(history, 1000)) == [f"{open_one}1.0"]
    assert told(TenantIncidents(history, 1001)) == [], "it is another user's"
    observe(history, clock, job(2, running=False), rounds=1)
    closed = 'laggard_incidents_closed_total{kind="slow_compute"} 1.0'
    assert told(history) == [f"{open_one}0.0", closed]
    clock.at += LATELY_SECONDS - 1
    assert told(history) == [f"{open_one}0.0", closed]
    clock.at += 2
    assert told(history) == [closed]


def test_the_closed_that_are_told_of_are_bounded_and_so_are_their_words(make: Make, clock: Clock) -> None:
    history = make()
    long = job(2, name="j" * 100)
    culprit = Culprit("slow_compute", (2,), node="n" * 500, phase="forward")
    long = dataclasses.replace(long, location=structs.replace(long.location, culprits=(culprit,)))
    observe(history, clock, long)
    assert [len(line.partition('what="')[2].partition('"')[0]) for line in told(history)] == [128]
    for number in range(2):
        some = [job(2, name=f"{number}-{n}", running=False) for n in range(1000)]
        observe(history, clock, *some)
    assert len(history.closed_lately) == MAX_CLOSED_LATELY


def _text(path: Path) -> None:
    path.write_text("it is not a database " * 1000)


def _overwritten(path: Path) -> None:
    database = open_store(str(path), 8 << 20, 1e9)
    database.write(Batch([incident(n) for n in range(200)]), WALL)
    database.close()
    data = bytearray(path.read_bytes())
    data[4096 : len(data) // 2] = b"\xa5" * (len(data) // 2 - 4096)
    path.write_bytes(data)


def _others(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()


def _newer(path: Path) -> None:
    open_store(str(path), 1 << 20, 1e9).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()


def _linked(*ranks: int, running: bool = True) -> JobSnapshot:
    """A job whose link between two machines is slow."""
    found = job(*ranks, running=running)
    culprits = tuple(Culprit("slow_link", (rank,), nodes=("n1", "n2")) for rank in ranks)
    return dataclasses.replace(found, location=structs.replace(found.location, culprits=culprits))


@pytest.mark.parametrize("kept", [True, False])
def test_slow_links_of_jobs_that_have_ended_are_known(make_at: Make, clock: Clock, kept: bool) -> None:
    """For the rings that may measure their machines; without a database until the collector ends."""
    history = make_at() if kept else make_at(place="")
    for snapshot in (_linked(2), _linked(2), _linked(2, running=False), job(3), job(3)):
        clock.at += 10
        history.observe([snapshot])
    (link,) = history.slow_links(WALL)
    assert link.culprit.machines == ("n1", "n2") and link.closed_at == WALL + 30 and not link.culprit.node
    assert history.slow_links(WALL + 40) == ()
    if kept:
        history.close()
        assert [it.id for it in make_at().slow_links(WALL)] == [link.id]


@pytest.mark.parametrize("spoil", [_text, _overwritten, _others, _newer, Path.mkdir])
def test_a_file_that_cannot_be_used_is_named_and_survived(
    spoil: Callable[[Path], None], make: Make, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "incidents.sqlite"
    spoil(path)
    before = path.is_file() and path.read_bytes()
    history = make()
    state = history.document(IncidentQuery()).history
    assert state.state == "failed" and str(path) in state.reason and "\n" not in state.reason, state
    observe(history, clock, job(2))
    document = history.document(IncidentQuery())
    assert [it.what for it in document.incidents] == ["rank 2 on n1 is slow in forward"], "it goes on without"
    assert before == (path.is_file() and path.read_bytes()), "whatever it is, it is left as it was"


def test_a_file_belongs_to_one_collector(make: Make) -> None:
    first = make()
    assert first.state.state == "on"
    assert "written by another collector" in make().state.reason


def test_the_default_folder_has_to_be_made(make: Make, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "not" / "there", "make it, or set incidents_database"), ("", "is empty")):
        state = make(place=path, optional=True).state
        assert state.state == "off" and words in state.reason
    assert make(place=tmp_path / "not" / "there").state.state == "failed", "a file that was named is missed"


def test_the_default_file_gives_way_to_a_state_folder_and_one_that_was_named_does_not() -> None:
    environ = {"LAGGARD_STATE_DIR": "/a"}
    assert incidents_path(CollectorSettings(), {}) == "/var/lib/laggard/incidents.sqlite"
    assert incidents_path(CollectorSettings(), environ) == "/a/incidents.sqlite"
    assert incidents_path(CollectorSettings(incidents_database="/b/c"), environ) == "/b/c"
    assert incidents_path(CollectorSettings(incidents_database=""), environ) == ""


def test_a_collector_without_a_database_has_none_that_fails(make: Make, tmp_path: Path) -> None:
    def told(history: IncidentHistory) -> list[str]:
        text = scraped(history)
        return [line for line in text.splitlines() if line.startswith("laggard_incidents_history_up")]

    assert told(make()) == ["laggard_incidents_history_up 1.0"]
    assert told(make(place=tmp_path / "not" / "there")) == ["laggard_incidents_history_up 0.0"]
    assert told(make(place="", optional=True)) == [], "unknown is absent, and no alert fires"


@pytest.mark.slow
def test_a_disk_that_fails_loses_nothing_that_goes_on(
    make: Make, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laggard.collector.incidents.writer.RETRY_SECONDS", 2.0)
    history = make()
    store = history.writer.store
    assert store is not None
    run(store, "PRAGMA query_only = ON")
    observe(history, clock, job(2))
    assert not history.flush(0.5)
    with history.writer.changed:
        assert history.writer.changed.wait_for(lambda: history.state.state == "failed", 60.0)
    assert len(history.document(IncidentQuery()).incidents) == 1
    assert history.flush(60.0), "and the next try opens it anew"
    assert len(read_incidents(str(tmp_path / "incidents.sqlite"), IncidentQuery()).incidents) == 1


def used(store: Store) -> float:
    with store.transaction() as connection:
        return bounds.used(connection, store.settings.max_bytes)


def test_the_database_is_bounded_and_a_user_who_floods_loses_their_own(place: str) -> None:
    database = open_store(place)
    database.write(Batch([incident(number, closed_at=WALL) for number in range(20)]), WALL)
    database.write(Batch([incident(100, owner=666)]), WALL)
    for batch in range(20):
        many = [incident(1000 + 100 * batch + n, owner=666, job="flood", closed_at=WALL) for n in range(100)]
        size = database.write(Batch(many), WALL)
        assert used(database) <= 1.0 and (size <= 1 << 20 or place.startswith("postgresql"))
    database.close()
    rows = read_incidents(place, IncidentQuery(limit=10_000))
    assert sum(it.owner == 1000 for it in rows.incidents) == 20 and rows.opened == 1
    assert rows.incidents[0].id == 2999, "the newest stay"
    assert place.startswith("postgresql") or os.stat(place).st_size <= 1 << 20


def test_what_is_too_old_goes(place: str) -> None:
    database = open_store(place, keep_seconds=100.0)
    ended = [incident(1, job="a", closed_at=WALL + 1), incident(2, job="b", closed_at=WALL + 90)]
    database.write(Batch([*ended, incident(3)]), WALL + 95)
    database.write(Batch([]), WALL + 102)
    database.close()
    rows = read_incidents(place, IncidentQuery())
    assert [it.id for it in rows.incidents] == [3, 2]


def test_answers_are_paged_and_selected(make_at: Make, place: str, clock: Clock) -> None:
    database = open_store(place)
    jobs: list[dict[str, Any]] = [{"job": "a", "owner": 1}, {"job": "b", "owner": 1}, {"job": "a", "owner": 2}]
    database.write(
        Batch([incident(n, closed_at=None if n == 29 else WALL + n, **jobs[n % 3]) for n in range(30)]), WALL
    )
    database.close()
    history = make_at()
    seen, before = [], None
    while True:
        document = history.document(IncidentQuery(before=before, limit=7))
        seen += [it.id for it in document.incidents]
        before = document.next
        if before is None:
            break
    assert seen == list(range(29, -1, -1)) and document.open == 1
    assert len(history.document(query_for("a")).incidents) == 20
    assert len(history.document(query_for("2:a")).incidents) == 10
    assert [it.id for it in history.document(IncidentQuery(open_only=True)).incidents] == [29]
    assert [it.id for it in history.document(IncidentQuery(since=WALL + 27)).incidents] == [29, 28, 27]


def test_a_damaged_row_costs_that_row(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    database = open_store(place)
    database.write(Batch([incident(1, job="a", closed_at=WALL + 9), incident(2, job="b", closed_at=WALL + 9)]), WALL)
    run(database, "UPDATE incidents SET document = :document WHERE id = 1", document=b"{}")
    database.close()
    assert main(["incidents", "--database", place, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [it["id"] for it in document["incidents"]] == [2] and document["history"][
        "reason"
    ] == "1 row could not be read"


@rows("collector/hostile_schemas")
def test_a_file_that_would_run_something_is_refused(
    statement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "incidents.sqlite")
    open_store(path, 1 << 20, 1e9).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    with pytest.raises(DatabaseError, match="it has 'mine"):
        open_store(path, 1 << 20, 1e9)
    assert main(["incidents", "--database", path]) == 64
    assert "it has 'mine" in capsys.readouterr().err


def test_a_pipe_in_the_files_place_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "incidents.sqlite")
    os.mkfifo(path)
    with pytest.raises(DatabaseError, match="no regular file"):
        open_store(path, 1 << 20, 1e9)
    assert main(["incidents", "--database", path]) == 64
    assert "no regular file" in capsys.readouterr().err


def test_the_command_answers_first(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = place
    database = open_store(path)
    database.write(Batch([incident(1, closed_at=WALL + 200, closed_because="recovered", gaps=2)]), WALL)
    assert main(["incidents", "--database", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith("No incident is open. 1 closed one before.\n2026-09-21 ")
    assert "3 min, closed, it was no longer named: rank 2 on n1 is slow; job train of user " in text
    database.write(Batch([incident(2, owner=4_000_000, job=HOSTILE, findings=("GPU_THROTTLED",))]), WALL)
    assert main(["incidents", "--database", path]) == 1
    text = capsys.readouterr().out
    assert text.startswith(
        "One incident is open: rank 2 on n1 is slow, job <script>alert(1)</script> [2J of user 4000000"
    )
    assert "\x1b" not in text and "\u202e" not in text, "a job's name commands no terminal"
    assert "    what to do: look there\n" in text and "    its node reported GPU_THROTTLED\n" in text
    assert main(["incidents", "--database", path, "--job", "train", "--open"]) == 0
    assert capsys.readouterr().out == "No incident is open of job train.\n"
    assert main(["incidents", "--database", path, "--since", "2030-01-01"]) == 1
    assert main(["incidents", "--database", path, "--limit", "1", "--format", "json"]) == 1
    capsys.readouterr()
    database.close()


def test_the_document_is_what_it_says(make_at: Make, clock: Clock) -> None:
    history = make_at()
    observe(history, clock, job(2, name=HOSTILE))
    document = history.document(IncidentQuery())
    assert decode(encode(document), IncidentsDocument) == document and document.schema == "laggard.incidents/1"
    assert document.incidents[0].job_id == HOSTILE and document.history.state == "on"


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_readers(
    make: Make, clock: Clock, tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        history = make()
        observe(history, clock, job(2))
        assert history.flush(60)
        (path,) = tmp_path.glob("*.sqlite")
        made = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.glob(f"{path.name}*")}
        assert set(made.values()) == {"0o600"} and {path.name, f"{path.name}-wal", f"{path.name}.lock"} <= made.keys()
        history.close()
        path.chmod(0o644)
        again = make()
        observe(again, clock, job(2))
        assert again.flush(60) and path.stat().st_mode & 0o777 == 0o644
        assert (path.parent / f"{path.name}-wal").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
