"""The chart of earlier commits, upgraded to this one and back, by Helm itself on a real API server; its objects
applied in any order. No kubelet runs: what is looked at is what the API server keeps."""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chart import CHART, NO_HELM, for_any_version
from support.paths import REPOSITORY
from support.unpacked import unpack

helm = pytest.importorskip("helm_python", reason=NO_HELM)

PATH = CHART.relative_to(REPOSITORY)
NAMESPACE = "laggard"
KEPT = (
    "/api/v1/namespaces/laggard/services/laggard-collector",
    "/api/v1/namespaces/laggard/services/laggard-agents",
    "/api/v1/namespaces/laggard/configmaps/laggard-collector",
    "/api/v1/namespaces/laggard/serviceaccounts/laggard-controller",
    "/apis/apps/v1/namespaces/laggard/deployments/laggard-collector",
    "/apis/apps/v1/namespaces/laggard/deployments/laggard-controller",
    "/apis/apps/v1/namespaces/laggard/daemonsets/laggard-agent",
    "/apis/networking.k8s.io/v1/namespaces/laggard/networkpolicies/laggard-collector",
)
VALUES = {"controller": {"taint": "on"}}
EVALUATORS = {"replicas": 3, "prometheus": "http://prometheus.example:9090", "databaseSecret": "laggard-database"}
EVALUATOR = "/apis/apps/v1/namespaces/laggard/deployments/laggard-evaluator"


def earlier_charts() -> list[str]:
    """The commits that changed the chart, the first, one in the middle and the last but one; none where this is no
    clone with its history."""
    command = ["git", "log", "--format=%H", "--", str(PATH)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    found = done.stdout.split() if done.returncode == 0 else []
    return [found[-1], found[len(found) // 2], found[1]] if len(found) > 3 else []


def chart_of(commit: str, folder: Path) -> Path:
    command = ["git", "archive", "--format=tar", commit, "deploy"]  # into which the chart has links
    packed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, timeout=120).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        unpack(archive, folder)
    return for_any_version(folder / PATH, folder / "chart")


@pytest.fixture
def release(own_control_plane: Any, tmp_path: Path) -> Iterator[Any]:
    """Helm, as the administrator."""
    own_control_plane.do("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    config = own_control_plane.write_kubeconfig(tmp_path)
    with helm.Config(kubeconfig_path=config, namespace=NAMESPACE) as found:
        yield found


def identities(plane: Any) -> dict[str, tuple[str, str]]:
    """Of each object that has to stay: whether it is the same one, and the address of a service."""
    held = {path: plane.do("GET", path) for path in KEPT}
    return {path: (it["metadata"]["uid"], it.get("spec", {}).get("clusterIP", "")) for path, it in held.items()}


@pytest.mark.slow
def test_a_chart_is_upgraded_and_goes_back(own_control_plane: Any, release: Any, tmp_path: Path) -> None:
    plane, commits = own_control_plane, earlier_charts()
    if not commits:
        pytest.skip("needs the repository's history, for the chart as it was")
    now = for_any_version(CHART, tmp_path / "now")
    for number, commit in enumerate(commits):
        earlier = chart_of(commit, tmp_path / str(number))
        release.install(earlier, "laggard", VALUES, namespace=NAMESPACE)
        before = identities(plane)
        release.upgrade(now, "laggard", {**VALUES, "evaluators": EVALUATORS}, namespace=NAMESPACE)
        assert identities(plane) == before, commit
        assert plane.do("GET", EVALUATOR)["spec"]["replicas"] == 3
        release.upgrade(now, "laggard", {**VALUES, "evaluators": {**EVALUATORS, "replicas": 5}}, namespace=NAMESPACE)
        assert plane.do("GET", EVALUATOR)["spec"]["replicas"] == 5
        release.rollback("laggard", version=1)
        assert identities(plane) == before, commit
        plane.wait_until(lambda: plane.request("GET", EVALUATOR).status_code == 404)
        release.upgrade(now, "laggard", VALUES, namespace=NAMESPACE)
        assert identities(plane) == before, commit
        release.uninstall("laggard")
        plane.wait_until(lambda: all(plane.request("GET", path).status_code == 404 for path in KEPT))


@pytest.mark.slow
def test_the_first_apply_has_no_line_of_an_error(own_control_plane: Any, tmp_path: Path) -> None:
    """Of the agents without Helm: both streams, each line."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    environ = {**os.environ, "KUBECONFIG": str(own_control_plane.write_kubeconfig(tmp_path))}
    own_control_plane.do("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    command = [kubectl, "apply", "-f", "deploy/kubernetes/agent.yaml"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["created"] * 4
