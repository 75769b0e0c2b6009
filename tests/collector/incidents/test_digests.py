"""Digests of runs beside the incidents: kept over restarts, found by script and size, bounded, and brought into files
of another version."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.collectors import Make, report
from support.stores import WALL, kept_digest, open_store, query

from laggard.cli import main
from laggard.collector.incidents.incident import FIRST, LAST, AskedDigest, KeptDigest, of_incident
from laggard.collector.incidents.reads import read_digest
from laggard.collector.incidents.schema import OLDEST, VERSION, DatabaseError
from laggard.collector.incidents.store import Batch
from laggard.wire import decode
from laggard.wire.digest import Comparison, Digest, Estimate


def digest(**changes: Any) -> Digest:
    return kept_digest(**{"script": "train.py", **changes})


def asked(run: str = LAST, owner: int = 1000, name: str = "now", **changes: Any) -> AskedDigest:
    return AskedDigest(run, owner, name, 9.0, "train.py", 4)._replace(**changes)


def kept(name: str = "before", owner: int = 1000, run: str = LAST, **changes: Any) -> KeptDigest:
    return KeptDigest(owner, name, run, digest(**changes))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "incidents.sqlite")


def store(path: str, *digests: KeptDigest, now: float = WALL, max_bytes: int = 8 << 20) -> None:
    database = open_store(path, max_bytes, 1000.0)
    database.write(Batch(digests=digests), now)
    database.close()


def test_the_last_healthy_run_of_this_script_and_size_is_found(place: str) -> None:
    path = place
    store(
        path,
        kept("old", made_at=WALL - 50, first_step=1),
        kept("new", made_at=WALL - 10, first_step=2),
        kept("other", made_at=WALL, script="eval.py"),
        kept("larger", made_at=WALL, world_size=8),
        kept("another's", owner=1001, made_at=WALL),
        kept("now", started_at=9.0, made_at=WALL),
        kept("incident", run=of_incident(7), made_at=WALL, first_step=3),
    )
    found = read_digest(path, asked())
    assert found is not None and found.first_step == 2
    again = read_digest(path, asked(name="new", started_at=6.0))
    assert again is not None and again.first_step == 2, "an earlier run of the same name is another run"
    of_incident_7 = read_digest(path, asked(of_incident(7)))
    assert of_incident_7 is not None and of_incident_7.first_step == 3
    assert read_digest(path, asked(of_incident(7), owner=1001)) is None, "another user's"
    assert read_digest(path, asked(FIRST)) is None and read_digest(path, asked(script="no.py")) is None


def test_a_run_has_one_digest_of_each_kind(place: str) -> None:
    store(place, kept(first_step=1))
    store(place, kept(first_step=2, made_at=WALL + 60), kept(run=FIRST))
    assert query(place, "SELECT run FROM digests ORDER BY run") == [("first",), ("last",)]
    found = read_digest(place, asked())
    assert found is not None and found.first_step == 2


def test_old_ones_and_too_many_are_dropped_of_the_user_who_has_the_most(place: str) -> None:
    store(place, kept("too old", made_at=WALL - 2000.0))
    flood = [kept(f"job-{number}", owner=1001, made_at=WALL - 500 + number) for number in range(40)]
    store(place, *flood, kept(), max_bytes=1 << 20)  # of which a quarter has room for sixteen
    rows = query(place, "SELECT owner, job_id FROM digests ORDER BY made_at")
    assert len(rows) <= 16 and (1000, "before") in rows
    assert (1001, "job-39") in rows and (1001, "job-0") not in rows and (1000, "too old") not in rows


@pytest.mark.parametrize("version", [1, OLDEST - 1, VERSION + 7])
def test_a_file_of_another_version_is_refused_in_one_line(path: str, version: int) -> None:
    store(path, kept())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    for refused in (lambda: open_store(path), lambda: read_digest(path, asked())):
        with pytest.raises(
            DatabaseError, match=f"is of version {version}, and this laggard knows {OLDEST} to {VERSION}"
        ):
            refused()


def test_a_damaged_digest_is_none(path: str) -> None:
    store(path, kept())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE digests SET document = x'7b'")
        connection.commit()
    assert read_digest(path, asked()) is None


@pytest.mark.slow  # a collector
def test_a_collector_is_asked_for_what_a_job_was_like(
    watching: Any, fake_agent: Any, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    """An earlier run of the script, in the database, was faster in its backward pass, and had another torch."""
    facts = {"script": "train.py", "started": 1000.0, "environment": {"torch": "2.9"}}
    agent = fake_agent(Make.node("n0", [0, 1, 2, 3], facts=facts), report("n0"))
    collector = watching(agent, incidents_database=path)
    collector.wait_until(lambda: collector.get("/api/v1/digest", run="first").status_code == 200)
    now = decode(collector.get("/api/v1/digest", job="1000:job-1").content, Digest)
    assert now.script == "train.py" and now.healthy and now.environment == {"torch": "2.9"}
    assert now.step.seconds == pytest.approx(0.25) and len(now.rows) == 4
    assert collector.get("/api/v1/digest", run="last").status_code == 404
    assert collector.get("/api/v1/digest", run="yesterday").status_code == 400
    assert main(["locate", "--collector", collector.url, "--against", "first"]) == 0
    assert capfd.readouterr().out.startswith("No difference from first")
    assert main(["locate", "--collector", collector.url, "--against", "last"]) == 64
    assert "nothing is kept of such a run (last)" in capfd.readouterr().err
    collector.wait_until(lambda: read_digest(path, asked(name="other", script="train.py")) is not None)
    collector.stop()

    place = now.phases.index("backward")
    rows = tuple(
        structs.replace(row, own=tuple(Estimate(0.05, 0.001) if at == place else it for at, it in enumerate(row.own)))
        for row in now.rows
    )
    earlier = structs.replace(
        now, job_id="before", started_at=1.0, made_at=WALL + 1e6, rows=rows, step=Estimate(0.22, 0.001),
        environment={"torch": "2.8"},
    )  # fmt: skip
    store(path, KeptDigest(1000, "before", LAST, earlier), now=WALL + 1e6)
    collector = watching(agent, incidents_database=path)
    collector.wait_until(lambda: collector.get("/api/v1/digest", run="last").status_code == 200)
    assert main(["locate", "--collector", collector.url, "--against", "last", "--format", "json"]) == 1
    found = decode(capfd.readouterr().out.encode(), Comparison)
    assert [(each.phase, each.ranks) for each in found.changes] == [("backward", ())]
    assert found.changes[0].seconds == pytest.approx(0.03, rel=0.05) and found.step is not None
    assert [(each.name, each.before, each.now) for each in found.differences or ()] == [("torch", "2.8", "2.9")]
    text = "14 % slower than last: backward +30 ms (+60 %, "
    assert main(["locate", "--collector", collector.url, "--against", "last"]) == 1
    printed = capfd.readouterr().out
    assert printed.startswith(text) and "nothing else changed but torch 2.8 -> 2.9." in printed
    assert json.loads(collector.get("/api/v1/digest").text)["schema"] == "laggard.digest/1"
