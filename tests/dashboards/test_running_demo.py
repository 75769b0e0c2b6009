"""Grafana's boards with `laggard demo`: a real training, agents and a collector, which a real Prometheus finds by the
collector's list and whose rules it evaluates. Each panel has data but those about what does not happen in a demo."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from support.boards import BOARDS
from support.paths import REPOSITORY
from support.scraping import Asked, api_of, started

RULES = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
SECONDS = 240.0
INTERVAL = "2s"
DOES_NOT_HAPPEN = {
    ("laggard-fleet", "Failures in 30 days"): "no machine has failed again and again",
    ("laggard-fleet", "Came back"): "no finding came back",
    ("laggard-fleet", "What to change"): "no gain is known of what is advised",
    ("laggard-fleet", "Nodes that differ from the others"): "two nodes are too few to differ from most",
    ("laggard-fleet", "Connections turned away"): "nobody opens that many",
    ("laggard-fleet", "Evaluators"): "a demo has one collector, and no database",
    ("laggard-job", "What to change"): "nothing is advised of a job on CPUs",
    ("laggard-job", "In one collective for"): "nobody is in one for longer than a second",
    ("laggard-node", "Rank files that are ignored"): "none is damaged",
}
"""The panels that may be empty, and why."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus here: apt-get install prometheus"),
]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[str]:
    """The URL of a demo's collector; the demo goes on until the end of the test."""
    words = ("--slow-rank", "1", "--slow-phase", "forward", "--steps", "300", "--keep")
    log = tmp_path / "demo.log"
    with log.open("w") as stderr:
        command = [sys.executable, "-m", "laggard", "demo", *words]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(r"the page is (http://[\d.]+:\d+)", log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()  # a demo that still trains ignores SIGINT where all that a script starts do
        process.wait(300)


@pytest.fixture
def asked(collector: str, tmp_path: Path) -> Iterator[Asked]:
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = INTERVAL
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    agents = [{"url": f"{collector}/api/v1/targets", "refresh_interval": INTERVAL}]
    own = [{"targets": [collector.removeprefix("http://")]}]
    scraped = {
        "global": {"scrape_interval": INTERVAL},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": "laggard-agent", "honor_labels": True, "http_sd_configs": agents},
            {"job_name": "laggard-collector", "honor_labels": True, "static_configs": own},
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(scraped))
    address, process = started(tmp_path)
    try:
        yield api_of(address, process, tmp_path / "prometheus.log")
    finally:
        process.terminate()
        process.wait()


def of(asked: Asked, query: str) -> list[Any]:
    found: list[Any] = asked(f"query?query={quote(query)}")["result"]
    return found


def empty(asked: Asked, left: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Those of the queries that have no data, each with its board and its panel."""
    (first, *_) = of(asked, "laggard_rank_info") or [None]
    if first is None:
        return left
    chosen = {f"${name}": first["metric"][name] for name in ("job_id", "user", "instance")}
    chosen |= {"$cluster": ".*", "$__rate_interval": "1m", "$__range": "10m"}

    def filled(query: str) -> str:
        for name, value in chosen.items():
            query = query.replace(name, value)
        return query

    return [(uid, title, query) for uid, title, query in left if not of(asked, filled(query))]


def test_each_panel_has_data_while_a_demo_runs(asked: Asked) -> None:
    panels = [(board["uid"], panel) for board in BOARDS for panel in board["panels"] if panel["type"] != "row"]
    left = [(uid, panel["title"], target["expr"]) for uid, panel in panels for target in panel["targets"]]
    assert set(DOES_NOT_HAPPEN) <= {(uid, title) for uid, title, _ in left}, "a panel that no board has"
    deadline = time.monotonic() + SECONDS
    while any(query[:2] not in DOES_NOT_HAPPEN for query in left) and time.monotonic() < deadline:
        time.sleep(1.0)
        with contextlib.suppress(json.JSONDecodeError):
            left = empty(asked, left)
    without = [query for query in left if query[:2] not in DOES_NOT_HAPPEN]
    assert not without, "no data: " + "; ".join(map(str, without))
    culprits = {it["metric"]["rank"] for it in of(asked, "last_over_time(laggard_culprit[10m])")}
    assert "1" in culprits, f"what the boards show is the demo's slow rank, not {culprits}"
