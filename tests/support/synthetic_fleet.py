"""A fleet in a real Prometheus: series of every metric of the catalogue, and the recording rules over them."""

import contextlib
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laggard.catalogue.metrics import METRICS, PROCESS_METRICS
from laggard.catalogue.rank_metrics import RANK_METRICS, Metric
from laggard.kit.constants import PHASES
from support.engines import prometheus_server
from support.paths import DATA, REPOSITORY
from support.waiting import wait_for

RULES = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
RECORDED = (
    "rank:laggard_rank_input_seconds:mean5m",
    "job_id_user:laggard_rank_waiting:ratio5m",
    "job_id_user_op_group:laggard_rank_collective_bytes:rate5m",
    "instance_verdict:laggard_probe_verdict:count",
    "kind:laggard_lost_gpu_hours:increase1d",
)
STEP_SECONDS = 15
BEFORE_SECONDS, AHEAD_SECONDS = 900, 1800  # what the fleet has samples of, from when it is made
NODES = ("n0:19400", "n1:19400")
COLLECTOR = "collector:19401"
VALUES: dict[str, Sequence[str]] = {**json.loads((DATA / "fleet_labels.json").read_text()), "phase": PHASES}
"""Of each label."""

VERDICTS = {
    ("n0:19400", "mounts"): ("unknown", "unknown"),
    ("n0:19400", "gpu_throttle"): ("ok", "ok"),
    ("n1:19400", "mounts"): ("ok", "ok"),
    ("n1:19400", "gpu_throttle"): ("ok", "fail"),
}
"""The verdict of each node's probe in the first half of the time and in the second."""

FINDINGS = {
    "n0:19400": {"code": "ACS_ENABLED", "severity": "critical", "device": "0000:40:01.0"},
    "n1:19400": {"code": "GPU_THROTTLED", "severity": "warning", "device": "gpu3"},
}
SLOW_RANK, SLOW_RATE = "2", 0.8
"""Seconds that this rank, on n0, is busy, of each; the others are so for half of it."""

STILL = {"laggard_target_up": 0.0, "laggard_rank_in_flight_seconds": 5.0, "laggard_job_slowdown_ratio": 1.3}
STILL["laggard_job_recommendation_gain_ratio"] = 1.25
STILL["process_resident_memory_bytes"] = 5e7


class Site(NamedTuple):
    """What scrapes the fleet. `clusters`: as many fleets, alike, each with its label `cluster`; one without a name has
    no such label. `collectors`: all of a cluster say the same. `moved`: the ranks ran on another node until a minute
    ago, which still has their files."""

    clusters: tuple[str, ...] = ("",)
    collectors: tuple[str, ...] = (COLLECTOR,)
    moved: bool = False


ONE_CLUSTER = Site()


def targets_of(site: Site, labels: dict[str, str]) -> Iterator[dict[str, str]]:
    """The series of one cluster's, as each of its targets that has it is scraped for it."""
    instances: tuple[str, ...] = (labels["instance"],)
    if labels["instance"] == COLLECTOR:
        instances = site.collectors
    elif site.moved and "rank" in labels:
        instances = (*instances, "before:19400")
    for cluster in site.clusters:
        for instance in instances:
            yield {**labels, "instance": instance, **({"cluster": cluster} if cluster else {})}


def series_of(metric: Metric) -> Iterator[dict[str, str]]:
    """The label sets of a metric: each value of each label. Ranks are spread over the nodes; what a daemon says of
    itself is said by agents and collector."""
    if metric.name == "laggard_finding":
        yield from ({**found, "instance": node, "job": "laggard-agent"} for node, found in FINDINGS.items())
        return
    rows: list[dict[str, str]] = [{}]
    for label in metric.labels:
        values = VALUES.get(label, ("x",))
        rows = [{**row, label: value} for row in rows for value in values]
    collectors = metric not in RANK_METRICS and not metric.name.startswith(
        ("laggard_probe", "laggard_agent", "laggard_rank")
    )
    if metric in PROCESS_METRICS or metric.name == "laggard_connections_turned_away_total":
        yield from ({"instance": node, "job": "laggard-agent"} for node in NODES)
    if metric.name in ("laggard_culprit", "laggard_job_incident"):
        rows = [row for row in rows if row["rank"] == SLOW_RANK]
    for row in rows:
        if collectors:
            yield {**row, "instance": COLLECTOR, "job": "laggard-collector"}
        elif "rank" in row:
            node = NODES[int(row["rank"]) % 2]
            here = {"hostname": node.partition(":")[0]} if "hostname" in row else {}
            yield {**row, **here, "instance": node, "job": "laggard-agent"}
        else:
            yield from ({**row, "instance": node, "job": "laggard-agent"} for node in NODES)


def openmetrics(now: int, site: Site = ONE_CLUSTER) -> str:
    """All series, from a quarter of an hour before `now` (Unix time) on: counters grow, times are those of the samples,
    other gauges stay. The samples go on into the future, so that what is asked on a slow machine, whenever it comes to
    that, is what was asked at once on a fast one."""
    lines, times = [], range(now - BEFORE_SECONDS, now + AHEAD_SECONDS, STEP_SECONDS)
    for metric in METRICS:
        counter = metric.kind == "counter"
        name = metric.name.removesuffix("_total") if counter else metric.name
        lines.append(f"# TYPE {name} {'counter' if counter else 'gauge'}")
        if metric.name == "laggard_probe_verdict":
            lines += verdict_lines(times, now, site)
            continue
        for labels in (it for row in series_of(metric) for it in targets_of(site, row)):
            text = ",".join(f'{key}="{value}"' for key, value in labels.items())
            for at in times:
                if counter:
                    value = (at - times[0]) * rate_of(metric, labels)
                else:
                    value = float(at) if "timestamp" in metric.name else STILL.get(metric.name, 1.0)
                lines.append(f"{metric.name}{{{text}}} {value} {at}")
    return "\n".join([*lines, "# EOF", ""])


def rate_of(metric: Metric, labels: dict[str, str]) -> float:
    """By how much a counter grows in a second."""
    if metric.name == "laggard_rank_own_seconds_total" and labels["rank"] == SLOW_RANK:
        return SLOW_RATE
    return 0.5 if "seconds" in metric.name else 1.0


def verdict_lines(times: Sequence[int], now: int, site: Site) -> Iterator[str]:
    """One series for each probe at a time: that of its verdict."""
    middle = (times[0] + now) // 2
    for (node, probe), halves in VERDICTS.items():
        for verdict in dict.fromkeys(halves):
            row = {"probe": probe, "verdict": verdict, "instance": node, "job": "laggard-agent"}
            for labels in targets_of(site, row):
                text = ",".join(f'{key}="{value}"' for key, value in labels.items())
                for at in times:
                    if halves[at >= middle] == verdict:
                        yield f"laggard_probe_verdict{{{text}}} 1 {at}"


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples that the expression has now. Raises an HTTPError where it is none."""
        return self._ask("query", query=expr)

    def range(self, expr: str, seconds: int, step: int) -> list[dict[str, Any]]:
        """The samples of the last `seconds`, each `step` seconds."""
        now = int(time.time())
        return self._ask("query_range", query=expr, start=now - seconds, end=now, step=step)

    def _ask(self, path: str, **words: object) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}", timeout=300) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])


@contextlib.contextmanager
def fleet_in_prometheus(folder: Path, site: Site = ONE_CLUSTER) -> Iterator[Prometheus]:
    """A Prometheus whose recording rules have been evaluated."""
    now = int(time.time())
    (folder / "fleet.om").write_text(openmetrics(now, site))
    data = folder / "data"
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "fleet.om"), str(data)]
    subprocess.run(made, check=True, capture_output=True, timeout=300)
    (folder / "rules.yml").write_text(re.sub("interval: .*", "interval: 1s", RULES.read_text()))
    # Without the window, Prometheus takes no sample of a rule that is older than its newest block.
    storage = {"tsdb": {"out_of_order_time_window": f"{AHEAD_SECONDS + 3600}s"}}
    with prometheus_server(folder, {"rule_files": ["rules.yml"], "storage": storage}, data) as url:
        prometheus = Prometheus(url)
        wait_for(lambda: all(map(prometheus.query, RECORDED)), (folder / "prometheus.log").read_text)
        yield prometheus
