"""The collector's API asked at random: no 500, no traceback, and it answers afterwards as before."""

from pathlib import Path
from typing import Any

import pytest
from support.fuzz import described_paths, expect_as_described, expect_no_defect

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import all_routes


def test_all_routes_are_described() -> None:
    source: Any = None  # no handler is called
    assert {route.path for route in all_routes(source, CollectorSettings())} == set(described_paths("collector"))


@pytest.mark.slow
def test_each_answer_is_as_described_and_none_a_defect(
    watching: Any, fake_agent: Any, make: Any, tmp_path: Path
) -> None:
    agent = fake_agent(make.node("n0", [0, 1, 2, 3], slow=2), make.report("n0", ["GPU_THROTTLED"]))
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    database = str(tmp_path / "incidents.sqlite")
    collector = watching(agent, incidents_database=database, ring_token_file=str(token))
    collector.wait_until(lambda: collector.get("/api/v1/location").json()["verdict"] == "fail")
    expect_as_described("collector", collector.url, tmp_path)
    expect_no_defect(collector.url, (*described_paths("collector"), "/findings/DISK_FULL", "/nothing"), examples=250)
    assert collector.get("/api/v1/location").json()["verdict"] == "fail"
    collector.stop()
    log = collector.said()
    assert "Traceback" not in log and "a defect in laggard" not in log
