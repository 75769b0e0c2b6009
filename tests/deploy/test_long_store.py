"""What a long-term store is given by deploy/prometheus/remote-write.yml: the recorded series, and of each rank only
what is recorded for weeks."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.alerting import wait_for
from support.engines import Engine, need, prometheus_receiver, running
from support.live_ranks import MEANS, LiveNodes, Training
from support.paths import REPOSITORY
from support.ports import free_port

OPERATE = REPOSITORY / "docs" / "operate.md"
FOLDER = REPOSITORY / "deploy" / "prometheus"
SHIPPED = yaml.safe_load((FOLDER / "remote-write.yml").read_text())
RECORDED = [
    rule["record"] for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
(RELABEL,) = SHIPPED["remote_write"][0]["write_relabel_configs"]


def test_of_each_rank_only_what_is_recorded_for_weeks_is_kept() -> None:
    kept = {name for name in RECORDED if re.fullmatch(RELABEL["regex"], name)}
    assert "rank_phase:laggard_rank_phase_seconds:mean5m" in kept
    assert not {name for name in kept if name.startswith("rank:")}, "each 15 s, of each rank"
    assert {name for name in RECORDED if name.startswith(("job_id_user", "kind:"))} <= kept
    assert RELABEL["action"] == "keep" and not re.fullmatch(RELABEL["regex"], "laggard_rank_steps_total")


def asked(engine: Engine, query: str) -> list[Any]:
    url = f"{engine.query}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


@pytest.mark.slow  # two real Prometheus
def test_a_real_store_has_the_recorded_series_and_the_phases_of_the_slow_rank(tmp_path: Path) -> None:
    need("Prometheus")
    rules = re.sub("interval: .*", "interval: 1s", (FOLDER / "rules.yml").read_text())
    (tmp_path / "rules.yml").write_text(rules)
    with prometheus_receiver(tmp_path) as engine, LiveNodes(Training(slow=5)) as nodes:
        jobs = [{"targets": [it], "labels": {"instance": f"{node}:19400"}} for node, it in nodes.addresses.items()]
        config = {
            "global": {**SHIPPED["global"], "scrape_interval": "1s"},
            "rule_files": ["rules.yml"],
            "remote_write": [{**SHIPPED["remote_write"][0], "url": engine.write}],
            "scrape_configs": [{"job_name": "laggard-agent", "honor_labels": True, "static_configs": jobs}],
        }
        (tmp_path / "scrapes.yml").write_text(yaml.safe_dump(config))
        command = ["prometheus", "--config.file=scrapes.yml", f"--storage.tsdb.path={tmp_path}/scraped"]
        with running(tmp_path, {"scrapes": [*command, f"--web.listen-address=127.0.0.1:{free_port()}"]}):
            phases = "rank_phase:laggard_rank_phase_seconds:mean5m"
            wait_for(lambda: len(asked(engine, f"count_over_time({phases}[1m]) > 3")) == 8 * len(MEANS))
            names = {it["metric"]["__name__"] for it in asked(engine, '{__name__!=""}')}
            (slowest,) = asked(engine, f'topk(1, {phases}{{phase="forward"}})')
            (page,) = re.findall(r"```promql\n(topk .*?)```", OPERATE.read_text(), re.DOTALL)
            by_phase = {it["metric"]["phase"]: it for it in asked(engine, page.replace("4711", "train"))}
    assert phases in names and "job_id_user:laggard_rank_step_seconds:median5m" in names
    assert by_phase["forward"]["metric"]["rank"] == "5" and set(by_phase) == set(MEANS)
    assert float(by_phase["forward"]["value"][1]) == pytest.approx(0.012 * 7 / 8, abs=0.0005), "more than the mean"
    assert all(re.fullmatch(RELABEL["regex"], name) for name in names), names
    assert (slowest["metric"]["rank"], slowest["metric"]["cluster"]) == ("5", "c1")
    seconds = float(slowest["value"][1])
    assert seconds == pytest.approx(0.042, abs=0.0005) and (seconds * 2**14).is_integer()
