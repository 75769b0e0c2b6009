"""What the chart makes takes no more rights than it says; the examples hold against the schemas."""

import argparse
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from msgspec import structs
from support.kubernetes_schemas import VERSIONS, errors_by_schema, unknown_kinds
from support.paths import REPOSITORY

from laggard.cli import main
from laggard.collector.web.app import is_own_name
from laggard.probes.choose import choose_probes
from laggard.probes.profiles import PROFILES, Profile, find_profile
from laggard.rings import command as ring

TAINT = {"controller": {"taint": "on"}}
WORKLOADS = ("DaemonSet", "Deployment", "Job")

POWERS = {"reader": ["SYS_ADMIN", "SYS_PTRACE", "SYSLOG", "DAC_READ_SEARCH"], "directories": ["CHOWN"]}
"""By container; all others have none."""


def workloads(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods' specs by the name of what makes them."""
    return {it["metadata"]["name"]: it["spec"]["template"]["spec"] for it in items if it["kind"] in WORKLOADS}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def test_no_container_has_a_power_that_is_not_named(kubernetes_tools: Any) -> None:
    pods = workloads(kubernetes_tools.render(TAINT))
    assert set(pods) == {"laggard-agent", "laggard-collector", "laggard-controller"}
    for name, pod in pods.items():
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"] and "privileged" not in context
            added = POWERS.get(container["name"], [])
            assert context["capabilities"].get("add", []) == added
            assert "memory" in container["resources"]["limits"] and ":" in container["image"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is (name == "laggard-controller")


def test_the_agent_writes_nowhere_on_its_host_but_its_own_state(kubernetes_tools: Any) -> None:
    pod = workloads(kubernetes_tools.render())["laggard-agent"]
    on_host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    agent, start = pod["containers"][0], pod["initContainers"][0]
    mounts = [it for it in agent["volumeMounts"] if it["name"] in on_host and not it.get("readOnly")]
    written = {"/".join(filter(None, (on_host[it["name"]], it.get("subPath")))) for it in mounts}
    assert written == {"/var/lib/laggard", "/run/laggard/ranks/.ask"}
    assert {on_host[it["name"]] for it in start["volumeMounts"]} == {"/run/laggard", "/var/lib/laggard"}
    assert {"operator": "Exists"} in pod["tolerations"], "an agent that left a tainted node would not see it recover"


def test_the_rank_directory_is_made_as_everybodys(kubernetes_tools: Any, tmp_path: Path) -> None:
    pod = workloads(kubernetes_tools.render())["laggard-agent"]
    path = tmp_path / "ranks"
    own = tmp_path / "agent"
    places = {"/run/laggard/ranks": str(path), "/var/lib/laggard/agent": str(own)}
    command = [
        re.sub("|".join(places), lambda found: places[found[0]], it) for it in pod["initContainers"][0]["command"]
    ]
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for _ in range(2):  # also when it is there
        subprocess.run(command, check=True, timeout=300)
    assert path.stat().st_mode & 0o7777 == 0o1777
    (path / ".ask").rename(path / ".moved")
    (path / ".ask").symlink_to(own)  # what a pod put there before
    subprocess.run(command, check=True, timeout=300)
    asks = (path / ".ask").lstat()
    assert (asks.st_mode, asks.st_uid, asks.st_gid) == (stat.S_IFDIR | 0o775, 0, 65532)
    user = pod["containers"][0]["securityContext"]["runAsUser"]
    assert (own.stat().st_mode & 0o7777, own.stat().st_uid) == (0o700, user)


def test_who_is_on_the_network_asks_who_has_the_powers(kubernetes_tools: Any) -> None:
    agent, reader = workloads(kubernetes_tools.render())["laggard-agent"]["containers"]
    environment = {it["name"]: it.get("value") for it in agent["env"]}
    assert environment["LAGGARD_READER"] in reader["args"] and not reader.get("ports")
    assert reader["args"][reader["args"].index("--allow-user") + 1] == str(agent["securityContext"]["runAsUser"])
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {it["name"]: it.get("readOnly", False) for it in reader["volumeMounts"]} == {"reader": False, "run": True}


def profile_of(items: list[dict[str, Any]], folder: Path) -> Profile:
    """The agents' profile, as they read it."""
    (config,) = (it for it in items if it["kind"] == "ConfigMap" and it["metadata"]["name"] == "laggard-agent")
    assert yaml.safe_load(config["data"]["agent.yaml"])["profile"] == "/etc/laggard/profile.yaml"
    (folder / "profile.yaml").write_text(config["data"]["profile.yaml"])
    return find_profile(str(folder / "profile.yaml"))


def test_nodes_with_the_label_are_expected_to_have_a_gpu(kubernetes_tools: Any, tmp_path: Path) -> None:
    """All else is as the agent has it by itself."""
    profile = profile_of(kubernetes_tools.render(), tmp_path)
    thresholds = dict(profile.thresholds)
    assert thresholds.pop("gpu_count") == {"least": 1}
    assert structs.replace(profile, thresholds=thresholds) == PROFILES["periodic"]


def test_a_sites_own_thresholds_stand_over_the_profile(kubernetes_tools: Any, tmp_path: Path) -> None:
    """As docs/kubernetes.md shows it."""
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    (values,) = re.findall(r"```yaml\n(agent:\n  profile:.*?)```", page, re.DOTALL)
    profile = profile_of(kubernetes_tools.render(yaml.safe_load(values)), tmp_path)
    assert profile.skip == ("swap",) and profile.thresholds["gpu_count"] == {"expected": 8, "least": 1}
    assert [probe.name for probe in choose_probes(profile, (), (), "the page")]


def test_the_daemons_take_the_arguments_and_ports_of_their_containers(
    kubernetes_tools: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = {
        item["metadata"]["name"]: item["data"] for item in kubernetes_tools.render(TAINT) if item["kind"] == "ConfigMap"
    }
    for name, pod in workloads(kubernetes_tools.render(TAINT)).items():
        container = pod["containers"][0]
        (file, text), *_ = configs[name].items()
        assert f"/etc/laggard/{file}" in container["args"]
        words = ["/dev/null" if word.startswith("/etc/laggard/") else word for word in container["args"]]
        assert main([*words, "--dump-config"]) == 0
        served = {**yaml.safe_load(capsys.readouterr().out), **yaml.safe_load(text)}["listen_address"]
        assert served == f":{container['ports'][0]['containerPort']}"


def test_the_taint_and_the_annotation_have_one_name_everywhere() -> None:
    from laggard.kubernetes.node import CONDITION, OPT_OUT, TAINT_KEY

    folders = (REPOSITORY / "deploy" / name for name in ("helm", "kubernetes"))
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.yaml")]
    texts.append((REPOSITORY / "docs" / "kubernetes.md").read_text())
    found = set(re.findall(r"laggard/(?:unhealthy|ignore)\b", "\n".join(texts)))
    assert found == {TAINT_KEY, OPT_OUT}
    assert CONDITION in "\n".join(texts)


def test_the_daemons_find_each_other_in_any_namespace(kubernetes_tools: Any) -> None:
    items = kubernetes_tools.render(namespace="gpu-tools")
    configs = {it["metadata"]["name"]: it["data"] for it in items if it["kind"] == "ConfigMap"}
    services = {it["metadata"]["name"] for it in items if it["kind"] == "Service"}
    collector = yaml.safe_load(configs["laggard-collector"]["collector.yaml"])
    asked = urlsplit(yaml.safe_load(configs["laggard-controller"]["controller.yaml"])["collector"]).hostname
    assert {asked, *collector["target_names"]} == services == {"laggard-collector", "laggard-agents"}
    allowed = collector["allowed_hosts"]
    for name in ("laggard-collector", "laggard-collector.gpu-tools.svc", "laggard-collector.x.svc.cluster.local"):
        assert is_own_name(f"{name}:19401", allowed), name
    for name in ("laggard-collector.gpu-tools", "laggard-collector.svc.example.org", "svc.example.org"):
        assert not is_own_name(name, allowed), name


def test_with_tls_another_namespace_is_in_every_name(kubernetes_tools: Any, tmp_path: Path) -> None:
    """By the command of docs/kubernetes.md, in a copy."""
    (command,) = re.findall(r"^    (sed -i .*)$", (REPOSITORY / "docs" / "kubernetes.md").read_text(), re.MULTILINE)
    (tmp_path / "docs/examples").mkdir(parents=True)
    certificates = Path(shutil.copy(REPOSITORY / "docs/examples/cert-manager.yaml", tmp_path / "docs/examples"))
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    text = yaml.safe_dump_all(kubernetes_tools.render({"tls": {"enabled": True}}, "gpu-tools"))
    asked = set(re.findall(r"[a-z-]+\.[a-z-]+\.svc\b", text))
    assert asked == {f"laggard-{name}.gpu-tools.svc" for name in ("agents", "collector", "prometheus")}
    made = list(yaml.safe_load_all(certificates.read_text()))
    assert asked <= {name for it in made for name in it["spec"].get("dnsNames", ())}
    assert {it["metadata"]["namespace"] for it in made} == {"gpu-tools"}


@pytest.mark.slow
def test_a_missing_runtime_class_is_told_of_in_the_pages_words(cluster: Any, kubernetes_tools: Any) -> None:
    spec = {**workloads(kubernetes_tools.render(TAINT))["laggard-agent"], "runtimeClassName": "absent"}
    pod = {"metadata": {"name": "x"}, "spec": spec}
    answer = cluster.request("POST", "/api/v1/namespaces/laggard/pods?dryRun=All", pod)
    (words,) = re.findall(r'RuntimeClass "nvidia" not found', (REPOSITORY / "docs/start/kubernetes.md").read_text())
    assert answer.status_code == 403 and words.replace("nvidia", "absent") in answer.json()["message"], answer.text


@pytest.mark.slow
def test_the_api_server_takes_every_manifest_strictly(cluster: Any, kubernetes_tools: Any) -> None:
    for values in ({}, {"tls": {"enabled": True}}, TAINT):
        kubernetes_tools.apply(cluster, kubernetes_tools.render(values))
    (job,) = yaml.safe_load_all((REPOSITORY / "deploy/kubernetes/examples/gated-job.yaml").read_text())
    path = f"{kubernetes_tools.path_of(job)}?dryRun=All&fieldValidation=Strict"
    cluster.do("POST", path, job)
    job["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    refused = cluster.request("POST", path, job)
    assert refused.status_code == 400 and "unknown field" in refused.text


@pytest.mark.slow
def test_collector_and_controller_are_restricted_and_the_agent_is_not(cluster: Any, kubernetes_tools: Any) -> None:
    """By Kubernetes' own pod security standard."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "closed", "labels": label}}
    cluster.do("POST", "/api/v1/namespaces", namespace)
    cluster.do("POST", "/api/v1/namespaces/closed/serviceaccounts", {"metadata": {"name": "any"}})
    verdicts = {}
    for name, spec in workloads(kubernetes_tools.render(TAINT)).items():
        without = {key: value for key, value in spec.items() if key not in ("runtimeClassName", "priorityClassName")}
        pod = {"metadata": {"name": name}, "spec": {**without, "serviceAccountName": "any"}}
        answer = cluster.request("POST", "/api/v1/namespaces/closed/pods?dryRun=All", pod)
        verdicts[name] = answer.status_code
        assert answer.is_success or 'violates PodSecurity "restricted' in answer.json()["message"], answer.text
    assert verdicts == {"laggard-agent": 403, "laggard-collector": 201, "laggard-controller": 201}


EXAMPLES = sorted((REPOSITORY / "deploy/kubernetes/examples").glob("*.yaml"))
OF_OPERATORS = ("slinky-nodeset",)
"""Of kinds that Kubernetes does not have: test_slinky.py."""


@pytest.mark.parametrize("path", [it for it in EXAMPLES if it.stem not in OF_OPERATORS], ids=lambda it: it.stem)
def test_the_examples_hold_against_the_schemas(path: Path) -> None:
    items = list(yaml.safe_load_all(path.read_text()))
    for version in VERSIONS:
        assert items and errors_by_schema(items, version) == [], version
        assert not unknown_kinds(items, version), version
        misspelt = {**items[0], "specc": {}}
        assert len(errors_by_schema([misspelt], version)) == 1, version


def test_the_pods_of_the_example_for_kubeflow_hold_against_the_schemas() -> None:
    """Its own schema is not Kubernetes'; its pods' is."""
    job = yaml.safe_load((REPOSITORY / "docs/examples/pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    for name, replica in job["spec"]["pytorchReplicaSpecs"].items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, **replica["template"]}
        for version in VERSIONS:
            assert errors_by_schema([pod], version) == [], version


KUBEFLOW_FIELDS = {
    "spec": {"runPolicy", "elasticPolicy", "pytorchReplicaSpecs", "nprocPerNode"},
    "elasticPolicy": {"minReplicas", "maxReplicas", "rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf"}
    | {"standalone", "nProcPerNode", "maxRestarts", "metrics"},
    "replica": {"replicas", "template", "restartPolicy"},
}
"""Of the training operator 1.9.0: pytorch_types.go and common_types.go."""

READ_BY_TORCHRUN = """
import json, sys
from torch.distributed.run import config_from_args, parse_args
config, command, words = config_from_args(parse_args(sys.argv[1:]))
nodes = [config.min_nodes, config.max_nodes, config.nproc_per_node]
print(json.dumps([*nodes, config.rdzv_backend, config.rdzv_endpoint, command, words]))
"""


def test_the_example_for_kubeflow_has_what_its_operator_asks_for() -> None:
    """Stands in for the operator's CRD (600 KB of a pod's schema, for the most part) and its webhook."""
    job = yaml.safe_load((REPOSITORY / "docs/examples/pytorchjob.yaml").read_text())
    spec, replicas = job["spec"], job["spec"]["pytorchReplicaSpecs"]
    assert set(spec) <= KUBEFLOW_FIELDS["spec"] and isinstance(spec["nprocPerNode"], str)
    assert set(spec["elasticPolicy"]) <= KUBEFLOW_FIELDS["elasticPolicy"]
    assert set(replicas) <= {"Master", "Worker"}
    for replica in replicas.values():
        assert set(replica) <= KUBEFLOW_FIELDS["replica"]
        assert replica["restartPolicy"] in {"Always", "OnFailure", "Never", "ExitCode"}
        assert [it["name"] for it in replica["template"]["spec"]["containers"] if it["image"]] == ["pytorch"]


@pytest.mark.slow
def test_torchrun_knows_the_nodes_of_the_example_for_kubeflow() -> None:
    job = yaml.safe_load((REPOSITORY / "docs/examples/pytorchjob.yaml").read_text())
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    program, *words = container["command"]
    assert program == "torchrun"
    command = [sys.executable, "-c", READ_BY_TORCHRUN, *words]
    environ = {**os.environ, **told_by_the_operator(job)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        *(2, 2, 8, "c10d", "train-worker-0:23456"),
        *("laggard", ["run", "train.py"]),
    ]


def told_by_the_operator(job: dict[str, Any]) -> dict[str, str]:
    """What the training operator 1.9.0 puts into the environment of a job's workers: envvar.go, elastic.go. Without an
    elasticPolicy and without a Master it says of the nodes their number alone."""
    spec = job["spec"]
    count = spec["pytorchReplicaSpecs"]["Worker"]["replicas"]
    told = {"PET_NPROC_PER_NODE": spec["nprocPerNode"], "PET_NNODES": str(count)}
    if policy := spec.get("elasticPolicy"):
        told |= {"PET_NNODES": f"{count}:{count}", "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d")}
        told["PET_RDZV_ENDPOINT"] = f"{job['metadata']['name']}-worker-0:23456"
    return told


def test_idle_rings_put_nobody_out_and_their_command_is_one_that_laggard_takes() -> None:
    documents = yaml.safe_load_all((REPOSITORY / "deploy/kubernetes/examples/idle-rings.yaml").read_text())
    items = {item["kind"]: item for item in documents}
    assert items["PriorityClass"]["preemptionPolicy"] == "Never" and items["PriorityClass"]["value"] < 0
    job = items["CronJob"]["spec"]
    spec = job["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    assert job["suspend"] is True
    assert pod["priorityClassName"] == items["PriorityClass"]["metadata"]["name"]
    assert pod["subdomain"] == items["Service"]["metadata"]["name"]
    (text,) = pod["containers"][0]["args"]
    words = text.replace('"', "").replace("$JOB_COMPLETION_INDEX", "3").replace("${JOB_NAME}", "laggard-ring-1").split()
    parser = argparse.ArgumentParser()
    ring.configure(parser)
    arguments = parser.parse_args(words[3:])
    assert arguments.nodes == spec["completions"] == spec["parallelism"] and arguments.pairs
    assert arguments.deadline < spec["activeDeadlineSeconds"] and arguments.rendezvous.startswith("laggard-ring-1-0.")
