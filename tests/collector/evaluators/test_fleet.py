"""Real evaluators and a real PostgreSQL: one that wants a password, one that hangs, and three evaluators of whom one
is killed."""

import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.collectors import CollectorProcess
from support.postgres import Server, running
from support.prometheus_series import Job, make_blocks, prometheus
from support.waiting import wait_for

EVALUATOR: dict[str, Any] = {"evaluators": "main", "prometheus": "http://127.0.0.1:9", "interval_seconds": 0.5}


@pytest.mark.slow  # a PostgreSQL
def test_the_password_of_a_secret_lets_it_in_and_is_told_nowhere(tmp_path: Path, start_collector: Any) -> None:
    def wants_a_password(server: Server) -> None:
        (server.data / "pg_hba.conf").write_text("local all laggard trust\nlocal all evaluator scram-sha-256\n")

    with running(configure=wants_a_password) as server:
        server.database()
        with server.connect() as connection:
            connection.execute("CREATE ROLE evaluator LOGIN PASSWORD 'a word@%'")
            connection.execute("GRANT CREATE ON DATABASE tests TO evaluator")
        secret = tmp_path / "url"
        secret.write_text(f"postgresql://evaluator:a%20word%40%25@/tests?host={server.folder}\n")
        secret.chmod(0o600)
        collector = start_collector(**EVALUATOR, incidents_database_file=str(secret))
        collector.wait_until(lambda: collector.get("/-/ready").status_code == 200)
        assert collector.get("/api/v1/incidents").json()["history"]["state"] == "on"
        assert "laggard_evaluators_live 0.0" in collector.get("/metrics").text, "without a Prometheus none can judge"
        told = [collector.get(path).text for path in ("/", "/metrics", "/api/v1/summary", "/api/v1/incidents")]
        assert not [text for text in told if "a word" in text or "a%20word" in text]
        server.kill()
        collector.wait_until(lambda: collector.get("/-/ready").status_code == 503)
        assert "word" not in collector.get("/-/ready").text


@pytest.mark.slow  # a PostgreSQL
def test_a_database_that_hangs_keeps_no_evaluator_from_ending(start_collector: Any) -> None:
    with running() as server:
        collector = start_collector(**EVALUATOR, incidents_database=server.database())

        def says(words: str) -> bool:
            return any(words in line for line in collector.get("/api/v1/summary").json()["fleet"])

        collector.wait_until(lambda: "laggard_evaluators_live" in collector.get("/metrics").text)
        collector.wait_until(lambda: not says("database"))
        with server.stopped():
            collector.wait_until(lambda: says("no answer for"))
            assert collector.stop() == 0


SLOW: dict[str, tuple[int, ...]] = {"slow-a": (3,), "slow-b": (5,), "well-a": (), "well-b": (), "well-c": ()}


def own_jobs(of: CollectorProcess) -> set[str]:
    """The jobs that it judges itself."""
    return set(re.findall(r'^laggard_job_running{job_id="([^"]+)"', of.get("/metrics").text, re.M))


def verdicts(of: CollectorProcess) -> dict[str, tuple[str, tuple[int, ...]]]:
    found = {name: of.get("/api/v1/location", job=f"1000:{name}").json() for name in SLOW}
    return {name: (it["verdict"], tuple(r for c in it["culprits"] for r in c["ranks"])) for name, it in found.items()}


RIGHT = {name: ("fail" if slow else "ok", slow) for name, slow in SLOW.items()}


def incidents(of: CollectorProcess) -> list[tuple[str, int]]:
    return sorted((it["job_id"], it["id"]) for it in of.get("/api/v1/incidents").json()["incidents"])


def settled(evaluators: list[CollectorProcess]) -> bool:
    """Whether each job has one judge, and all give the one right answer."""
    shares = Counter(name for each in evaluators for name in own_jobs(each))
    return (
        shares == dict.fromkeys(SLOW, 1)
        and all(f"laggard_evaluators_live {len(evaluators)}.0" in each.get("/metrics").text for each in evaluators)
        and all(
            verdicts(each) == RIGHT and [it[0] for it in incidents(each)] == ["slow-a", "slow-b"] for each in evaluators
        )
    )


@pytest.mark.slow  # a Prometheus, a PostgreSQL and three collectors
@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Prometheus (Debian: prometheus)")
def test_one_of_three_is_killed_and_no_verdict_and_no_incident_is_lost(tmp_path: Path, start_collector: Any) -> None:
    """The jobs' samples are stored until half an hour from now: they run on."""
    jobs = [Job(8, samples=150, slow=slow, job_id=name) for name, slow in SLOW.items()]
    data = make_blocks(jobs, time.time() + 1800, tmp_path)
    with running() as server, prometheus(data) as url:
        shared = {"evaluators": "main", "prometheus": url, "prometheus_interval_seconds": 3}
        shared |= {"incidents_database": server.database(), "incident_quiet_seconds": 20}
        three = [start_collector(**shared, incidents_writer=f"evaluator-{number}") for number in range(3)]
        wait_for(lambda: settled(three), lambda: [verdicts(each) for each in three])
        before = incidents(three[0])
        victim = next(each for each in three if own_jobs(each) & {"slow-a", "slow-b"})
        moved = own_jobs(victim)
        victim.stop(signal.SIGKILL)
        left = [each for each in three if each is not victim]
        while not settled(left):
            for each in left:
                assert verdicts(each) == RIGHT, "what it judged is a fact about now until others have judged it"
        assert moved <= own_jobs(left[0]) | own_jobs(left[1])
        assert incidents(left[0]) == incidents(left[1]) == before, "each goes on as the incident that it was"
