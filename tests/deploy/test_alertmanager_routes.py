"""The example of a whole alertmanager.yml."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.paths import REPOSITORY

from laggard.catalogue.metrics import METRICS

FOLDER = REPOSITORY / "deploy" / "prometheus"
EXAMPLE = FOLDER / "alertmanager-example.yml"
CONFIG = yaml.safe_load(EXAMPLE.read_text())
ALERTS = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
TOLD = {
    "team=vision severity=critical": "vision-pager",
    "team=vision severity=warning": "vision",
    "team=vision partition=debug severity=critical": "operators",
    "partition=batch,debug severity=critical": "operators",
    "partition=debug2 severity=critical": "pager",
    "severity=critical alertname=LaggardRankHung user=1000": "pager",
    "severity=warning alertname=LaggardJobSlow user=1000": "jobs",
    "severity=warning": "operators",
    "severity=info alertname=LaggardIncident team=vision": "chat",
}
"""Who is told of an alert with these labels."""

needs_amtool = pytest.mark.skipif(
    not shutil.which("amtool"), reason="needs amtool: scripts/setup --system installs prometheus-alertmanager on Debian"
)


def _routes(route: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield route
    for below in route.get("routes", ()):
        yield from _routes(below)


@needs_amtool
def test_amtool_takes_it() -> None:
    done = subprocess.run(["amtool", "check-config", EXAMPLE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_amtool
@pytest.mark.parametrize("labels", TOLD)
def test_an_alert_goes_to_whom_the_example_means(labels: str) -> None:
    command = ["amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", *labels.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == TOLD[labels], done.stderr


def test_its_labels_are_those_that_alerts_have() -> None:
    (place,) = (metric for metric in METRICS if metric.name == "laggard_node_labels")
    joined = set(re.findall(r"group_left \(([^)]*)\)", " ".join(alert["expr"] for alert in ALERTS)))
    known = {label.strip() for group in joined for label in group.split(",")} & set(place.labels)
    assert {"partition", "rack", "team"} <= known, "as the alerts about nodes have them"
    known |= {"alertname", "cluster", "job_id", "user", *(label for alert in ALERTS for label in alert["labels"])}
    used = {label for route in _routes(CONFIG["route"]) for label in route.get("group_by", ())}
    matched = [text for route in _routes(CONFIG["route"]) for text in route.get("matchers", ())]
    used |= {re.split("[!=]", text, maxsplit=1)[0] for text in matched}
    assert used <= known and {"team", "partition", "severity"} <= used
    named = {name for text in matched for name in re.findall(r'alertname="(\w+)"', text)}
    assert named <= {alert["alert"] for alert in ALERTS}


def test_it_has_the_inhibitions_that_are_shipped() -> None:
    assert CONFIG["inhibit_rules"] == yaml.safe_load((FOLDER / "alertmanager.yml").read_text())["inhibit_rules"]
    receivers = {receiver["name"] for receiver in CONFIG["receivers"]}
    assert receivers == {route["receiver"] for route in _routes(CONFIG["route"])}
