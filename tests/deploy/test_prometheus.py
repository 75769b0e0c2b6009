"""deploy/prometheus: promtool takes the rules, their tests pass, and they ask for metrics that laggard serves."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.paths import REPOSITORY
from support.rows import rows

from laggard.catalogue.findings import all_types
from laggard.catalogue.metrics import METRICS
from laggard.cli import main

FOLDER = REPOSITORY / "deploy" / "prometheus"
RULE_FILES = ("rules.yml", "alerts.yml")
ALERTS = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
RECORDED = {
    rule["record"] for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
}
"""Alerts join what rules.yml records: both files are loaded."""
SERVED = {metric.name: set(metric.labels) for metric in METRICS}
TARGET_LABELS = {"job", "instance", "hostname", "cluster", "partition", "rack", "team", "by"}  # by: of rules.yml

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here")


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
def test_promtool_takes_the_rules_and_their_tests_pass() -> None:
    promtool("check", "rules", *RULE_FILES)
    assert promtool("test", "rules", "rules_test.yml", "alerts_test.yml", "situations_test.yml").count("SUCCESS") == 3
    for name in ("prometheus.yml", "prometheus-tls.yml", "prometheus-http-sd.yml"):
        promtool("check", "config", "--syntax-only", name)


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-tls.yml", "prometheus-http-sd.yml"])
def test_a_label_of_the_site_does_not_rename_what_ranks_and_culprits_say(name: str) -> None:
    """Without honor_labels a `hostname` in the files of agents makes laggard_rank_info's an exported_hostname."""
    jobs = yaml.safe_load((FOLDER / name).read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs if not job.get("honor_labels")] == []


def test_the_page_says_how_long_each_alert_has_to_last() -> None:
    page = (REPOSITORY / "docs" / "alerts.md").read_text()
    told = {name: row[1] for row in re.finditer(r"^\| (at once|\d+[mh]) \| (.*) \|$", page, re.M) for name in
            re.findall(r"`(\w+)`", row[2])}  # fmt: skip
    assert told == {alert["alert"]: alert.get("for", "at once") for alert in ALERTS}


@pytest.mark.parametrize("name", RULE_FILES)
def test_the_rules_ask_for_metrics_and_labels_that_laggard_serves(name: str) -> None:
    groups = yaml.safe_load((FOLDER / name).read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        expression = rule["expr"]
        asked = set(re.findall(r"(?<![:\w])(?:laggard_\w+)(?![:\w])", expression))
        assert asked <= set(SERVED), f"{rule}: no such metric"
        assert set(re.findall(r"\w+:\w+:\w+", expression)) <= RECORDED
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
        known = TARGET_LABELS.union(*(SERVED[metric] for metric in asked))
        assert labels <= known, f"{rule}: no such label"


def test_each_alert_says_what_to_do_and_has_its_page() -> None:
    sections = re.findall(r"^## (\w+)", (REPOSITORY / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert sections == [alert["alert"] for alert in ALERTS], "docs/alerts.md has a section for each, in their order"
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        address, end, page = alert["annotations"]["runbook_url"].rpartition("{{ end }}")
        assert page in (f"/runbooks/{alert['alert']}", "/findings/{{ $labels.code }}")
        assert address.startswith("{{ with query") and "laggard_collector_external_url" in address and end
        assert {"summary", "description"} <= set(alert["annotations"])
    for finding in all_types():
        assert (REPOSITORY / "docs" / "findings" / f"{finding.code}.md").is_file(), "the page of alerts about findings"


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    fires = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case["exp_alerts"]}
    quiet = {case["alertname"] for test in cases for case in test["alert_rule_test"] if not case["exp_alerts"]}
    names = {alert["alert"] for alert in ALERTS}
    assert fires == names
    assert quiet == names


def test_metrics_list_is_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "list", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "laggard.metrics/1"
    assert {row["name"]: set(row["labels"]) for row in document["metrics"]} == SERVED
    assert main(["metrics", "list"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{len(METRICS)} metrics")
    assert "laggard_culprit{job_id, user, rank, kind, hostname}  gauge" in text


# The example of a whole alertmanager.yml.

EXAMPLE = FOLDER / "alertmanager-example.yml"
CONFIG = yaml.safe_load(EXAMPLE.read_text())
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
@rows("deploy/alert_routes")
def test_an_alert_goes_to_whom_the_example_means(labels: str, receiver: str) -> None:
    command = ["amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", *labels.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == receiver, done.stderr


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
