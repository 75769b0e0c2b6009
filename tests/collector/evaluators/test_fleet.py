"""Three evaluators with a real Prometheus and a real PostgreSQL. One is killed: its jobs move, every answer stays
right, and no incident is lost or doubled."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.evaluator_fleet import EvaluatorProcess, Fleet, fleet, wait_until
from support.postgres import Server, running, why_none

RANKS = 8
JOBS: dict[str, tuple[int, ...]] = {"slow-a": (3,), "slow-b": (5,), "well-a": (), "well-b": (), "well-c": ()}
SECONDS = 240.0  # for what takes some ten of them on an idle machine


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Fleet]:
    if why := why_none() or ("" if shutil.which("prometheus") else "needs Prometheus (Debian: prometheus)"):
        pytest.skip(why)
    # Its incidents may be silent for a short time: those of a killed evaluator would be closed within the test.
    with fleet(tmp_path, prometheus_interval_seconds=3, incident_quiet_seconds=20) as found:
        for name, slow in JOBS.items():
            found.series.begin(name, RANKS, slow)
        found.start()
        yield found


def verdicts(of: EvaluatorProcess, jobs: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    return {name: of.verdict(name) for name in jobs}


def right(jobs: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    return {name: ("fail" if slow else "ok", slow) for name, slow in jobs.items()}


def own_jobs(of: EvaluatorProcess) -> set[str]:
    """The jobs that it judges itself, by its metrics."""
    return set(re.findall(r'^laggard_job_running{job_id="([^"]+)"', of.metrics(), re.M))


def by_job(of: EvaluatorProcess) -> dict[str, list[int]]:
    found = of.incidents()
    assert found is not None
    return {job: [it["id"] for it in found if it["job_id"] == job] for job in {it["job_id"] for it in found}}


def live(of: EvaluatorProcess) -> int:
    found = re.search(r"^laggard_evaluators_live (\d+)", of.metrics(), re.M)
    return int(found[1]) if found else -1


def settled(of: list[EvaluatorProcess], jobs: dict[str, tuple[int, ...]]) -> bool:
    """Whether all of them give the one right answer, and each job is judged by one of them."""
    if not all(each.get("summary") is not None for each in of):
        return False
    shares = Counter(name for each in of for name in own_jobs(each))
    return (
        all(verdicts(each, jobs) == right(jobs) for each in of)
        and all(live(each) == len(of) for each in of)
        and shares == dict.fromkeys(jobs, 1)
        and all(
            Counter(it["job_id"] for it in each.incidents(open=1) or ()) == {name: 1 for name in jobs if jobs[name]}
            for each in of
        )
    )


@pytest.mark.slow  # a Prometheus, a PostgreSQL and three collectors
def test_one_of_three_evaluators_is_killed(three: Fleet) -> None:
    wait_until(lambda: settled(three.evaluators, JOBS), SECONDS)
    before = by_job(three.evaluators[0])
    victim = next(each for each in three.evaluators if any(JOBS[name] for name in own_jobs(each)))
    moved = own_jobs(victim)
    victim.kill()
    left = three.running
    wrong: list[Any] = []

    def has_moved() -> bool:
        wrong.extend(found for each in left if (found := verdicts(each, JOBS)) != right(JOBS))
        return settled(left, JOBS)

    wait_until(has_moved, SECONDS)
    assert not wrong, "what it judged is a fact about now until others have judged it"
    assert moved <= own_jobs(left[0]) | own_jobs(left[1])
    # A fault that begins now is found, whoever has it to judge; and later than the killed one could have closed.
    jobs = {**JOBS, "slow-c": (6,)}
    three.series.begin("slow-c", RANKS, (6,))
    wait_until(lambda: settled(left, jobs), SECONDS)
    victim.start()
    wait_until(lambda: settled(three.evaluators, jobs), SECONDS)
    three.database.kill()
    wait_until(lambda: all(_only_own(each, jobs) for each in three.evaluators), SECONDS)
    assert not any(each.is_ready() for each in three.evaluators), "none of them answers for all"
    three.database.start()
    wait_until(lambda: settled(three.evaluators, jobs), SECONDS)
    assert all(each.is_ready() for each in three.evaluators)
    after = by_job(left[0])
    assert {name: after[name] for name in before} == before, "each goes on as the incident that it was"
    assert after.keys() == {"slow-a", "slow-b", "slow-c"} and all(len(ids) == 1 for ids in after.values())
    for each in three.evaluators:
        each.stop()
    assert not [line for each in three.evaluators for line in each.log().splitlines() if "defect" in line]


def _only_own(of: EvaluatorProcess, jobs: dict[str, tuple[int, ...]]) -> bool:
    """Whether, with the database away, it answers for its own jobs, and of the others says why it cannot."""
    mine, found = own_jobs(of), verdicts(of, jobs)
    others = {name: it for name, it in found.items() if name not in mine}
    if not all(it == ("unknown", ()) for it in others.values()):
        return False
    notes = of.get("location", job=f"1000:{next(iter(others))}")["notes"]
    assert "the database" in notes[0]["text"]
    return {name: found[name] for name in mine} == {name: right(jobs)[name] for name in mine}


@pytest.mark.slow  # a PostgreSQL
def test_the_password_of_a_secret_lets_it_in_and_is_told_nowhere(tmp_path: Path, start_collector: Any) -> None:
    def wants_a_password(server: Server) -> None:
        (server.data / "pg_hba.conf").write_text("local all laggard trust\nlocal all evaluator scram-sha-256\n")

    with running(configure=wants_a_password) as server:
        server.database()
        with server.connect() as connection:
            connection.execute("CREATE ROLE evaluator LOGIN PASSWORD 'a word@%'")
            connection.execute("GRANT CREATE ON DATABASE tests TO evaluator")
        secret, config = tmp_path / "url", tmp_path / "collector.yaml"
        secret.write_text(f"postgresql://evaluator:a%20word%40%25@/tests?host={server.folder}\n")
        secret.chmod(0o600)
        config.write_text(f"evaluators: main\nprometheus: http://127.0.0.1:9\nincidents_database_file: {secret}\n")
        collector = start_collector("--config", str(config), "--interval", "0.5")
        collector.wait_until(lambda: collector.get("/-/ready").status_code == 200)
        assert collector.get("/api/v1/incidents").json()["history"]["state"] == "on"
        told = [collector.get(path).text for path in ("/", "/metrics", "/api/v1/summary", "/api/v1/incidents")]
        assert not [text for text in told if "a word" in text or "a%20word" in text]
        server.kill()
        collector.wait_until(lambda: collector.get("/-/ready").status_code == 503)
        assert "word" not in collector.get("/-/ready").text


@pytest.mark.slow  # a PostgreSQL
def test_a_database_that_hangs_keeps_no_evaluator_from_ending(tmp_path: Path, start_collector: Any) -> None:
    with running() as server:
        config = tmp_path / "collector.yaml"
        config.write_text(
            f"evaluators: main\nprometheus: http://127.0.0.1:9\nincidents_database: {server.database()}\n"
        )
        collector = start_collector("--config", str(config), "--interval", "0.5")
        collector.wait_until(lambda: "laggard_evaluators_live" in collector.get("/metrics").text)
        collector.wait_until(
            lambda: not any("database" in line for line in collector.get("/api/v1/summary").json()["fleet"])
        )
        processes = [it for it in psutil.process_iter(["cmdline"]) if str(server.data) in (it.info["cmdline"] or [])]
        (postmaster,) = [it for it in processes if it.name() == "postgres"]
        stopped = [postmaster, *postmaster.children(recursive=True)]
        try:
            for each in stopped:
                each.suspend()
            collector.wait_until(
                lambda: any("no answer for" in line for line in collector.get("/api/v1/summary").json()["fleet"])
            )
            assert collector.stop() == 0
        finally:
            for each in stopped:
                each.resume()
