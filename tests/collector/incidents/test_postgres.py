"""Collectors that share a PostgreSQL: one row of what two saw, what is left behind, and a database that is
away, slow, full, of a newer release, or killed in the middle."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.collectors import Make as Documents
from support.postgres import Server, running
from support.stores import WALL, Clock, incident, job, kept_digest, open_store, query, run, stored

from laggard.cli import main
from laggard.collector.incidents import schema
from laggard.collector.incidents.history import IncidentHistory
from laggard.collector.incidents.incident import Fault, Incident, IncidentQuery, KeptDigest, NodeName, of_incident
from laggard.collector.incidents.reads import read_confirmations, read_faults, read_incidents
from laggard.collector.incidents.schema import OLDEST, VERSION, DatabaseError
from laggard.collector.incidents.store import Batch, Store
from laggard.collector.jobs.snapshot import JobSnapshot
from laggard.collector.settings import CollectorSettings, incidents_writer
from laggard.model import Culprit, Severity
from laggard.wire import decode
from laggard.wire.digest import Digest
from laggard.wire.exclusion import Confirmation

Make = Callable[..., IncidentHistory]


def store(url: str, writer: str = "one", **changes: Any) -> Store:
    return open_store(url, writer=writer, **changes)


@pytest.fixture
def make(start_history: Make) -> Make:
    return lambda url, writer: start_history(url, writer=writer)


def observe(clock: Clock, *histories: IncidentHistory, jobs: tuple[JobSnapshot, ...], rounds: int = 2) -> None:
    """Rounds of collectors that watch the same, one a second after the other."""
    for _ in range(rounds):
        for history in histories:
            clock.at += 1.0
            history.observe(jobs)
        clock.at += 5.0
    assert all(history.flush(30.0) for history in histories)


def test_two_collectors_that_see_the_same_make_one_incident(url: str, clock: Clock, make: Make) -> None:
    one, other = make(url, "one"), make(url, "other")
    observe(clock, one, other, jobs=(job(2), job(3, name="second")))
    first = stored(url)
    assert len(first) == 2 and read_incidents(url, IncidentQuery()).opened == 2
    assert {it.id for it in first} == {it.id for it in one.document(IncidentQuery()).incidents}
    observe(clock, one, other, jobs=(job(2), job(3, name="second")))
    assert {it.id for it in other.open} == {it.id for it in first}, "each knows them by the same ids"
    assert other.document(IncidentQuery()).open == 2
    observe(clock, one, other, jobs=(job(2, running=False), job(3, name="second", running=False)))
    ended = stored(url)
    assert {it.id for it in ended} == {it.id for it in first} and {it.closed_because for it in ended} == {"job_ended"}


def test_one_names_the_rank_first_and_the_other_its_machine_at_once(url: str, clock: Clock, make: Make) -> None:
    def machine() -> JobSnapshot:
        found = job(2)
        culprit = Culprit("slow_compute", (2, 3), node="n1", phase="forward", advice="look")
        return dataclasses.replace(found, location=structs.replace(found.location, culprits=(culprit,)))

    def both() -> JobSnapshot:
        found = machine()
        culprits = (*job(2).location.culprits, *found.location.culprits)
        return dataclasses.replace(found, location=structs.replace(found.location, culprits=culprits))

    one, other = make(url, "one"), make(url, "other")
    observe(clock, one, jobs=(job(2),))
    observe(clock, other, jobs=(machine(),))
    assert len(stored(url)) == 1
    observe(clock, one, jobs=(both(),), rounds=3)
    observe(clock, one, other, jobs=(machine(),), rounds=3)
    clock.at += 60.0
    observe(clock, one, other, jobs=(machine(),), rounds=3)
    opened = [it for it in stored(url) if it.closed_at is None]
    assert len(opened) == 1 and opened[0].culprit.ranks == (2, 3), stored(url)
    assert [it.id for it in one.open] == [it.id for it in other.open] == [opened[0].id]


def test_ids_of_one_millisecond_are_kept_apart(url: str, clock: Clock, make: Make) -> None:
    """Two collectors open incidents of other jobs in the same milliseconds, each several: each is known by the id of
    its row."""
    one, other = make(url, "one"), make(url, "other")
    jobs = {
        "one": tuple(job(2, name=f"a{n}") for n in range(4)),
        "other": tuple(job(2, name=f"b{n}") for n in range(4)),
    }
    for _ in range(2):
        clock.at += 5.0
        for history, name in ((one, "one"), (other, "other")):
            history.observe(jobs[name])
            assert history.flush(30.0)
    rows = {it.job_id: it.id for it in stored(url)}
    assert len(rows) == len(set(rows.values())) == 8
    assert {it.id for it in one.open}.isdisjoint(it.id for it in other.open)
    for history in (one, other):
        assert {it.job_id: it.id for it in history.open}.items() <= rows.items()
    made = kept_digest()
    for it in other.open:  # as the rounds do, by the ids that it shows
        other.keep([KeptDigest(*it.key, of_incident(it.id), made)])
    assert other.flush(30.0)
    kept = dict(query(url, "SELECT job_id, run FROM digests"))
    assert kept == {it.job_id: of_incident(rows[it.job_id]) for it in other.open}
    assert {it.id for it in other.suspects(0.0)} >= {it.id for it in other.open}
    other.close()
    again = make(url, "other")
    assert {it.id for it in again.open} == {rows[f"b{n}"] for n in range(4)}


def test_two_that_write_at_once_double_nothing_and_lose_nothing(url: str) -> None:
    """Beginning with the tables, which all of them want to make."""
    failed: list[BaseException] = []

    def write(writer: str, shift: int) -> None:
        try:
            database = store(url, writer)
            for each in range(30):
                mine = incident(1 + each, job=f"job-{each}", opened_at=WALL + shift)
                own = incident(1000 + each, (each,), job=f"only-{writer}", opened_at=WALL)
                database.write(Batch([mine, own]), WALL)
            database.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(f"writer-{n}", n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    found = stored(url)
    by_job = [it.job_id for it in found]
    assert sorted(name for name in by_job if name.startswith("job-")) == sorted(f"job-{n}" for n in range(30))
    assert all(by_job.count(f"only-writer-{n}") == 30 for n in range(4))
    assert len({it.id for it in found}) == len(found) == 150, "ids of one clock make way for each other"


def test_an_id_that_is_taken_is_moved_on_and_stays_so(url: str) -> None:
    one, other = store(url, "one"), store(url, "other")
    one.write(Batch([incident(7, job="a")]), WALL)
    other.write(Batch([incident(7, job="b"), incident(8, (3,), job="b", part_of=7, closed_at=WALL + 20)]), WALL)
    other.write(Batch([incident(7, job="b", gaps=3)]), WALL)
    found = {it.job_id + str(it.culprit.ranks): it for it in stored(url)}
    assert {it.id for it in found.values()} == {7, 8, 9} and len(found) == 3
    moved = found["b(2,)"]
    assert moved.gaps == 3 and found["b(3,)"].part_of == moved.id


def test_an_id_of_a_write_that_failed_may_be_anothers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = store(url, "one"), store(url, "other")
    with monkeypatch.context() as patch:
        patch.setattr(one, "_put", lambda *_, **__: one.connection.exec_driver_sql("SELECT 1 / 0"))
        with pytest.raises(DatabaseError, match="division by zero"):
            one.write(Batch([incident(7, job="a")]), WALL)
    other.write(Batch([incident(7, job="b")]), WALL)
    one.write(Batch([incident(7, job="a")]), WALL)
    assert {it.id: it.job_id for it in stored(url)} == {7: "b", 8: "a"}


def test_faults_and_names_of_two_are_one(url: str) -> None:
    one, other = store(url, "one"), store(url, "other")

    def fault(number: int, at: float, **changes: Any) -> Fault:
        it = Fault(number, "n1", "GPU-a", "GPU_XID", "GPU 0", Severity.CRITICAL, "", "gpu_xid", WALL + at, WALL + at)
        return structs.replace(it, **changes)

    name = NodeName("n1", "GPU-a", WALL, WALL + 9, ("GPU-a",))
    one.write(Batch(faults=[fault(5, 0)], names=[name]), WALL)
    other.write(Batch(faults=[fault(6, 3)], names=[structs.replace(name, seen_at=WALL + 8)]), WALL)
    over = fault(6, 3, seen_at=WALL + 9, closed_at=WALL + 9, closed_because="repaired")
    other.write(Batch(faults=[over]), WALL)
    (kept,) = read_faults(url, 0.0)
    assert (kept.id, kept.closed_because, kept.opened_at) == (5, "repaired", WALL)
    assert [it.seen_at for it in one.nodes(0.0).names] == [WALL + 9], "the later sight holds"


def test_names_may_hold_what_text_of_postgresql_may_not(url: str) -> None:
    hostile = "a\0b\\0c\\\\\0%s?'\";--"
    database = store(url)
    database.write(Batch([incident(1, job=hostile), incident(2, job=hostile.replace("\0", ""))]), WALL)
    found = read_incidents(url, IncidentQuery(job_id=hostile)).incidents
    assert [it.job_id for it in found] == [hostile]
    assert len(stored(url)) == 2


def test_a_database_of_another_version_is_refused_in_one_line(
    url: str, postgres: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    writing = store(url)
    writing.write(Batch([incident(1)]), WALL)
    run(writing, "UPDATE version SET number = :number", number=VERSION + 2)
    words = f"is of version {VERSION + 2}, and this laggard knows {OLDEST} to {VERSION}: name another place"
    for refused in (lambda: store(url, "other"), lambda: writing.write(Batch([incident(2)]), WALL)):
        with pytest.raises(DatabaseError, match=words):
            refused()
    assert main(["incidents", "--database", url]) == 64
    text = capsys.readouterr().err
    assert words in text and text.count("\n") == 1


def test_a_database_without_tables_is_read_as_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--database", url]) == 64
    assert "has no incidents of laggard: a collector makes the tables" in capsys.readouterr().err


def test_tables_are_made_as_a_whole_or_not_at_all(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_note_version", lambda connection, _: connection.exec_driver_sql("SELECT 1 / 0"))
        with pytest.raises(DatabaseError, match="division by zero"):
            store(url)
    with pytest.raises(DatabaseError, match="has no incidents of laggard"):
        read_incidents(url, IncidentQuery())
    store(url).write(Batch([incident(1)]), WALL)
    assert len(stored(url)) == 1


def test_another_encoding_is_refused(postgres: Server) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(DatabaseError, match="has the encoding LATIN1"):
        store(postgres.url("latin"))


def test_a_role_without_rights_is_told_what_it_needs(url: str, postgres: Server) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE weak LOGIN")
        connection.execute("CREATE DATABASE weak")
    weak = postgres.url("weak").replace("user=laggard", "user=weak")
    with pytest.raises(DatabaseError, match="let the role own the schema laggard, or create it"):
        store(weak)
    with postgres.connect("weak") as connection:
        connection.execute("CREATE SCHEMA laggard AUTHORIZATION weak")
    store(weak).write(Batch([incident(1)]), WALL)
    assert len(stored(weak)) == 1


def test_a_collector_has_a_name_of_its_own() -> None:
    made = CollectorSettings(incidents_database="postgresql:///x", listen_address="127.0.0.1:19999")
    assert incidents_writer(made, {"LAGGARD_NODE": "n0"}) == "n0:19999"
    assert incidents_writer(structs.replace(made, incidents_writer="west"), {}) == "west"


def test_a_name_that_is_held_gets_a_number(url: str) -> None:
    one, other = store(url, "one"), store(url, "one")
    assert (one.writer, other.writer) == ("one", "one#1")
    one.close()
    assert store(url, "one").writer == "one"


def test_a_collector_goes_on_with_its_own_and_leaves_those_of_others(url: str) -> None:
    one, other = store(url, "one"), store(url, "other")
    one.write(Batch([incident(1, job="a")]), WALL)
    other.write(Batch([incident(2, job="b")]), WALL)
    one.close()
    again = store(url, "one")
    assert [it.job_id for it in again.open_incidents(100)] == ["a"]
    run(other, "UPDATE incidents SET written_at = written_at - 3600")
    assert [it.job_id for it in again.open_incidents(100)] == ["b", "a"], "nobody watches that one any more"


def test_what_nobody_watches_is_closed_once_a_collector_has_been_there_for_long(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, here = store(url, "gone"), store(url, "here")
    gone.write(Batch([incident(1, job="a")]), WALL)
    gone.close()
    run(here, "UPDATE incidents SET written_at = written_at - 3600")
    here.news()
    assert stored(url)[0].closed_at is None, "all may have been away, and it first"
    monkeypatch.setattr(here, "_opened_at", time.monotonic() - 3600)
    here.news()
    (found,) = stored(url)
    assert (found.closed_because, found.closed_at) == ("ended_while_down", found.seen_at)
    late = store(url, "gone")
    late.write(Batch([incident(1, job="a", seen_at=WALL + 400)]), WALL)
    assert stored(url)[0].closed_at is None, "it was watched all the same"


@pytest.mark.slow
def test_while_the_database_is_away_nothing_is_lost(clock: Clock, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes on the collectors' clocks; what it says meanwhile, and that both go on with one row."""
    monkeypatch.setattr("laggard.collector.incidents.writer.SHARED_RETRY_SECONDS", 0.2)
    with running() as server:
        url = server.database()
        one, other = make(url, "one"), make(url, "other")
        observe(clock, one, other, jobs=(job(2),))
        (known,) = stored(url)
        server.kill()
        for _ in range(120):
            clock.at += 5.0
            for history in (one, other):
                history.observe((job(2), job(1, name="second")))
        for history in (one, other):
            changed = history.writer.changed
            with changed:
                assert changed.wait_for(lambda it=history: it.state.state == "failed", 60.0)
            state = history.document(IncidentQuery()).history
            assert state.state == "failed" and "cannot be used" in state.reason and "\n" not in state.reason
            assert url.partition("?")[0].removeprefix("postgresql://") in state.reason
            assert {it.job_id for it in history.document(IncidentQuery()).incidents} == {"train", "second"}
        server.start()
        assert one.flush(60.0) and other.flush(60.0)
        found = {it.job_id: it for it in stored(url)}
        assert len(stored(url)) == 2 and found["train"].id == known.id and found["train"].seen_at > known.seen_at + 590
        assert one.told_state().state == other.told_state().state == "on"
        one.close()
        other.close()


@pytest.mark.slow
def test_a_database_that_is_killed_in_the_middle_of_writes_loses_and_doubles_nothing() -> None:
    with running() as server:
        url = server.database()
        database = store(url)
        expected: set[str] = set()
        number = 0
        for _ in range(20):
            killer = threading.Timer(0.05 + 0.01 * (number % 7), server.kill)
            killer.start()
            waiting: list[Incident] = []
            while True:
                number += 1
                waiting.append(incident(number, job=f"job-{number}"))
                try:
                    database.write(Batch(waiting), WALL)
                except DatabaseError:
                    break
                expected |= {it.job_id for it in waiting}
                waiting = []
            killer.join(30)
            server.start()
            database.close()
            ids = database.ids
            database = store(url)
            database.ids = ids
            database.write(Batch(waiting), WALL)  # as the buffer does
            expected |= {it.job_id for it in waiting}
        names = [it.job_id for it in stored(url)]
        assert len(names) == len(set(names)) and set(names) == expected
        database.close()


def test_a_slow_database_is_given_up_and_said_so(url: str, monkeypatch: pytest.MonkeyPatch, postgres: Server) -> None:
    store(url).close()
    slow = f"{url}&options=-cstatement_timeout%3D300%20-clock_timeout%3D0"
    database = store(slow)
    with postgres.connect(url.partition("///")[2].partition("?")[0]) as busy, busy.transaction():
        busy.execute("LOCK TABLE laggard.incidents")
        with pytest.raises(DatabaseError, match="a statement took over 10 s: the server is busy"):
            database.write(Batch([incident(1)]), WALL)
        with pytest.raises(DatabaseError, match="cannot be used: canceling statement"):
            read_incidents(slow, IncidentQuery())
    database.write(Batch([incident(1)]), WALL)
    assert len(stored(url)) == 1


def test_a_collector_that_hangs_in_a_transaction_does_not_stop_the_others(url: str) -> None:
    hung = store(f"{url}&options=-cidle_in_transaction_session_timeout%3D300", "hung")
    other = store(url, "other")
    with pytest.raises(DatabaseError), hung.transaction() as connection:
        other.write(Batch([incident(1)]), WALL)  # waits until the database has ended the one that hangs
        connection.exec_driver_sql("SELECT 1")
    assert len(stored(url)) == 1


def test_a_full_disk_is_told(url: str) -> None:
    database = store(url)
    why = r"^postgresql:///tests\S* cannot be used: .*free some of the server's disk$"
    with pytest.raises(DatabaseError, match=why):
        run(database, "DO $$ BEGIN RAISE disk_full; END $$")
    database.write(Batch([incident(1)]), WALL)
    assert len(stored(url)) == 1


def test_confirmations_reach_the_others(url: str, clock: Clock, make: Make) -> None:
    one, other = make(url, "one"), make(url, "other")
    observe(clock, one, jobs=(job(2),))
    told = Confirmation("n1", "confirmed", WALL + 9, "ada", "it is slow", ("n2",))
    assert one.confirm(told) and one.flush(30.0)
    assert read_confirmations(url) == (told,)
    clock.at += 60.0
    observe(clock, other, jobs=(job(),), rounds=1)
    with other.writer.changed:
        other.writer.changed.wait_for(lambda: bool(other.confirmations()), 60.0)
    assert other.confirmations() == (told,)
    assert [it.job_id for it in other.suspects(0.0)] == ["train"], "and what others saw is suspected"


def test_what_a_run_was_like_when_an_incident_began_is_of_the_row(url: str) -> None:
    made = kept_digest()
    one, other = store(url, "one"), store(url, "other")
    one.write(Batch([incident(1)]), WALL)
    other.write(Batch([incident(4)]), WALL)
    other.write(Batch(digests=[KeptDigest(1000, "train", of_incident(4), made)]), WALL)
    one.write(Batch(digests=[KeptDigest(1000, "train", of_incident(1), structs.replace(made, first_step=77))]), WALL)
    rows = query(url, "SELECT run, document FROM digests")
    assert [run for run, _ in rows] == ["incident:1"] and decode(rows[0][1], Digest) == made, "the first holds"


def test_commands_start_without_psycopg(tmp_path: Path) -> None:
    """A file is read without what only PostgreSQL needs."""
    text = (
        "import sys; from laggard.collector import incidents_command; "
        "print([name for name in ('psycopg', 'numpy', 'sqlalchemy') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-P", "-c", text], env=environ, capture_output=True, text=True, timeout=60)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.spine
@pytest.mark.slow  # collectors
def test_two_collectors_and_one_that_is_killed(
    watching: Any, fake_agent: Any, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real ones, which watch one agent: one incident, known to both by one id, and what one was told both know."""
    document = Documents.training("n0", [0, 1, 2, 3], slow=2)
    agent = fake_agent(document, Documents.report("n0", ["GPU_THROTTLED"]))

    start = partial(watching, agent, incidents_database=url)
    one, other = start(incidents_writer="one"), start(incidents_writer="other")

    def ids(collector: Any) -> list[int]:
        return [it["id"] for it in collector.get("/api/v1/incidents").json()["incidents"]]

    for collector in (one, other):
        collector.wait_until(lambda it=collector: "laggard_incidents_history_up 1.0" in it.get("/metrics").text)
        collector.wait_until(lambda it=collector: len(ids(it)) == 1)
    one.wait_until(lambda: ids(one) == ids(other) == [it.id for it in stored(url)])
    (known,) = ids(one)
    assert main(["incidents", "--database", url]) == 1
    assert "rank 2 on n0 is slow in forward" in capsys.readouterr().out
    one.stop(signal.SIGKILL)
    again = start(incidents_writer="one")
    again.wait_until(lambda: ids(again) == [known])
    again.wait_until(lambda: again.get("/api/v1/history", node="n0").json()["history"]["state"] == "on")
    over = [structs.replace(rank, state="finished", pid=0) for rank in document(0.0).ranks]
    agent.ranks = structs.replace(document(0.0), ranks=tuple(over))
    other.wait_until(lambda: [it.closed_because for it in stored(url)] == ["job_ended"])
    assert [it.id for it in stored(url)] == [known]
    assert again.stop() == 0 and other.stop() == 0
    assert [it.id for it in stored(url)] == [known]


@pytest.mark.slow
def test_a_database_that_was_away_unseen_is_written_at_once(
    clock: Clock, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a collector that had nothing to write ended with the server that is there again."""
    monkeypatch.setattr("laggard.collector.incidents.writer.SHARED_RETRY_SECONDS", 3600.0)
    with running() as server:
        url = server.database()
        one = make(url, "one")
        observe(clock, one, jobs=(job(2),))
        server.kill()
        server.start()
        observe(clock, one, jobs=(job(2), job(3, name="second")))
        assert one.told_state().state == "on" and {it.job_id for it in stored(url)} == {"train", "second"}
