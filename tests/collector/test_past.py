"""A machine's history through the collector's faces: command, API, tenants."""

import json
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.stores import open_store

from laggard.cli import main
from laggard.collector.incidents.history import HistorySettings, IncidentHistory
from laggard.collector.incidents.identity import with_returns
from laggard.collector.incidents.incident import Fault, Incident, NodeName, Return
from laggard.collector.incidents.store import Batch
from laggard.collector.jobs.snapshot import ClusterSnapshot
from laggard.collector.settings import CollectorSettings
from laggard.collector.tenants import Viewer
from laggard.collector.web.app import all_routes
from laggard.collector.web.metrics import CollectorMetrics
from laggard.collector.web.tenants import TenantSource
from laggard.model import Culprit, Finding, Fix, Severity
from laggard.wire.nodes import NodeFinding

NOW = time.time()
DAY = 86400.0


def incident(ago: float, node: str = "n1", owner: int = 1000, **changes: Any) -> Incident:
    """A rank on that node that took a fifth of an hour of 64 ranks."""
    culprit = Culprit("slow_compute", (2,), node=node, recoverable_ratio=0.2)
    begin = NOW - ago
    values: dict[str, Any] = dict(
        id=int(begin * 1000), owner=owner, job_id="train", what=f"rank 2 on {node} is slow", opened_at=begin,
        seen_at=begin + 3600, opened_as=culprit, culprit=culprit, most_recoverable_ratio=0.2, closed_at=begin + 3600,
        closed_because="recovered", lost_gpu_hours=12.8,
    )  # fmt: skip
    return Incident(**{**values, **changes})


def fault(ago: float, node: str = "n1", machine: str = "GPU-a", **changes: Any) -> Fault:
    begin = NOW - ago
    values: dict[str, Any] = dict(
        id=int(begin * 1000), node=node, machine=machine, code="GPU_LOST", device="GPU 0", severity=Severity.CRITICAL,
        summary="", probe="gpu_lost", opened_at=begin, seen_at=begin + 600, closed_at=begin + 600,
        closed_because="repaired",
    )  # fmt: skip
    return Fault(**{**values, **changes})


def name(node: str, machine: str, since: float, seen: float) -> NodeName:
    return NodeName(node, machine, NOW - since, NOW - seen, (machine,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "incidents.sqlite"


def store(path: Path, *incidents: Incident, rows: Batch = Batch()) -> None:  # noqa: B008
    database = open_store(path, 8 << 20, 1e9)
    database.write(rows._replace(incidents=incidents), NOW)
    database.close()


def history(path: Path, node: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["incidents", "--node", node, "--database", str(path), "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_the_history_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = fault(2 * DAY, returned=Return(1, NOW - 3 * DAY + 600))
    rows = Batch((), (fault(3 * DAY), again), (name("n1", "GPU-a", 10 * DAY, 0),))
    store(path, incident(DAY, returned=Return(2, NOW - 2 * DAY)), rows=rows)
    assert main(["incidents", "--node", "n1", "--database", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("n1: 2 failures, 2 in the last 30 days, 2 things came back within a week; 1 incident.")
    assert "It is a repeat offender." in told and "time to repair: 10 min on average" in told
    assert re.search(r"time between failures: (4 d 23|5 d 0) h on average, of 2", told), told
    assert "repaired: GPU_LOST 2 times" in told
    assert "came back: it had been over for 23 h 50 min" in told
    assert main(["incidents", "--database", str(path)]) == 0
    told = capsys.readouterr().out.replace("24 h 0 min", "1 d 0 h")
    assert "came back: it had been over for 1 d 0 h" in told and "    took 12.8 GPU-hours\n" in told
    assert main(["incidents", "--node", "n9", "--database", str(path)]) == 0
    assert capsys.readouterr().out == "Nothing is known against n9.\n"


def test_a_machine_that_was_renamed_has_what_it_had_under_its_old_name(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (
        name("old", "GPU-a", 30 * DAY, 10 * DAY),
        name("n1", "GPU-a", 9 * DAY, 0),
        name("old", "GPU-b", 5 * DAY, 0),
    )
    mine, others = incident(20 * DAY, "old"), incident(2 * DAY, "old")
    store(
        path, mine, others, incident(DAY), rows=Batch((), (fault(20 * DAY, "old"), fault(DAY, "old", "GPU-b")), names)
    )
    found = history(path, "n1", capsys)
    assert [it["id"] for it in found["incidents"]] == [incident(DAY).id, mine.id]
    assert [it["machine"] for it in found["faults"]] == ["GPU-a"] and found["failures"] == 1
    assert [it["node"] for it in found["names"]] == ["n1", "old"]
    other = history(path, "old", capsys)
    assert [it["id"] for it in other["incidents"]] == [others.id], "what was before it had the name is another's"
    assert [it["machine"] for it in other["faults"]] == ["GPU-b"]


def test_less_than_the_whole_history_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(path)
    assert main(["incidents", "--node", "n1", "--open", "--database", str(path)]) == 64
    assert "leave out" in capsys.readouterr().err


def test_what_is_dropped_is_dropped_everywhere(path: Path) -> None:
    store(path, incident(20 * DAY), incident(DAY))
    database = open_store(path, 8 << 20, 10 * DAY)
    database.write(Batch([]), NOW)
    database.close()
    with sqlite3.connect(path) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {it}").fetchone()[0]
                  for it in ("incidents", "incident_nodes")]  # fmt: skip
    connection.close()
    assert counts == [1, 1]


@pytest.fixture
def kept(path: Path) -> Any:
    store(path, incident(DAY), incident(2 * DAY, node="n2", owner=2000), rows=Batch(faults=(fault(DAY),)))
    found = IncidentHistory(HistorySettings(str(path), 8 << 20, 1e9, 300.0))
    found.start()
    yield found
    found.close()


class Source:
    """The cluster, as the scrape loop has it after no round."""

    def __init__(self, incidents: IncidentHistory) -> None:
        self.incidents = incidents
        self.snapshot = ClusterSnapshot(nodes=())


def ask(source: Any) -> TestClient:
    from starlette.applications import Starlette

    made = CollectorSettings(incidents_database="")
    return TestClient(Starlette(routes=all_routes(source, made)))


def test_the_api_answers(kept: IncidentHistory) -> None:
    client = ask(Source(kept))
    assert [it["lost_gpu_hours"] for it in client.get("/api/v1/incidents").json()["incidents"]] == [12.8, 12.8]
    past = client.get("/api/v1/history", params={"node": "n1"}).json()
    assert (past["failures"], len(past["incidents"])) == (1, 1)
    assert client.get("/api/v1/history").status_code == 400


def test_a_user_sees_no_findings_of_nodes(kept: IncidentHistory) -> None:
    client = ask(TenantSource(Source(kept), Viewer(2000, "ada")))  # type: ignore[arg-type]
    past = client.get("/api/v1/history", params={"node": "n1"}).json()
    assert (past["faults"], past["incidents"], past["failures"]) == ([], [], 0)


def test_the_metrics_tell_of_the_past(path: Path) -> None:
    rows = Batch(faults=tuple(fault(days * DAY) for days in (1, 3, 5)))
    store(path, incident(DAY), rows=rows)
    history = IncidentHistory(HistorySettings(str(path), 8 << 20, 1e9, 300.0))
    history.start()
    metrics = CollectorMetrics(Source(history), 0.05)  # type: ignore[arg-type]
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in metrics.families()
        for sample in family.samples
    }
    history.close()
    assert found["laggard_node_failures", "n1"] == 3 and found["laggard_node_repair_seconds", "n1"] == 600


def test_the_line_of_a_finding_says_that_it_came_back() -> None:
    finding = Finding("GPU_LOST", Severity.CRITICAL, "GPU 0", "GPU 0 is lost", {}, Fix("Mend it."), "")
    here, there = NodeFinding("http://n1", "n1", finding), NodeFinding("http://n2", "n2", finding)
    back = fault(DAY, returned=Return(2, NOW - 3 * DAY))
    first, second = with_returns((here, there), (back, fault(DAY, "n2")))
    assert first.finding.summary == (
        "GPU 0 is lost (came back: it had been over for 2.0 days, and 2 times within the week before)"
    )
    assert first.finding.evidence["came_back"]["times"] == 2 and second == there
