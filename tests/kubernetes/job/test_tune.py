"""`laggard tune` whose trials are Jobs of a real control plane. No container runs: a stand-in for scheduler and kubelet
starts the commands as processes here, and serves their logs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubelet_stand_in import Kubelet, path_alone
from support.paths import TESTS

pytestmark = pytest.mark.slow
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
TEMPLATE = """
apiVersion: batch/v1
kind: Job
metadata: {name: tune}
spec:
  template:
    spec:
      containers: [{name: test, image: nccl-tests}]
"""
STAND_IN = f"{shlex.quote(sys.executable)} -S -E {shlex.quote(str(TESTS / 'support' / 'nccl_tests.py'))}"
FEW = ("NCCL_ALGO", "NCCL_MIN_CTAS", "NCCL_NTHREADS", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_BUFFSIZE")


@pytest.fixture
def environ(own_control_plane: Any, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of whoever asks, with kubectl's configuration; pods run meanwhile."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    (tmp_path / "job.yaml").write_text(TEMPLATE)
    (tmp_path / "pods").mkdir()
    traps = {**path_alone(), "STAND_IN_TRAPS": "NCCL_MAX_CTAS=8:hang"}
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    own_control_plane.wait_until(lambda: own_control_plane.request("GET", account).is_success)
    with Kubelet(own_control_plane, tmp_path / "pods", traps):
        yield {**os.environ, "KUBECONFIG": str(_with_few_rights(own_control_plane, tmp_path))}


def _with_few_rights(plane: Any, folder: Path) -> Path:
    """kubectl's configuration of one who may do what docs/tune.md says, and nothing else."""
    there, rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/default", "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    ]
    role = {"apiGroup": rights, "kind": "Role", "name": "trials"}
    subject = {"kind": "ServiceAccount", "name": "trials", "namespace": "default"}
    plane.do("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "trials"}})
    plane.do("POST", f"{there}/roles", {"metadata": {"name": "trials"}, "rules": rules})
    plane.do("POST", f"{there}/rolebindings", {"metadata": {"name": "trials"}, "roleRef": role, "subjects": [subject]})
    config = plane.write_kubeconfig(folder)
    token = plane.service_account_token("default", "trials")
    config.write_text(config.read_text().replace(plane.administrator_token, token))
    return Path(config)


def left(plane: Any) -> list[str]:
    return [it["metadata"]["name"] for path in (JOBS, PODS) for it in plane.do("GET", path)["items"]]


def laggard(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "laggard", *words]


def test_a_command_runs_as_a_job_and_leaves_none(
    own_control_plane: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    start = laggard("agent", "--kubernetes-job", "--template", str(tmp_path / "job.yaml"), "--")

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*start, *words], env=environ, capture_output=True, text=True, timeout=300)
        own_control_plane.wait_until(lambda: left(own_control_plane) == [])
        return done

    done = ran("WORD=a b", "sh", "-c", 'echo "$WORD"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "a b\n", "")
    done = ran("sh", "-c", "echo CUDA error: out of memory; exit 3")
    assert (done.returncode, done.stdout) == (3, "") and "out of memory" in done.stderr
    with subprocess.Popen([*start, "sleep", "600"], env=environ, stderr=subprocess.PIPE, text=True) as process:
        own_control_plane.wait_until(lambda: len(left(own_control_plane)) == 2)
        process.send_signal(signal.SIGTERM)
        process.wait(300)
    assert process.returncode == 128 + signal.SIGTERM
    own_control_plane.wait_until(lambda: left(own_control_plane) == [])


def test_each_trial_is_a_job_and_neither_a_hang_nor_an_end_leaves_one(
    own_control_plane: Any, environ: dict[str, str], tmp_path: Path
) -> None:
    launcher = shlex.join(laggard("agent", "--kubernetes-job", "--template", str(tmp_path / "job.yaml"), "--"))
    command = laggard("tune", "nccl", "--messages", "all_reduce:64M", "--transport", "roce", "--nodes", "4")
    command += ["--local-ranks", "8", "--nccl-version", "2.27.5", "--study", str(tmp_path / "study.db")]
    command += [word for name in FEW for word in ("--leave-out", name)]
    command += ["--trials", "24", "--deadline", "20", "--format", "json"]
    command += ["--command", f"{launcher} {{env}} {STAND_IN} {{test}} -b {{bytes}} -e {{bytes}}"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tuner:
        deadline = time.monotonic() + 300
        while len(list((tmp_path / "pods").iterdir())) < 3:
            assert tuner.poll() is None and time.monotonic() < deadline, tuner.communicate()
            time.sleep(0.1)
        tuner.send_signal(signal.SIGTERM)
        tuner.communicate(timeout=300)
    assert tuner.returncode == 130
    own_control_plane.wait_until(lambda: left(own_control_plane) == [])
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    assert any("measured before" in line for line in done.stderr.splitlines()), done.stderr
    document = json.loads(done.stdout)
    assert "hung" in [each["status"] for each in document["trials"]], done.stderr
    items = document["recommendation"]["items"]
    assert items and all((each["key"], each["recommended"]) != ("NCCL_MAX_CTAS", "8") for each in items)
    own_control_plane.wait_until(lambda: left(own_control_plane) == [])
