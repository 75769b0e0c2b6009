"""`laggard agent --kubernetes-job` with a cluster that is a stand-in: what it makes of a template, and how it ends."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes_schemas import VERSIONS, errors_by_schema
from support.paths import DATA

from laggard.kubernetes import job as run_module
from laggard.kubernetes.job import INDEX, KubectlError, asked, job_of, read_template, run_job, state_of

TEMPLATE = (DATA / "kubernetes" / "job.yaml").read_text()


def made(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "job.yaml").write_text(TEMPLATE)
    return job_of(read_template(str(folder / "job.yaml")), asked(words), 60, "0a1b")


def test_the_first_container_runs_the_command_with_its_variables(tmp_path: Path) -> None:
    job = made(tmp_path, "NCCL_ALGO=Ring", "EMPTY=", "all_reduce_perf", "-b", "8", "x=1")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["all_reduce_perf", "-b", "8", "x=1"] and "args" not in container
    assert container["env"] == [
        {"name": "NCCL_DEBUG", "value": "WARN"},
        {"name": "NCCL_ALGO", "value": "Ring"},
        {"name": "EMPTY", "value": ""},
    ]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert job["metadata"] == {"name": "all-reduce-0a1b", "labels": {"team": "vision", "laggard/trial": "true"}}
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], pod["restartPolicy"]) == (0, 60, "Never")
    assert spec["ttlSecondsAfterFinished"] > 0, "one that nobody removed goes by itself"
    assert made(tmp_path, "NCCL_ALGO=Ring")["spec"]["template"]["spec"]["containers"][0]["args"] == ["sleep", "1"]


def test_it_holds_against_the_schemas(tmp_path: Path) -> None:
    for version in VERSIONS:
        assert errors_by_schema([made(tmp_path, "NCCL_ALGO=Ring", "all_reduce_perf")], version) == [], version


def pod(name: str, phase: str, index: int = 0, **state: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase, "containerStatuses": [{"name": "test", "state": state}]}
    return {"metadata": {"name": name, "annotations": {INDEX: str(index)}}, "status": status}


class Cluster:
    """A stand-in: the Job's states one after the other, the last one for ever; None: the server is away."""

    def __init__(self, *states: tuple[str, list[dict[str, Any]]] | None, logs: Mapping[str, str] = {}) -> None:
        self.states, self.logs = list(states), logs
        self.there: list[str] = []
        self._pods: list[dict[str, Any]] = []

    def create(self, job: Mapping[str, Any]) -> None:
        self.there.append(job["metadata"]["name"])

    def job(self, name: str) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise KubectlError("kubectl get: the server is away")
        condition, self._pods = state
        conditions = [{"type": condition, "status": "True", "reason": "R", "message": "M"}] if condition else []
        return {"spec": {"parallelism": 2}, "status": {"conditions": conditions}}

    def pods(self, name: str) -> list[dict[str, Any]]:
        return self._pods

    def log(self, pod: str, container: str) -> str:
        assert container == "test"
        if pod not in self.logs:
            raise KubectlError(f"kubectl logs: {pod} has none")
        return self.logs[pod]

    def delete(self, name: str) -> None:
        self.there.remove(name)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "POLL_SECONDS", 0.0)


def ran(cluster: Cluster, folder: Path, start_seconds: float = 60.0) -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    status = run_job(cluster, made(folder, "test"), start_seconds, out, errors)
    assert cluster.there == [], "it is removed, however it ended"
    return status, out.getvalue(), errors.getvalue()


RUNNING = ("", [pod("b", "Running", 1), pod("a", "Running")])
DONE = ("Complete", [pod("b", "Succeeded", 1), pod("a", "Succeeded")])


def test_what_the_first_pod_printed_is_printed(tmp_path: Path) -> None:
    cluster = Cluster(("", []), None, RUNNING, DONE, logs={"a": "busbw 120\n", "b": "nothing\n"})
    assert ran(cluster, tmp_path) == (0, "busbw 120\n", "")
    status, out, errors = ran(Cluster(DONE), tmp_path)
    assert (status, out) == (1, "") and "a has none" in errors, "without its log there is no measurement"


def test_one_that_fails_has_the_status_and_the_last_words_of_the_pod_that_did(tmp_path: Path) -> None:
    killed = pod("b", "Failed", 1, terminated={"exitCode": 137, "reason": "OOMKilled"})
    failed = ("Failed", [pod("a", "Running"), killed])
    status, out, errors = ran(Cluster(failed, logs={"b": "loading\nstep 1\n"}), tmp_path)
    assert (status, out) == (137, "") and errors.endswith("b/test ended with status 137, killed: out of memory\n")
    assert "step 1" in errors
    status, _, errors = ran(Cluster(("Failed", [])), tmp_path)
    assert (status, errors) == (1, "laggard: R: M\n"), "as where its deadline passed"


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([], "it has no pod yet"),
        ([pod("a", "Pending", waiting={"reason": "ErrImagePull", "message": "no image"})], "a/test: ErrImagePull no"),
        (
            [{"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "8 GPUs are missing"},
            ]}}],
            "a: Unschedulable 8 GPUs are missing",
        ),
    ],
)  # fmt: skip
def test_one_that_does_not_begin_is_given_up_with_the_reason(
    tmp_path: Path, pods: list[dict[str, Any]], why: str
) -> None:
    status, out, errors = ran(Cluster(("", pods)), tmp_path, start_seconds=0.01)
    assert (status, out) == (1, "") and why in errors


def test_a_server_that_stays_away_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "AWAY_SECONDS", 0.05)
    status, _, errors = ran(Cluster(RUNNING, None), tmp_path)
    assert status == 1 and "the server is away" in errors


def test_a_job_runs_when_all_of_its_pods_do() -> None:
    job = {"spec": {"parallelism": 2}}
    assert not state_of(job, [pod("a", "Running"), pod("b", "Pending", 1)]).runs
    assert state_of(job, [pod("a", "Running"), pod("b", "Running", 1)]).runs
