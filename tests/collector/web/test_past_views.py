"""The page's card of a machine's history, in a real browser."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.browsing import Browsed, needs_chromium
from support.stores import open_store

from laggard.collector.incidents.incident import Fault, Incident, NodeName, Return
from laggard.collector.incidents.store import Batch
from laggard.model import Culprit, Severity

pytestmark = [pytest.mark.slow, needs_chromium]

HOSTILE = "<img src=x onerror=alert(1)>"


def fill(path: Path) -> None:
    """Two incidents and two faults of n1, of the last days."""
    now = time.time()
    culprit = Culprit("slow_compute", (2,), node="n1", recoverable_ratio=0.2)
    slow = Incident(
        int(now * 1000) - 10**8, 1000, HOSTILE, f"rank 2 on n1 is slow {HOSTILE}", now - 90000, now - 80000, culprit,
        culprit, (HOSTILE,), 0.2, closed_at=now - 80000, closed_because="recovered",
        lost_gpu_hours=35.5, returned=Return(2, now - 170000),
    )  # fmt: skip
    dead = structs.replace(
        slow, id=slow.id + 1, job_id="train", culprit=Culprit("dead", (3,), node="n2"), closed_because="job_ended",
        lost_gpu_hours=1.0, opened_at=now - 50000, closed_at=now - 49900, findings=(), returned=None,
    )  # fmt: skip
    fault = Fault(
        int(now * 1000) - 10**8, "n1", "GPU-a", "GPU_ECC_UNCORRECTED", HOSTILE, Severity.CRITICAL, "", "gpu_ecc",
        now - 90000, now - 80000, closed_at=now - 80000, closed_because="repaired",
    )  # fmt: skip
    again = structs.replace(
        fault, id=fault.id + 1, opened_at=now - 40000, closed_at=now - 30000, returned=Return(1, now - 80000)
    )
    database = open_store(str(path), 8 << 20, 1e9)
    names = (
        NodeName("n0-old", "GPU-a", now - 9e5, now - 5e5, ("GPU-a",)),
        NodeName("n1", "GPU-a", now - 4e5, now, ("GPU-a",)),
    )
    database.write(Batch([slow, dead], (fault, again), names), now)
    database.close()


@pytest.fixture
def collector(tmp_path: Path, watching: Callable[..., Any], fake_agent: Any, make: Any) -> Any:
    fill(tmp_path / "incidents.sqlite")
    agent = fake_agent(make.node("n1", [0, 1], slow=2), make.report("n1"))
    return watching(agent, incidents_database=str(tmp_path / "incidents.sqlite"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_node_shows_its_history(browser: Any, collector: Any, scheme: str) -> None:
    browsed = Browsed(
        browser, f"{collector.url}/#view=node&node=n1", "#history-card:not([hidden])", color_scheme=scheme
    )
    page = browsed.page
    assert "fails again and again" in page.inner_text("#history-explain")
    assert "called n0-old before" in page.inner_text("#history-explain")
    rows = page.locator("#history tbody tr")
    assert rows.count() == 2 and "came back after" in rows.nth(0).inner_text()
    assert "GPU_ECC_UNCORRECTED (2)" in page.inner_text("#history-figures")
    told = page.inner_text("#incidents")
    assert "came back: it had been over" in told and "took 35.5 GPU-hours" in told
    assert browsed.barriers() == []
    browsed.screenshot(f"page-history-{scheme}")
    assert browsed.errors == []
