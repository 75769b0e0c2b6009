"""`laggard exclude` and `laggard confirm` against a collector: the real process, with fake agents."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from laggard.cli import main
from laggard.model import Severity, Verdict
from laggard.rings.document import Ring, RingNode, Suspect, Swap
from laggard.wire import encode
from laggard.wire.exclusion import ConfirmAsk, Confirmation
from laggard.wire.signing import CONFIRM, signed

pytestmark = pytest.mark.slow

TOKEN = "a secret of operators"
NODES = ("n1", "n2", "n3")


class Site:
    """Three nodes, on which a job runs whose rank on n2 is slow, with a warning there that explains it, and the
    collector that watches them."""

    def __init__(self, make: Any, fake_agent: Any, start_collector: Any, folder: Path, capsys: Any) -> None:
        self._make, self._start, self._capsys = make, start_collector, capsys
        self.agents = {
            node: fake_agent(make.training(node, [number], slow=1, world_size=3), make.report(node))
            for number, node in enumerate(NODES)
        }
        throttled = make.report("n2", ["GPU_THROTTLED"])
        warning = structs.replace(throttled.findings[0], severity=Severity.WARNING)
        self.agents["n2"].report = structs.replace(make.report("n2"), findings=(warning,))
        self.token, self._config = folder / "token", folder / "collector.json"
        self.token.write_text(TOKEN)
        self.token.chmod(0o600)
        settings = {
            "incidents_database": str(folder / "incidents.sqlite"),
            "confirm_token_file": str(self.token),
            "interval_seconds": 0.3,
            "report_interval_seconds": 0.3,
        }
        self._config.write_text(json.dumps(settings))
        self.restart()

    def restart(self) -> None:
        flags = [word for agent in self.agents.values() for word in ("--target", agent.address)]
        self.collector = self._start("--config", str(self._config), *flags)
        self.collector.wait_until(lambda: self.document()["answering"] == len(NODES))

    def document(self, **asked: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.collector.get("/api/v1/exclusions", **asked).json()
        return found

    def names(self) -> list[str]:
        return [it["node"] for it in self.document()["exclusions"]]

    def end_job(self) -> None:
        for node, agent in self.agents.items():
            agent.ranks = self._make.ranks_document(node, [])

    def run(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = main([*words, "--collector", self.collector.url])
        said = self._capsys.readouterr()
        return status, said.out, said.err

    def exclude(self, *words: str) -> tuple[int, str, str]:
        return self.run("exclude", "--scheduler", "none", *words)

    def post(self, ask: ConfirmAsk, token: str = TOKEN) -> Any:
        return self.collector.client.post("/api/v1/confirm", content=encode(signed(token, CONFIRM, ask)))


@pytest.fixture
def site(make: Any, fake_agent: Any, start_collector: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    made = Site(make, fake_agent, start_collector, tmp_path, capsys)
    made.collector.wait_until(lambda: made.names() == ["n2"])
    return made


def ring(outcome: str, name: str = "n2") -> bytes:
    """The document of a ring that three nodes have run, without its other parts."""
    nodes = tuple(RingNode(number, node, number, 1, "") for number, node in enumerate(NODES))
    rate = 2e6 if outcome == "confirmed" else 24e6
    swaps = (Swap(0, 1, 2, 0.1, rate), Swap(1, 0, 2, 0.1, rate), Swap(0, 2, 2, 0.1, 24e6), Swap(2, 0, 2, 0.1, 24e6))
    suspect = Suspect(1, name, outcome, "it was so", rate / 24e6, 1.0, swaps)
    return encode(Ring(Verdict.OK, 3, {}, nodes, (), (), suspect=suspect))


def question(node: str = "n2", nonce: str = "0" * 16, at: float | None = None) -> ConfirmAsk:
    now = time.time() if at is None else at
    return ConfirmAsk(Confirmation(node, "acquitted", now, "bob", "it was so", ("n1", "n3")), now, nonce)


def test_a_suspect_is_listed_explained_and_confirmed_over_a_restart(site: Site, tmp_path: Path) -> None:
    assert site.exclude() == (0, "n2\n", "")
    status, text, _ = site.exclude("--explain")
    assert status == 0 and text.startswith("1 node to leave out.\nn2: rank 1 on n2 is slow"), text
    document = json.loads(site.exclude("--json")[1])
    (listed,) = document["listed"]
    assert (document["hostlist"], listed["basis"], len(listed["incidents"])) == ("n2", "culprit", 1)
    assert listed["until"] == pytest.approx(time.time() + 12 * 3600, abs=120)

    site.end_job()
    (tmp_path / "ring.json").write_bytes(b"a line of srun\n" + ring("confirmed"))
    words = ("confirm", "n2", "--ring", str(tmp_path / "ring.json"), "--token-file", str(site.token))
    status, text, _ = site.run(*words)
    assert status == 1 and text.startswith("n2 is confirmed as slow: it was so (8 % of their rate"), text
    assert "  n1 first, n2 second: 2 MB/s\n  n2 first, n1 second: 2 MB/s\n" in text
    assert text.endswith("The collector keeps it, in 1 incident of it.\n")
    incidents = site.run("incidents")[1]
    assert "    n2 was measured 20" in incidents and ", and confirmed: it was so\n" in incidents
    assert site.document()["exclusions"][0]["basis"] == "confirmed"
    metrics = site.collector.get("/metrics").text
    assert 'laggard_fleet_excluded_nodes{basis="confirmed"} 1.0' in metrics
    assert 'laggard_fleet_excluded_nodes{basis="culprit"} 0.0' in metrics

    site.collector.stop()
    site.restart()
    assert site.document()["exclusions"][0]["basis"] == "confirmed"
    assert main(["incidents", "--database", str(tmp_path / "incidents.sqlite")]) in (0, 1)


def test_only_who_has_the_token_may_tell_and_each_word_counts_once(site: Site) -> None:
    assert site.post(question(), token="another").status_code == 403
    assert site.post(structs.replace(question(), at=1.0)).status_code == 409
    assert site.post(question("n77")).text == "no agent has reported as n77: its name is what the agent reports\n"
    good = question(nonce="1" * 16)
    answers = [site.post(good).status_code, site.post(good).status_code]
    assert answers == [200, 409]
    altered = structs.replace(signed(TOKEN, CONFIRM, question(nonce="2" * 16)), nonce="3" * 16)
    assert site.collector.client.post("/api/v1/confirm", content=encode(altered)).status_code == 403
    assert site.collector.client.post("/api/v1/confirm", content=b"{}").status_code == 400
    assert site.collector.get("/api/v1/confirm").status_code == 405
    for wrong in ("0", "-1", "700000", "x", "nan"):
        assert site.collector.get("/api/v1/exclusions", seconds=wrong).status_code == 400


def test_without_a_token_nobody_may_tell(start_collector: Callable[..., Any], fake_agent: Any, make: Any) -> None:
    agent = fake_agent(make.ranks_document("n2", []), make.report("n2"))
    collector = start_collector("--target", agent.address, "--interval", "0.3")
    collector.wait_ready()
    refused = collector.client.post("/api/v1/confirm", content=encode(signed(TOKEN, CONFIRM, question())))
    assert (refused.status_code, "confirm_token_file" in refused.text) == (403, True)
    assert main(["confirm", "n9", "--only-measure", "--collector", collector.url]) == 64
