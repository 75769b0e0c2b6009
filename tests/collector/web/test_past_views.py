"""The page's cards of the past, and the report, in a real browser: a machine's history, and what a week cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.browsing import Browsed, needs_chromium

from laggard.cli import main
from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.fault import Fault, NodeName
from laggard.collector.incidents.incident import Incident, Return
from laggard.collector.incidents.node_rows import NodeRows
from laggard.collector.incidents.run import Run
from laggard.model import Culprit, Severity

pytestmark = [pytest.mark.slow, needs_chromium]

HOSTILE = "<img src=x onerror=alert(1)>"


def fill(path: Path) -> None:
    """Two incidents and two faults of n1, of the last days."""
    now = time.time()
    culprit = Culprit("slow_compute", (2,), node="n1", recoverable_ratio=0.2)
    slow = Incident(
        int(now * 1000) - 10**8, 1000, HOSTILE, f"rank 2 on n1 is slow {HOSTILE}", now - 90000, now - 80000, culprit,
        culprit, (HOSTILE,), 0.2, closed_at=now - 80000, closed_because="recovered", world_size=64,
        lost_seconds=2000.0, window_seconds=30.0, returned=Return(2, now - 170000),
    )  # fmt: skip
    dead = structs.replace(
        slow, id=slow.id + 1, job_id="train", culprit=Culprit("dead", (3,), node="n2"), closed_because="job_ended",
        lost_seconds=60.0, opened_at=now - 50000, closed_at=now - 49900, findings=(), returned=None,
    )  # fmt: skip
    fault = Fault(
        int(now * 1000) - 10**8, "n1", "GPU-a", "GPU_ECC_UNCORRECTED", HOSTILE, Severity.CRITICAL, "", "gpu_ecc",
        now - 90000, now - 80000, closed_at=now - 80000, closed_because="repaired",
    )  # fmt: skip
    again = structs.replace(
        fault, id=fault.id + 1, opened_at=now - 40000, closed_at=now - 30000, returned=Return(1, now - 80000)
    )
    run = Run(1000, "train", now - 90000, now - 49900, now - 90000, "train.py", 64, 0, 30000, now - 50000, 36000.0,
              900.0, ended_at=now - 49900)  # fmt: skip
    database = IncidentDatabase.open(str(path), 8 << 20, 1e9)
    database.write([slow, dead], now)
    names = (
        NodeName("n0-old", "GPU-a", now - 9e5, now - 5e5, ("GPU-a",)),
        NodeName("n1", "GPU-a", now - 4e5, now, ("GPU-a",)),
    )
    database.keep_nodes(NodeRows((fault, again), names, (run,)), now)
    database.close()


@pytest.fixture
def collector(tmp_path: Path, start_collector: Callable[..., Any], fake_agent: Any, make: Any) -> Any:
    config = tmp_path / "collector.yml"
    config.write_text(f"incidents_database: {tmp_path / 'incidents.sqlite'}\ngpu_hour_price: 2.5\ncurrency: EUR\n")
    fill(tmp_path / "incidents.sqlite")
    agent = fake_agent(make.node("n1", [0, 1], slow=2), make.report("n1"))
    started = start_collector("--config", str(config), "--target", agent.address, "--interval", "0.5")
    started.wait_ready()
    return started


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_node_shows_its_history_and_the_fleet_what_it_cost(browser: Any, collector: Any, scheme: str) -> None:
    browsed = Browsed(
        browser, f"{collector.url}/#view=node&node=n1", "#history-card:not([hidden])", color_scheme=scheme
    )
    page = browsed.page
    assert "fails again and again" in page.inner_text("#history-explain")
    assert "called n0-old before" in page.inner_text("#history-explain")
    rows = page.locator("#history tbody tr")
    assert rows.count() == 2 and "came back after" in rows.nth(0).inner_text()
    assert "GPU_ECC_UNCORRECTED (2)" in page.inner_text("#history-figures")
    assert "came back: it had been over" in page.inner_text("#incidents")
    assert browsed.barriers() == []
    browsed.screenshot(f"page-history-{scheme}")
    page.goto(f"{collector.url}/#view=fleet")
    page.locator("#cost-card:not([hidden]) tbody tr").first.wait_for()
    assert "EUR" in page.inner_text("#cost-explain") and "GPU-hours" in page.inner_text("#cost-explain")
    assert HOSTILE in page.inner_text("#cost")
    assert browsed.barriers() == []
    browsed.screenshot(f"page-cost-{scheme}")
    assert browsed.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_needs_no_script_and_runs_none(
    browser: Any, tmp_path: Path, scheme: str, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "incidents.sqlite")
    report = tmp_path / "report.html"
    words = ["cost", "--database", str(tmp_path / "incidents.sqlite"), "--price", "2", "--html", str(report)]
    assert main(words) == 0
    assert "GPU-hours" in capsys.readouterr().out
    browsed = Browsed(browser, report.as_uri(), "table", color_scheme=scheme, java_script_enabled=False,
                      viewport={"width": width, "height": 800})  # fmt: skip
    assert HOSTILE in browsed.page.inner_text("main") and "By node" in browsed.page.inner_text("main")
    assert browsed.page.locator("img, script").count() == 0
    assert "ETTR" in browsed.page.inner_text("main")
    browsed.screenshot(f"cost-report-{scheme}-{width}")
    assert browsed.errors == [] and browsed.requests == [report.as_uri()]
