"""What a job's slow link and rings have to do with each other: the link asks for a ring of its suspects, as soon as
they are idle, and what the ring found explains the next slow job. The real collector process, with fake agents."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from laggard.collector.incidents.incident import IncidentsDocument
from laggard.model import Location, Report
from laggard.rankfile.fact_names import GROUPS, member_runs
from laggard.rings.authentication import new_nonce, signed
from laggard.wire import decode, encode
from laggard.wire.idle_rings import RingAsk, RingDue
from laggard.wire.ranks import CollectiveLane, CollectiveRow, CollectivesDocument, RankCollectives, RankRow

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
TOKEN = "a secret of all nodes"
RANKS, STEPS = 8, 60
GROUPS_OF_THE_JOB = {
    **{f"tp:{first}-{first + 1}": (first, first + 1) for first in range(0, RANKS, 2)},
    **{f"dp:{first}-{first + 2}/2": (first, first + 2) for first in (0, 1, 4, 5)},
}
SLOW = "dp:1-3/2"
"""Between n0 and n1, two ranks a machine."""
IDLE = ("n4", "n5")


def rank(make: Any, number: int, **changes: Any) -> RankRow:
    runs = {name: member_runs(members) for name, members in GROUPS_OF_THE_JOB.items() if number in members}
    steps = [make.step_row(step) for step in range(STEPS)]
    return make.rank_row(number, RANKS, steps, facts={GROUPS: runs}, **changes)  # type: ignore[no-any-return]


def collectives() -> dict[int, RankCollectives]:
    """A transfer in each group in each step: 10 ms, of the group SLOW 40 ms."""
    dice = np.random.default_rng(0)
    lanes: dict[int, list[CollectiveLane]] = {number: [] for number in range(RANKS)}
    rows: dict[int, list[CollectiveRow]] = {number: [] for number in range(RANKS)}
    for name, members in GROUPS_OF_THE_JOB.items():
        for number in members:
            lanes[number].append(CollectiveLane("all_reduce", name.partition(":")[0], name, -1))
        for step in range(STEPS):
            took = (0.04 if name == SLOW else 0.01) * float(dice.normal(1, 0.02))
            came = (100 + 0.25 * step + dice.uniform(0, 0.02, len(members))).tolist()
            for number, begin in zip(members, came, strict=True):
                end = max(came) + took
                rows[number].append(CollectiveRow(step, len(lanes[number]) - 1, step, begin, end, end - begin, 1 << 20))
    return {number: RankCollectives(number, tuple(lanes[number]), tuple(rows[number])) for number in range(RANKS)}


class Cluster:
    """Six nodes, of which four train. A ring measured each an hour ago."""

    def __init__(self, make: Any, fake_agent: Start, start_collector: Start, folder: Path) -> None:
        self._make = make
        self.agents = {f"n{node}": fake_agent(None) for node in range(6)}
        self.train()
        for node in self.agents:
            self.report(node)
        token, config = folder / "token", folder / "collector.json"
        token.write_text(TOKEN)
        own = {"ring_token_file": str(token), "ring_ask_seconds": 3.0, "interval_seconds": 0.5}
        config.write_text(encode({**own, "incidents_database": ""}).decode())
        flags = [word for agent in self.agents.values() for word in ("--target", agent.address)]
        self.collector = start_collector("--config", str(config), *flags)
        self.collector.wait_ready()

    def train(self, **changes: Any) -> None:
        """The four nodes have two ranks each, whose changes are as said."""
        sent = collectives()
        for number, (node, agent) in enumerate(self.agents.items()):
            its = () if node in IDLE else (2 * number, 2 * number + 1)
            agent.ranks = self._make.ranks_document(node, [rank(self._make, it, node=node, **changes) for it in its])
            agent.collectives = CollectivesDocument(node, 1000, "job-1", tuple(sent[it] for it in its))

    def end_job(self) -> None:
        for node, agent in self.agents.items():
            agent.ranks = self._make.ranks_document(node, [])

    def report(self, node: str, *codes: str, age: float = 3600.0) -> None:
        report: Report = self._make.report(node, codes)
        self.agents[node].report = structs.replace(report, facts={"ring": {"age_seconds": age, "nodes": 4}})

    def location(self) -> Location:
        return decode(self.collector.get("/api/v1/location", fresh="1").content, Location)

    def wait_for_the_link(self) -> None:
        self.collector.wait_until(lambda: any(each.kind == "slow_link" for each in self.location().culprits))

    def wait_for_the_incident(self) -> None:
        def opened() -> bool:
            document = decode(self.collector.get("/api/v1/incidents").content, IncidentsDocument)
            return any(each.culprit.kind == "slow_link" for each in document.incidents)

        self.collector.wait_until(opened)

    def locate(self) -> str:
        command = [sys.executable, "-m", "laggard", "locate", "--collector", self.collector.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout

    def page(self) -> str:
        """Its text, without its elements."""
        return unescape(re.sub(r"<[^>]*>", "", self.collector.get("/").text))

    def ask(self, node: str) -> RingDue:
        question = signed(TOKEN, "agent", RingAsk(node, time.time(), new_nonce()))
        return decode(self.collector.client.post("/api/v1/rings/due", content=encode(question)).content, RingDue)

    def rings(self, *asking: str) -> set[tuple[str, ...]]:
        """The rings for which these idle nodes are told to come, as they ask again and again."""
        told: list[RingDue] = []

        def is_due() -> bool:
            told[:] = [self.ask(node) for node in asking]
            return any(due.ring for due in told)

        self.collector.wait_until(is_due)
        return {due.ring.nodes for due in (*told, *map(self.ask, asking)) if due.ring is not None}


@pytest.fixture
def cluster(make: Any, fake_agent: Start, start_collector: Start, tmp_path: Path) -> Cluster:
    return Cluster(make, fake_agent, start_collector, tmp_path)


def test_a_live_jobs_slow_link_asks_for_a_ring_of_its_suspects(cluster: Cluster) -> None:
    """Either adapter may be the slow one, or the way between them: both machines are measured, with a third."""
    assert cluster.ask("n4").reason == "a ring measured the node 1.0 hours ago"
    cluster.wait_for_the_link()
    (culprit,) = cluster.location().culprits
    assert (culprit.kind, culprit.ranks, culprit.node, culprit.nodes) == ("slow_link", (1, 3), None, ("n0", "n1"))
    asked = "srun -w n0,n1,n2,n3 -N4 --ntasks-per-node=1 laggard ring --pairs"
    assert asked in culprit.advice and asked in cluster.locate() and asked in cluster.page()
    cluster.wait_for_the_incident()
    assert cluster.ask("n0").reason == "ranks run on the node"
    cluster.end_job()
    # For the scheduler's rings: once the collector has seen that all four are idle, who asks or not.
    cluster.collector.wait_until(lambda: cluster.collector.get("/api/v1/rings").json()["rings"] == [["n0", "n1", "n2"]])
    (ring,) = cluster.rings("n0", "n1", "n4")
    assert set(ring) == {"n0", "n1", "n4"} and set(ring[:2]) == {"n0", "n1"}


def test_what_a_ring_found_explains_the_slow_link_of_a_job(cluster: Cluster) -> None:
    for node in ("n0", "n1"):
        cluster.report(node, "RING_SLOW", age=60.0)
    cluster.wait_for_the_link()
    cluster.collector.wait_until(lambda: cluster.location().culprits[0].findings == ("RING_SLOW",))
    (culprit,) = cluster.location().culprits
    assert culprit.advice.startswith("follow RING_SLOW first") and "laggard ring --pairs" not in culprit.advice
    for told in (cluster.locate().casefold(), cluster.page().casefold()):
        assert "follow ring_slow first" in told and "its nodes report ring_slow" in told, told
