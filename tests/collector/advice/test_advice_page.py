"""The outcomes of advice on the page of a real collector, in a real browser: the table, and an incident's own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.browsing import Browsed, needs_chromium
from support.collectors import CollectorProcess, FakeAgent, Make
from support.timings import job

from laggard.cli import main
from laggard.collector.incidents.database import IncidentDatabase
from laggard.collector.incidents.incident import Incident
from laggard.collector.incidents.kept_advice import RunAdvice
from laggard.locate.against.digest import Described, digest_of
from laggard.model import Culprit
from laggard.recommend.advice.values import Gain
from laggard.recommend.outcome.values import Advised, Outcome

pytestmark = [pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A collector whose file has an incident, and what became of its advice."""
    folder = tmp_path_factory.mktemp("collector")
    path, now = str(folder / "incidents.sqlite"), time.time()
    culprit = Culprit("slow_host", (1,), "n1", advice="Exchange n1.")
    incident = Incident(7, 1000, "812", "n1 is slow", now - 900, now - 600, culprit, culprit, closed_at=now - 600)
    digest = digest_of(job(ranks=4), Described(script="train.py"))
    assert digest is not None
    how, gained = "n1 is no longer among its nodes", {"ratio": 1.3, "low": 1.2, "high": 1.4, "as_promised": True}
    outcome = Outcome(done="yes", how=how, result="gained", **gained)
    host = Advised(
        kind="culprit slow_host", target="culprit", key="slow_host", nodes=("n1",), incident=7, outcome=outcome,
        promised=Gain("measured", 1.35, 1.0, 1.35),
    )  # fmt: skip
    hostile = Advised(kind=HOSTILE, target="launcher", key=HOSTILE)
    run = RunAdvice(
        owner=1000, job_id="812", script="train.py", world_size=4, started_at=now - 1000, made_at=now - 600,
        advised=(host, hostile), digest=digest,
    )  # fmt: skip
    database = IncidentDatabase.open(path, 8 << 20, 1e9)
    database.write([incident], now)
    database.keep_advice([run], now)
    database.close()
    (folder / "collector.yaml").write_text(f"incidents_database: {path}\n")
    agent = FakeAgent(Make.ranks_document("n0", []), Make.report("n0"))
    process = CollectorProcess(
        ["--target", agent.address, "--interval", "1", "--config", str(folder / "collector.yaml")]
    )
    process.wait_ready()
    yield process
    process.stop()
    agent.close()


def test_the_api_the_command_and_the_metrics_say_the_same(collector: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["advice", "--collector", collector.url]) == 0
    text = capfd.readouterr().out
    assert text.startswith("Of the one piece of advice that was done and measured, 1 gained.")
    assert "n1 is no longer among its nodes" in text and "1.30 times as fast (1.20 to 1.40)" in text
    assert main(["advice", "--collector", collector.url, "--job", "no-such", "--format", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert not found["runs"] and len(found["kinds"]) == 2
    metrics = collector.get("/metrics").text
    assert 'laggard_advice_outcomes{outcome="gained",target="culprit"} 1.0' in metrics
    assert collector.get("/api/v1/advice", limit="0").status_code == 400


@needs_chromium
def test_the_page_has_the_table_and_the_incidents_own(collector: Any, browser: Any) -> None:
    browsed = Browsed(browser, f"{collector.url}/#view=fleet", "#advice-card:not([hidden])")
    page = browsed.page
    table = page.inner_text("#advice")
    assert "culprit slow_host" in table and "1 of 1" in table and HOSTILE in table
    said = page.inner_text("#advice-explain")
    assert said == "Done and measured: 1, of which 1 gained. 1 of 1 gained what was promised."
    page.locator("#incidents details", has_text="n1 is slow").locator("summary").click()
    story = page.locator("#incidents details .outcome")
    story.wait_for()
    assert "n1 is no longer among its nodes: it was done, and gained, 1.30× throughput" in story.inner_text()
    assert browsed.barriers() == [] and browsed.errors == []
