"""What bench/soak.py calls a leak, a crash and a lost incident: each check can fail."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soak
from msgspec import to_builtins
from soaking.clocks import Clock
from soaking.daemons import Daemon, Sample
from soaking.leaks import MIN_SAMPLES, leaks

from laggard.collector.incidents.incident import Incident, IncidentQuery
from laggard.collector.incidents.reads import read_incidents
from laggard.collector.incidents.store import Batch, Store, StoreSettings
from laggard.model import Culprit

MIB = 1 << 20


def life(memory: list[int], descriptors: int = 14, grows: float = 0.0, number: int = 1) -> list[Sample]:
    return [Sample(2.0 * n, number, it * MIB, int(descriptors + grows * n), 6) for n, it in enumerate(memory)]


def test_a_daemon_whose_memory_is_flat_after_its_start_does_not_leak() -> None:
    assert leaks("agent", life([10, 20, 30] + [40] * 57)) == []
    assert leaks("agent", life([40, 60] * 30)) == [], "what comes and goes is no leak"


def test_memory_that_grows_all_the_time_is_a_leak() -> None:
    assert leaks("agent", life(list(range(40, 100)))) == ["agent grew from 72.9 to 93.8 MB"]


def test_a_life_that_is_too_short_is_not_called_flat() -> None:
    (said,) = leaks("agent", life([40] * (MIN_SAMPLES - 1)))
    assert "too few to tell" in said


def test_each_life_begins_anew() -> None:
    """A daemon that was killed begins small again: that is judged within its longest life."""
    samples = life([20] * 10, number=1) + life([60] * 40, number=2)
    assert leaks("agent", samples) == []


class Site:
    """In place of soaking.site.Site: a daemon that only sleeps, and incidents that were written beforehand."""

    def __init__(self, folder: Path) -> None:
        self.database = str(folder / "incidents.sqlite")
        write = Store(StoreSettings(self.database, 1 << 20, 1e9))
        write.write(Batch([incident(1, "slow_compute"), incident(2, "dead")]), 1e9)
        write.close()
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.daemons = [Daemon("agent-0", words, "http://127.0.0.1:9", "/", folder, {})]

    def incidents(self) -> dict[str, Any]:
        rows = read_incidents(self.database, IncidentQuery())
        return {"incidents": to_builtins(rows.incidents), "history": {"state": "on"}}

    def nodes_without_condition(self) -> list[str]:
        return []

    def end(self) -> None:
        for daemon in self.daemons:
            daemon.end()


def incident(number: int, kind: str) -> Incident:
    culprit = Culprit(kind, (number,), node="n0", advice="look there")
    return Incident(
        number, 0, "soak-1", opened_as=culprit, culprit=culprit, what=kind, opened_at=1e9 + number, seen_at=1e9 + number
    )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.end()


@pytest.fixture
def at_its_end(site: Site) -> Any:
    """A soak that is over, after a job with a slow and a dead rank."""
    over = soak.Soak(site, seconds=60.0, pause=0.0)  # type: ignore[arg-type]
    over.remember()
    over.died.append("soak-1")
    return over


def judged(over: Any) -> list[str]:
    over.judge()
    over.judge_ends()
    found: list[str] = over.wrong
    return found


def test_a_soak_in_which_nothing_happened_is_well(at_its_end: Any) -> None:
    assert judged(at_its_end) == []


def test_a_daemon_that_ends_by_itself_is_a_crash(at_its_end: Any, site: Site) -> None:
    site.daemons[0].process.send_signal(signal.SIGSEGV)
    site.daemons[0].process.wait(300)
    assert judged(at_its_end) == ["agent-0 ended by itself with status -11"]
    assert site.daemons[0].lives(), "the soak starts it again"


def test_a_traceback_in_a_log_is_a_crash(at_its_end: Any, site: Site) -> None:
    site.daemons[0].log.write_text("INFO listening\nTraceback (most recent call last):\n  File ...\n")
    (said,) = judged(at_its_end)
    assert said.startswith("agent-0 wrote 'Traceback")


def test_an_incident_that_is_no_longer_told_is_lost(at_its_end: Any, site: Site) -> None:
    with sqlite3.connect(site.database) as database:
        database.execute("DELETE FROM incidents WHERE id = 1")
    database.close()
    assert judged(at_its_end) == [
        "the incident soak-1: slow_compute is lost",
        "soak-1 had a slow and a dead rank, its incidents are ['dead']",
    ]


def test_a_history_that_stays_off_is_wrong(at_its_end: Any, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_HISTORY_SECONDS", 0.0)
    answer = site.incidents() | {"history": {"state": "failed", "reason": "no space left"}}
    monkeypatch.setattr(site, "incidents", lambda: answer)
    (said,) = judged(at_its_end)
    assert said.startswith("the history did not come back")


def test_a_clock_that_is_set_is_seen_at_once_by_its_programs_alone(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    script = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    words = [sys.executable, "-c", script]
    with subprocess.Popen(
        words, env=clock.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as program:
        assert program.stdin and program.stdout
        for ahead in (0, 3600, -3600):
            clock.set_by(ahead)
            wall, monotonic = time.time(), time.monotonic()
            program.stdin.write("now\n")
            seen_wall, seen_monotonic = map(float, program.stdout.readline().split())
            assert wall <= seen_wall - ahead <= time.time() and monotonic <= seen_monotonic <= time.monotonic()
