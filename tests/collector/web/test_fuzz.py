"""The collector's API asked at random: no 500, no traceback, and it answers afterwards as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fuzz import expect_no_defect

PATHS = (
    "/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/nodes", "/api/v1/findings", "/api/v1/drains", "/api/v1/rings",
    "/api/v1/rings/due", "/api/v1/location", "/api/v1/recording", "/api/v1/summary", "/api/v1/ranks",
    "/api/v1/tiles", "/api/v1/rings/newest", "/api/v1/links", "/api/v1/timeline", "/api/v1/targets",
    "/api/v1/incidents", "/api/v1/recommendation",
    "/findings/DISK_FULL", "/nothing"
)  # fmt: skip


@pytest.mark.slow
def test_no_question_is_answered_by_a_defect(start_collector: Any, fake_agent: Any, make: Any, tmp_path: Path) -> None:
    agent = fake_agent(make.node("n0", [0, 1, 2, 3], slow=2), make.report("n0", ["GPU_THROTTLED"]))
    config = tmp_path / "collector.yaml"
    config.write_text(f"incidents_database: {tmp_path / 'incidents.sqlite'}\n")
    collector = start_collector("--target", agent.address, "--interval", "0.5", "--config", str(config))
    collector.wait_until(lambda: collector.get("/api/v1/location").json()["verdict"] == "fail")
    expect_no_defect(collector.url, PATHS, examples=400)
    assert collector.get("/api/v1/location").json()["verdict"] == "fail"
    collector.process.terminate()
    log = collector.process.communicate(timeout=120)[1]
    assert "Traceback" not in log and "a defect in laggard" not in log
