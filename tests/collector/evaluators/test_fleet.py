"""A real evaluator and a real PostgreSQL: one that wants a password, and one that hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.postgres import Server, running

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
        assert "laggard_evaluators_live 1.0" in collector.get("/metrics").text
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
