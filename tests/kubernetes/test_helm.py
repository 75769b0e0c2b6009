"""deploy/helm: what Helm itself makes of the chart."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart import CHART, rendered
from support.kubernetes_schemas import ADMISSION, VERSIONS, errors_by_schema, has_admission_policies, unknown_kinds
from support.made_pages import script
from support.paths import REPOSITORY

helm = pytest.importorskip("helm_python", reason="needs helm-python-sdk: Helm as a library (scripts/setup installs it)")

from laggard import __version__  # noqa: E402
from laggard.agent.settings import AgentSettings  # noqa: E402
from laggard.collector.settings import CollectorSettings, load_settings  # noqa: E402
from laggard.kit.config import load  # noqa: E402
from laggard.kubernetes.settings import ControllerSettings  # noqa: E402
from laggard.probes.profiles import PROFILES, find_profile  # noqa: E402

EVALUATORS = {
    "replicas": 3,
    "prometheus": "http://prometheus-operated.monitoring.svc:9090",
    "databaseSecret": "laggard-database",
}


def test_the_agents_manifest_is_what_the_chart_makes() -> None:
    """For who has no Helm."""
    made = script("agent_manifest")
    assert made.MANIFEST.read_text() == made.made(), "run .venv/bin/python scripts/agent_manifest.py"
    of_chart = [it for it in rendered() if it["metadata"]["name"] in ("laggard-agent", "laggard-agents")]
    for item in of_chart:
        item["metadata"]["labels"].pop("app.kubernetes.io/managed-by")
    kept = list(yaml.safe_load_all(made.MANIFEST.read_text()))
    assert sorted(map(str, kept)) == sorted(map(str, of_chart)) and len(kept) == 4


def test_every_object_holds_against_the_schemas() -> None:
    everything = {
        "controller": {"taint": "on"},
        "collector": {"incidentsClaim": "incidents"},
        "evaluators": EVALUATORS,
        "nvidia": False,
        "tls": {"enabled": True},
    }
    items = rendered(everything)
    assert len(items) > 20
    for version in VERSIONS:
        assert errors_by_schema([*items, *rendered()], version) == [], version
        assert unknown_kinds(items, version) == (set() if has_admission_policies(version) else set(ADMISSION)), version
        assert not unknown_kinds(rendered({"controller": {"enabled": False}}), version), version
    pods = {it["metadata"]["name"]: it["spec"]["template"]["spec"] for it in items if it["kind"] == "Deployment"}
    volumes = {it["name"]: it for it in pods["laggard-collector"]["volumes"]}
    assert volumes["incidents"]["persistentVolumeClaim"] == {"claimName": "incidents"}
    agent = next(it for it in items if it["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in agent and agent["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_what_is_switched_off_is_not_made() -> None:
    names = {item["metadata"]["name"] for item in rendered({"controller": {"enabled": False}})}
    assert not [name for name in names if "controller" in name]
    assert "PodMonitor" not in {item["kind"] for item in rendered()}
    assert "PodMonitor" in {item["kind"] for item in rendered({"podMonitor": True})}
    kept_apart = [item for item in rendered() if "taint" in item["metadata"]["name"]]
    assert kept_apart == [], "without the taint the controller gets no right to set one"


def test_grafanas_sidecar_finds_the_boards_in_a_config_map() -> None:
    boards = {
        path.name: json.loads(path.read_text()) for path in (REPOSITORY / "deploy/grafana/dashboards").glob("*.json")
    }
    made = rendered({"dashboards": True})
    (found,) = (it for it in made if it["metadata"]["name"] == "laggard-dashboards")
    assert found["kind"] == "ConfigMap" and found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in found["data"].items()} == boards and len(boards) == 3
    assert len(json.dumps(found)) < 1 << 20, "etcd takes no larger object"
    assert len(rendered()) == len(made) - 1


def test_a_site_says_where_pods_run_and_what_they_take() -> None:
    placed = {"nodeSelector": {"pool": "gpu"}, "resources": {"limits": {"memory": "1Gi"}}}
    tolerated = {**placed, "tolerations": [{"key": "infra", "operator": "Exists"}], "egressPorts": [16443]}
    pull = [{"name": "pull"}]
    values = {"imagePullSecrets": pull, "runtimeClassName": "", "agent": {**placed, "readerPowers": ["SYSLOG"]}}
    items = rendered({**values, "collector": tolerated, "controller": tolerated})
    pods = {it["metadata"]["name"]: it["spec"]["template"]["spec"] for it in items if "template" in it.get("spec", {})}
    assert set(pods) == {"laggard-agent", "laggard-collector", "laggard-controller"}
    for name, pod in pods.items():
        resources = pod["containers"][0]["resources"]
        assert pod["nodeSelector"]["pool"] == "gpu" and pod["imagePullSecrets"] == pull, name
        assert resources["limits"]["memory"] == "1Gi" and "memory" in resources["requests"], name
        assert pod["tolerations"] == ([{"operator": "Exists"}] if name == "laggard-agent" else tolerated["tolerations"])
    assert "runtimeClassName" not in pods["laggard-agent"]
    reader = pods["laggard-agent"]["containers"][1]
    assert reader["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYSLOG"]}
    policies = [it["spec"]["egress"][-1] for it in items if it["kind"] == "NetworkPolicy"]
    assert policies == [{"ports": [{"protocol": "TCP", "port": 16443}]}] * 2
    for version in VERSIONS:
        assert errors_by_schema(items, version) == [], version


def test_evaluators_are_made_where_there_is_what_they_need(tmp_path: Path) -> None:
    assert not [it for it in rendered() if "evaluator" in it["metadata"]["name"]]
    for missing in ("prometheus", "databaseSecret"):
        with pytest.raises(helm.HelmError, match=f"evaluators.{missing}: "):
            rendered({"evaluators": {**EVALUATORS, missing: ""}})
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmValuesError, match="prometheus"):
        chart.validate_schema({"evaluators": {"prometheus": "http://me:secret@prometheus:9090"}})
    settings = {"prometheus_interval_seconds": 30.0}
    items = rendered({"evaluators": {**EVALUATORS, "databaseKey": "uri", "config": settings, "egressPorts": [6432]}})
    made = {it["kind"]: it for it in items if "evaluator" in it["metadata"]["name"]}
    assert set(made) == {
        "ServiceAccount", "Service", "PodDisruptionBudget", "Deployment", "ConfigMap", "NetworkPolicy",
    }  # fmt: skip
    pod = made["Deployment"]["spec"]["template"]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = made[kind]["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert (selector.get("matchLabels") or selector).items() <= pod["metadata"]["labels"].items(), kind
    volumes = {it["name"]: it for it in pod["spec"]["volumes"]}
    assert volumes["database"]["secret"]["items"] == [{"key": "uri", "path": "url"}]
    assert made["NetworkPolicy"]["spec"]["egress"][0] == {"ports": [{"protocol": "TCP", "port": 6432}]}
    secret, config = tmp_path / "url", tmp_path / "collector.yaml"
    secret.write_text("postgresql://laggard:s%40cret@db.example/laggard?sslmode=require\n")
    secret.chmod(0o600)
    text = made["ConfigMap"]["data"]["collector.yaml"]
    config.write_text(text.replace("/etc/laggard-database/url", str(secret)))
    read = load_settings(str(config), [], None, None)
    assert (read.evaluators, read.prometheus) == ("main", EVALUATORS["prometheus"]) and not read.targets
    assert read.incidents_database == "postgresql://laggard@db.example/laggard?sslmode=require"
    assert read.prometheus_interval_seconds == 30.0


def test_another_namespace_is_named_everywhere() -> None:
    for scheme in ("http", "https"):
        values = {
            "controller": {"taint": "on"},
            "podMonitor": True,
            "prometheusRule": True,
            "tls": {"enabled": scheme == "https"},
        }
        text = yaml.safe_dump_all(rendered(values, namespace="health"))
        assert "laggard.svc" not in text and "serviceaccount:laggard:" not in text and "namespace: laggard" not in text
        assert ("https://laggard-collector.health.svc:19401" in text) is (scheme == "https")
        assert ("http://laggard-collector:19401" in text) is (scheme == "http")
    assert text.count('endsWith(":laggard-controller")') == 3, "the policies hold in each namespace"


def test_the_daemons_take_the_configuration(tmp_path: Path) -> None:
    """What the values say stands over what the chart needs."""
    thresholds = {"gpu_count": {"expected": 8}, "disks": {"critical_used_ratio": 0.99}}
    agent = {"config": {"listen_address": ":19500"}, "profile": {"skip": ["swap"], "thresholds": thresholds}}
    said = {"agent": agent, "collector": {"config": {"interval_seconds": 2.0}}}
    kinds = {"agent": AgentSettings, "collector": CollectorSettings, "controller": ControllerSettings}
    maps = [item for item in rendered(said) if item["kind"] == "ConfigMap"]
    assert len(maps) == len(kinds)
    settings: dict[str, Any] = {}
    for item in maps:
        (file, text), *more = item["data"].items()
        (tmp_path / file).write_text(text)
        settings[Path(file).stem] = load(str(tmp_path / file), kinds[Path(file).stem])
        for name, held in more:
            (tmp_path / name).write_text(held)
    assert settings["agent"].listen_address == ":19500" and settings["agent"].profile == "/etc/laggard/profile.yaml"
    profile = find_profile(str(tmp_path / "profile.yaml"))
    assert profile.skip == ("swap",) and profile.deadline_seconds == PROFILES["periodic"].deadline_seconds
    own = {**PROFILES["periodic"].thresholds, "gpu_count": {"expected": 8, "least": 1}}
    assert profile.thresholds == {**own, "disks": {"critical_used_ratio": 0.99}}
    assert settings["collector"].interval_seconds == 2.0 and settings["collector"].target_names == ("laggard-agents",)
    assert settings["controller"].taint == "off"


def test_the_notes_name_the_label_that_counts() -> None:
    with helm.Chart.load(CHART) as chart:
        notes = {
            nvidia: next(text for name, text in chart.render({"nvidia": nvidia}).items() if name.endswith("NOTES.txt"))
            for nvidia in (True, False)
        }
    assert "nvidia.com/gpu.present=true" in notes[True] and "nvidia.com" not in notes[False]


def test_a_misspelt_value_is_refused() -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmValuesError, match="nvida"):
        chart.validate_schema({"nvida": True})
    assert not [it for it in helm.lint(CHART, strict=True)["messages"] if it["severity"] > 1]
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == chart.version == __version__
