"""Backup and restore of incidents, in a file and in PostgreSQL, by the commands of docs/operate.md, beside a real
collector."""

import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.collectors import Make as Documents
from support.docs_commands import command_lines
from support.paths import REPOSITORY
from support.postgres import Server, running

from laggard.collector.incidents.incident import IncidentQuery
from laggard.collector.incidents.reads import read_incidents

pytestmark = pytest.mark.slow

PAGE = REPOSITORY / "docs" / "operate.md"
LIVE, KEPT = "/var/lib/laggard/incidents.sqlite", "/backup/incidents.sqlite"


def shown(beginning: str) -> str:
    """The one command of the page that begins so."""
    (line,) = (line.text for line in command_lines(PAGE) if line.text.startswith(beginning))
    return line


def ids(collector: Any) -> list[str]:
    """Of the incidents that it tells of."""
    return [it["id"] for it in collector.get("/api/v1/incidents").json()["incidents"]]


@pytest.mark.parametrize("command", ["sqlite3 ", "/opt/laggard/bin/python3 -c"])
def test_a_copy_of_a_live_database_is_a_whole_one(
    command: str, watching: Callable[..., Any], fake_agent: Callable[..., Any], tmp_path: Path
) -> None:
    if command == "sqlite3 " and not shutil.which("sqlite3"):
        pytest.skip("needs sqlite3")
    live, kept = tmp_path / "live.sqlite", tmp_path / "kept.sqlite"
    document = Documents.training("n0", [0, 1, 2, 3], slow=2)
    agent = fake_agent(document, Documents.report("n0"))
    first = watching(agent, incidents_database=str(live))
    first.wait_until(lambda: bool(ids(first)) and read_incidents(str(live), IncidentQuery()).opened == 1)
    text = (
        shown(command)
        .replace(LIVE, str(live))
        .replace(KEPT, str(kept))
        .replace("/opt/laggard/bin/python3", sys.executable)
    )
    subprocess.run(["sh", "-c", f"umask 077; {text}"], check=True, timeout=300)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert sqlite3.connect(kept).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert [it.id for it in read_incidents(str(kept), IncidentQuery()).incidents] == ids(first)
    known = ids(first)
    assert first.get("/metrics").text.count("laggard_incidents_history_up 1.0") == 1, "the collector goes on writing"
    first.stop(signal.SIGKILL)
    assert Path(f"{live}-wal").exists(), "as after a crash"
    _restore(live, kept)
    second = watching(agent, incidents_database=str(live))
    second.wait_until(lambda: ids(second) == known)
    assert "laggard_incidents_history_up 1.0" in second.get("/metrics").text
    assert second.stop() == 0


def test_a_dump_is_restored_into_a_fresh_postgresql(
    postgres: Server, watching: Callable[..., Any], fake_agent: Callable[..., Any], tmp_path: Path
) -> None:
    """By the page's commands, while the collector runs; another one then begins with what was restored."""
    if not (shutil.which("pg_dump") and shutil.which("psql")):
        pytest.skip("needs pg_dump and psql (Debian: postgresql-client)")
    agent = fake_agent(Documents.training("n0", [0, 1, 2, 3], slow=2), Documents.report("n0"))
    dump = tmp_path / "laggard.sql"

    def collector_of(url: str) -> Any:
        found = watching(agent, incidents_database=url, incidents_writer="one")
        found.wait_until(lambda: "laggard_incidents_history_up 1.0" in found.get("/metrics").text)
        found.wait_until(lambda: len(ids(found)) == 1)
        return found

    def run(beginning: str, url: str) -> None:
        words = shlex.split(shown(beginning).replace("/backup/laggard.sql", str(dump)))
        subprocess.run([*words[:-1], url], check=True, timeout=300, capture_output=True)

    source = postgres.database()
    first = collector_of(source)
    run("pg_dump ", source)
    known = ids(first)
    assert first.stop() == 0
    with running() as fresh:
        target = fresh.database()
        run("psql ", target)
        assert [it.id for it in read_incidents(target, IncidentQuery()).incidents] == known
        second = collector_of(target)
        assert ids(second) == known
        assert second.stop() == 0


def _restore(live: Path, kept: Path) -> None:
    """By the page's commands, without the users that a test has not."""
    for beginning in ("rm -f /var/lib/laggard/incidents.sqlite-wal", "install -m 600 -o laggard"):
        words = shown(beginning).replace(LIVE, str(live)).replace(KEPT, str(kept)).replace("-o laggard -g laggard ", "")
        subprocess.run(words.split(), check=True, timeout=300)
