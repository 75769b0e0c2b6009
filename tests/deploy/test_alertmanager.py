"""From a rank that died to the page: a real collector, a real Prometheus with the rules that are shipped, and a real
Alertmanager with their inhibitions. The agent is a stand-in that answers as one."""

import json
import time
import urllib.request
from typing import Any

import pytest
from msgspec import structs
from support.alerting import Alerting, needs_alertmanager
from support.waiting import wait_for

from laggard.model import RankEnd

URL = "https://laggard.example.org"
pytestmark = [pytest.mark.slow, needs_alertmanager]


def ask(url: str, body: Any = None) -> Any:
    """The answer's JSON; None where nobody answers yet."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read() or "{}")
    except OSError:
        return None


def test_a_rank_that_died_pages_somebody_once(
    fake_agent: Any, start_collector: Any, make: Any, alerting: Alerting
) -> None:
    document = make.node("n0", [0, 1, 2, 3])
    end = RankEnd(time.time() - 5, 0.05, signal="SIGKILL")
    ranks = tuple(structs.replace(row, state="died", end=end) if row.rank == 2 else row for row in document.ranks)
    agent = fake_agent(structs.replace(document, ranks=ranks), make.report("n0"))
    collector = start_collector("--target", agent.address, "--interval", "0.5", external_url=URL)
    alerting.start(collector=collector.url.removeprefix("http://"))
    told = alerting.wait_for("LaggardRankDead")
    labels, notes = told["labels"], told["annotations"]
    assert (labels["job_id"], labels["rank"], labels["severity"]) == ("job-1", "2", "critical")
    assert notes["summary"] == "Rank 2 of job job-1 died first, on n0."
    address, path = notes["runbook_url"][: len(URL)], notes["runbook_url"][len(URL) :]
    assert address == URL and "This rank's process ended" in collector.get(path).text
    _expect_one_page_for_one_cause(alerting.alertmanager, labels)


def _expect_one_page_for_one_cause(url: str, dead: dict[str, str]) -> None:
    """That the job's other ranks wait is told of no more; of another job it is, and of the one that another cluster has
    under this name. An agent that Prometheus does not reach is told of once."""
    job = {"alertname": "LaggardRanksStuck", "job_id": dead["job_id"], "user": dead["user"]}
    down, unreachable = ({"alertname": f"Laggard{it}", "instance": "n1:1"} for it in ("AgentDown", "TargetUnreachable"))
    expected = {
        "the job": (job, "suppressed"),
        "another": ({**job, "job_id": "x"}, "active"),
        "another cluster's": ({**job, "cluster": "b"}, "active"),
        "down": (down, "active"),
        "unreachable": (unreachable, "suppressed"),
        "reached by Prometheus": ({**unreachable, "instance": "n2:1"}, "active"),
        "of a cluster, down": ({"alertname": "LaggardCollectorDown", "cluster": "a"}, "active"),
        "that cluster's": ({"alertname": "LaggardIncidentsNotKept", "cluster": "a"}, "suppressed"),
        "of one that is not": ({"alertname": "LaggardIncidentsNotKept", "cluster": "b"}, "active"),
    }
    sent = [{"labels": labels, "annotations": {"case": case}} for case, (labels, _) in expected.items()]
    wait_for(lambda: ask(f"{url}/api/v2/alerts", sent) is not None)

    wanted = {case: state for case, (_, state) in expected.items()}
    found: dict[str, str] = {}

    def as_wanted() -> bool:
        # Alertmanager inhibits by what has come to its inhibitor, some time after the alert has come to the API.
        alerts = [it for it in ask(f"{url}/api/v2/alerts") or () if "case" in it["annotations"]]
        found.update({it["annotations"]["case"]: it["status"]["state"] for it in alerts})
        return found == wanted

    wait_for(as_wanted, lambda: f"{found} instead of {wanted}")
