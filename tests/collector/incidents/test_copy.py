"""What is kept, copied from a file to PostgreSQL and back: all of it, once, also where it is ended in the middle."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select
from support.stores import WALL, incident, kept_digest, open_store, query, run

from laggard.cli import main
from laggard.collector.copying import copy_database
from laggard.collector.incidents.incident import LAST, Fault, IncidentQuery, KeptDigest, NodeName, of_incident
from laggard.collector.incidents.reads import read_incidents, reading
from laggard.collector.incidents.schema import TABLES
from laggard.collector.incidents.store import Batch
from laggard.model import Severity
from laggard.wire.exclusion import Confirmation

OWN = ("writer", "written_at")
"""The columns that tell who wrote a row, and when: those of each database."""


def fill(place: str, incidents: int = 40) -> None:
    """All kinds of rows, among them names that PostgreSQL's text cannot hold, and incidents that follow one another at
    one place within seconds, as where a job dies again and again."""
    database = open_store(place, max_bytes=64 << 20)
    names = ["a\0b\\" if n < 40 else f"job-{n}" for n in range(incidents)]
    closed = [incident(n, job=it, closed_at=WALL + n + 0.5, closed_because="job_ended") for n, it in enumerate(names)]
    opened = incident(10_000, job="open")
    database.write(Batch([*closed, opened]), WALL)
    fault = Fault(5, "n1", "GPU-a", "GPU_XID", "GPU 0", Severity.CRITICAL, "", "gpu_xid", WALL, WALL)
    gone = structs.replace(fault, id=4, opened_at=WALL - 90, seen_at=WALL - 80, closed_at=WALL - 80)
    name = NodeName("n1", "GPU-a", WALL, WALL + 9, ("GPU-a",))
    kept = [KeptDigest(1000, "open", run, kept_digest()) for run in (LAST, of_incident(10_000))]
    told = Confirmation("n1", "confirmed", WALL + 9, "ada", "slow", ("n2",))
    database.write(Batch((), (fault, gone), [name], [told], kept), WALL)
    database.close()


def contents(place: str) -> dict[str, list[tuple[Any, ...]]]:
    kept = {name: [it for it in table.columns if it.name not in OWN] for name, table in TABLES.tables.items()}
    with reading(place) as connection:
        rows = {name: connection.execute(select(*columns)).all() for name, columns in kept.items()}
    return {name: sorted(map(tuple, found), key=repr) for name, found in rows.items()}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "incidents.sqlite")


def test_there_and_back_nothing_is_other(
    url: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(file)
    before = contents(file)
    assert all(before.values())
    assert main(["incidents", "--database", file, "--copy-to", url, "--writer", "west"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{file} is in {url.partition('?')[0]} now.\n  41 incidents, 41 new\n  2 findings, 2 new\n")
    assert contents(url) == before
    assert query(url, "SELECT DISTINCT writer FROM incidents") == [("west",)]
    assert main(["incidents", "--database", file, "--copy-to", url]) == 0
    assert "  41 incidents, 0 new\n" in capsys.readouterr().out
    assert contents(url) == before, "a second time changes nothing"
    back = str(tmp_path / "back.sqlite")
    assert main(["incidents", "--database", url, "--copy-to", back]) == 0
    assert contents(back) == before
    assert [it.id for it in open_store(url, writer="west").open_incidents(10)] == [10_000], (
        "its collector goes on with it"
    )


def test_incidents_of_other_collectors_stay_and_make_no_clash(url: str, file: str) -> None:
    fill(file)
    here = open_store(url)
    same = structs.replace(incident(9_999, job="open"), seen_at=WALL + 20_000, gaps=7)
    here.write(Batch([incident(3, job="another"), same]), WALL)
    copied = copy_database(file, url, "west")
    assert (copied["incidents"], copied["incidents new"]) == (41, 40), "one was seen by both"
    found = read_incidents(url, IncidentQuery(limit=1000)).incidents
    assert len(found) == 42 and len({it.id for it in found}) == 42
    (both,) = (it for it in found if it.job_id == "open")
    assert (both.id, both.gaps, both.seen_at) == (9_999, 7, WALL + 20_000), "what the target knows better stays"
    assert query(url, "SELECT run FROM digests WHERE run != 'last'") == [("incident:9999",)]
    again = copy_database(file, url, "west")
    assert not any(again[f"{table} new"] for table in TABLES.tables)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["to PostgreSQL", "to a file"])
def test_ended_in_the_middle_it_is_begun_anew(way: str, url: str, file: str, tmp_path: Path) -> None:
    fill(file, 2500)
    before = contents(file)
    source, target = (file, url) if way == "to PostgreSQL" else (url, str(tmp_path / "back.sqlite"))
    if way == "to a file":
        copy_database(file, url, "west")
    command = [sys.executable, "-P", "-m", "laggard", "incidents", "--database", source, "--copy-to", target]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    counts = []
    for _ in range(6):
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and _count(target) <= max(counts, default=0):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        counts.append(_count(target))
    assert subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, timeout=120).returncode == 0
    assert any(0 < count < 2501 for count in counts), counts
    assert contents(target) == before


def _count(place: str) -> int:
    try:
        return int(query(place, "SELECT count(*) FROM incidents")[0][0])
    except Exception:
        return 0


def test_a_row_that_cannot_be_read_stays_behind_and_is_told(
    url: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(file)
    database = open_store(file)
    run(database, "UPDATE incidents SET document = :document WHERE id = 3", document=b"{}")
    database.close()
    assert main(["incidents", "--database", file, "--copy-to", url]) == 1
    text = capsys.readouterr().out
    assert "  40 incidents, 40 new\n" in text and "  1 row could not be read, and stayed behind\n" in text


def test_what_cannot_be_copied_is_said_in_a_line(
    url: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(file, 1)
    busy = str(tmp_path / "busy.sqlite")
    writing = open_store(busy)
    for words, text in (
        (["--database", file, "--copy-to", busy], f"{busy} is written by another collector"),
        (["--database", file, "--copy-to", file], "would be copied onto itself"),
        (["--database", file, "--copy-to", url, "--open"], "give that, and nothing that selects"),
        (["--copy-to", url], "--copy-to copies all of --database FILE or URL"),
        (["--database", url, "--copy-to", str(tmp_path / "x")], "has no incidents of laggard"),
        (["--writer", "x"], "belongs to --copy-to"),
    ):
        assert main(["incidents", *words]) == 64
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1
    writing.close()
