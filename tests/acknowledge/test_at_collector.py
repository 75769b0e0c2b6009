"""Acknowledged at a collector: the real process, with fake agents, and the command as an operator runs it."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import convert

from laggard.acknowledge.asked import signed
from laggard.cli import main
from laggard.kubernetes.judge import judge
from laggard.kubernetes.node import Node
from laggard.kubernetes.view import FleetView
from laggard.wire import decode, encode
from laggard.wire.acknowledgement import AcknowledgeAsk
from laggard.wire.nodes import DrainsDocument, NodeRow

pytestmark = pytest.mark.slow

TOKEN = "a secret of operators"


class Site:
    """Two nodes with the same critical finding, and the collector that watches them."""

    def __init__(self, make: Any, fake_agent: Any, start_collector: Any, folder: Path) -> None:
        self.agents = [
            fake_agent(make.ranks_document(node, []), make.report(node, ["GPU_LOST"])) for node in ("n1", "n2")
        ]
        self.token, self.kept = folder / "token", folder / "acknowledged.json"
        self.token.write_text(f"{TOKEN}\n")
        self.token.chmod(0o600)
        self._config, self._start = folder / "collector.json", start_collector
        self.restart(acknowledge_token_file=str(self.token))

    def restart(self, **changes: str) -> None:
        own = {"acknowledged_file": str(self.kept), "incidents_database": "", "interval_seconds": 0.3}
        own["report_interval_seconds"] = 0.3
        self._config.write_text(json.dumps({**own, **changes}))
        flags = [word for agent in self.agents for word in ("--target", agent.address)]
        self.collector = self._start("--config", str(self._config), *flags)
        self.collector.wait_until(lambda: self.drains("n1").asker_known and self.drains("n2").answering == 2)

    def drains(self, node: str) -> DrainsDocument:
        return decode(self.collector.get("/api/v1/drains", node=node).content, DrainsDocument)

    def wait_failing(self, fails: bool) -> None:
        self.collector.wait_until(lambda: self.drains("n1").asker_fails == fails)

    def command(self, *words: str) -> int:
        return main(["findings", *words, "--collector", self.collector.url, "--token-file", str(self.token)])

    def post(self, question: AcknowledgeAsk) -> Any:
        return self.collector.client.post("/api/v1/acknowledge", content=encode(question))


@pytest.fixture
def site(make: Any, fake_agent: Any, start_collector: Callable[..., Any], tmp_path: Path) -> Site:
    return Site(make, fake_agent, start_collector, tmp_path)


def question(**changes: Any) -> AcknowledgeAsk:
    values: dict[str, Any] = {"code": "GPU_LOST", "nodes": ("n1",), "seconds": 600.0, "reason": "ticket 77"}
    return AcknowledgeAsk(**{"by": "bob", "at": time.time(), "nonce": "b" * 32, **values, **changes})


def test_it_is_kept_shown_counted_and_withdrawn(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.wait_failing(True)
    assert site.command("acknowledge", "GPU_LOST", "--node", "n1", "--for", "24h", "--reason", "ticket 77") == 0
    site.wait_failing(False)
    answer = site.drains("n1")
    assert [it.code for it in answer.acknowledged] == ["GPU_LOST"] and answer.acknowledged[0].nodes == ("n1",)
    assert site.drains("n2").asker_fails and site.drains("n2").failing == 0 and not site.drains("n2").acknowledged
    found = {it["node"]: it["finding"] for it in site.collector.get("/api/v1/findings").json()["findings"]}
    assert (found["n1"]["severity"], found["n2"]["severity"]) == ("warning", "critical")
    assert "acknowledged by " in found["n1"]["summary"] and found["n1"]["summary"].endswith(": ticket 77)")
    rows = site.collector.get("/api/v1/nodes").json()
    assert {it["node"]: it["verdict"] for it in rows["nodes"]} == {"n1": "ok", "n2": "fail"} and rows["failing"] == 1
    view = FleetView(tuple(convert(it, NodeRow) for it in rows["nodes"]), {})
    nodes = [Node(it.node or "", "", frozenset({urlsplit(it.url).hostname or ""}), False, None, ()) for it in view.rows]
    assert {name: it.status for name, it in judge(nodes, view).items()} == {"n1": "True", "n2": "False"}
    metrics = site.collector.get("/metrics").text
    (told,) = [line for line in metrics.splitlines() if line.startswith("laggard_acknowledged_finding{")]
    assert 'code="GPU_LOST"' in told and 'hostname="n1"' in told and f'agent="{site.agents[0].address}"' in told
    assert 'laggard_acknowledged_until_timestamp_seconds{code="GPU_LOST",hostname="n1"}' in metrics
    site.collector.stop()
    assert stat.S_IMODE(site.kept.stat().st_mode) & 0o022 == 0
    site.restart(acknowledge_token_file=str(site.token))
    site.wait_failing(False)
    capsys.readouterr()
    assert site.command("acknowledged", "--format", "json") == 0
    (known,) = json.loads(capsys.readouterr().out)["acknowledgements"]
    assert site.command("acknowledged", "--withdraw", known["id"]) == 0
    site.wait_failing(True)


def test_a_maintenance_window_is_for_all_codes_of_its_nodes_and_ends(site: Site) -> None:
    site.wait_failing(True)
    assert site.post(signed(TOKEN, question(code="*", nodes=("n1", "n2"), seconds=3.0))).status_code == 200
    site.wait_failing(False)
    assert site.drains("n2").asker_fails is False
    site.wait_failing(True)


def test_nobody_without_the_token_changes_anything(site: Site) -> None:
    good = signed(TOKEN, question())
    refused = {
        "no proof": (question(), 403),
        "another token": (signed("guess", question()), 403),
        "an hour old": (signed(TOKEN, question(at=time.time() - 3600)), 409),
        "of the future": (signed(TOKEN, question(at=time.time() + 3600)), 409),
        "a short nonce": (signed(TOKEN, question(nonce="b")), 409),
        "another code": (signed(TOKEN, question(code="DISK_FULL", nonce="c" * 32)), 409),
    }
    for name, (asked, status) in refused.items():
        assert site.post(asked).status_code == status, name
    assert site.collector.client.post("/api/v1/acknowledge", content=b"{" * 10_000).status_code == 400
    assert site.collector.client.post("/api/v1/acknowledge", content=b" " * (3 << 20)).status_code == 400
    assert site.collector.get("/api/v1/acknowledge").status_code == 405
    assert site.post(good).status_code == 200 and site.post(good).status_code == 409, "replayed"
    assert len(site.collector.get("/api/v1/acknowledgements").json()["acknowledgements"]) == 1


def test_without_a_token_file_it_is_off(site: Site) -> None:
    site.collector.stop()
    site.restart()
    answer = site.post(signed(TOKEN, question()))
    assert answer.status_code == 403 and "no acknowledge_token_file" in answer.text
