"""A hang, from the signal that causes it to the verdict: ranks on gloo, their rank files, an agent, a collector."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browsing import Browsed, needs_chromium
from support.cluster import Cluster
from support.paths import TRAINING
from support.warm import Warm

from laggard.locate.hang.hangs import HUNG_SILENT_SECONDS

pytestmark = pytest.mark.slow
ALL_REDUCE_LOOP = TRAINING / "all_reduce_loop.py"


@pytest.fixture
def cluster(tmp_path: Path, warm_torch: Warm) -> Iterator[Cluster]:
    made = Cluster(tmp_path, warm_torch, interval="5")  # as deployed: `laggard locate` asks for a fresh round
    yield made
    made.end()


def is_training(rows: list[dict[str, Any]]) -> bool:
    return len(rows) == 3 and all(row["steps"] > 20 and row["beat"] for row in rows)


def test_a_stopped_rank_has_not_arrived_and_its_peers_wait(cluster: Cluster) -> None:
    ranks = cluster.train(3, "1000000", script=ALL_REDUCE_LOOP)
    cluster.until_rows(lambda rows: is_training(rows) and all(row["beat"]["lanes"] for row in rows))
    cluster.until(lambda location: location["window"]["last_step"])

    ranks[1].send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    rows = cluster.until_rows(lambda rows: all((row["in_flight"] or {}).get("seconds", 0) > 0.5 for row in rows[::2]))
    at_the_agent = time.monotonic() - stopped_at
    assert rows[1]["stopped"] and not rows[0]["stopped"], "the kernel reports who is stopped"
    assert rows[0]["in_flight"]["group"] == "dp:0-2"
    entered = [row["beat"]["lanes"][0]["entered"] for row in rows]
    assert entered[1] <= max(row["in_flight"]["seq"] for row in rows[::2])

    asked = cluster.locate()
    while not asked.stdout.startswith("Rank 1 on n0 is hung") and time.monotonic() < stopped_at + HUNG_SILENT_SECONDS:
        asked = cluster.locate()
    located = time.monotonic() - stopped_at
    print(f"SIGSTOP to the agent's rows: {at_the_agent:.2f} s; to what `laggard locate` prints: {located:.2f} s")
    assert asked.returncode == 1 and asked.stdout.startswith("Rank 1 on n0 is hung"), asked.stdout
    assert "Its process is stopped" in asked.stdout and "Ranks 0 and 2 wait for it" in asked.stdout
    assert located < HUNG_SILENT_SECONDS, "long before those who do not say whether they are stopped"

    ranks[1].send_signal(signal.SIGCONT)
    before = max(row["steps"] for row in cluster.ranks())
    cluster.until_rows(lambda rows: all(row["steps"] > before and not row["stopped"] for row in rows))
    cluster.until(lambda location: not location["culprits"])


@needs_chromium
def test_the_page_of_a_job_that_runs_and_then_hangs(cluster: Cluster, browser: Any) -> None:
    ranks = cluster.train(3, "1000000", script=ALL_REDUCE_LOOP)
    cluster.until_rows(is_training)
    cluster.until(lambda location: location["window"]["last_step"])
    browsed = Browsed(browser, f"{cluster.collector}/#rank=0", ready="#rank-card:not([hidden])")
    page = browsed.page
    deadline = time.monotonic() + 300
    while not page.locator("#timeline .span").count():
        cluster.location()  # which makes a round: the agent is asked for the rank that is looked at
        assert time.monotonic() < deadline, page.inner_text("#rank-card")
        page.wait_for_timeout(500)
    assert "all_reduce of dp:0-2" in page.inner_text("#waits-sentence")
    told = cluster.get(f"{cluster.collector}/api/v1/timeline?ranks=0")
    own = told["rows"][0]
    assert own["rank"] == 0 and 1 <= own["collectives_seen"] <= 2 * len(told["steps"])
    for _, op, group, peer, start, end, waited in own["collectives"]:
        assert (op, group, peer) == ("all_reduce", "dp:0-2", None)
        assert 0.0 <= start <= end and 0.0 <= waited <= end - start + 1e-6, "within its step, on the rank's own clock"
    browsed.screenshot("page-live-collectives")

    ranks[1].send_signal(signal.SIGSTOP)
    while page.inner_text("#badge") != "Hung":
        cluster.location()
        assert time.monotonic() < deadline, page.inner_text("#answer")
        page.wait_for_timeout(500)
    assert page.inner_text("h1").startswith("Rank 1 on n0 is hung")
    assert "stands still" in page.inner_text("#figures") and "×" not in page.inner_text("#answer")
    assert browsed.barriers() == []
    browsed.screenshot("page-live-hang")
    assert browsed.errors == []


def test_a_hang_in_collectives_made_by_cpp(cluster: Cluster) -> None:
    """Such as DDP's: torch's Flight Recorder, which the heartbeat reads, shows who has not arrived."""
    ranks = cluster.train(3, "1000000", "bare", script=ALL_REDUCE_LOOP, extra={"LAGGARD_OFF": "1"})
    rows = cluster.until_rows(lambda rows: is_training(rows) and all(row["beat"]["groups"] for row in rows))
    assert all(row["beat"]["flight_recorder"] == "on" and not row["beat"]["lanes"] for row in rows)
    cluster.until(lambda location: location["window"]["last_step"])
    ranks[2].send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    while not (asked := cluster.locate()).stdout.startswith("Rank 2 on n0 is hung"):
        assert time.monotonic() < stopped_at + HUNG_SILENT_SECONDS, asked.stdout
    while "in a collective of the world, number" not in asked.stdout:  # the next heartbeats tell of the waits
        assert time.monotonic() < stopped_at + 240, asked.stdout
        asked = cluster.locate()


def test_a_suspended_job_has_no_culprit(cluster: Cluster) -> None:
    ranks = cluster.train(2, "1000000", script=ALL_REDUCE_LOOP)
    cluster.until_rows(lambda rows: len(rows) == 2 and all(row["steps"] > 20 for row in rows))
    for rank in ranks:
        rank.send_signal(signal.SIGSTOP)
    cluster.until_rows(lambda rows: all(row["stopped"] for row in rows))
    stopped_at = time.monotonic()
    while "all 2 processes are stopped" not in (asked := cluster.locate()).stdout.lower():
        assert time.monotonic() < stopped_at + 240, asked.stdout
    assert asked.returncode == 2
