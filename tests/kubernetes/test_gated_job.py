"""deploy/kubernetes/examples/gated-job.yaml: the gate's own script, and what the real Job controller makes of its exit
status."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support.paths import REPOSITORY
from support.ports import free_port

GATED_JOB = REPOSITORY / "deploy/kubernetes/examples/gated-job.yaml"
COLLECTOR = "http://laggard-collector.laggard.svc:19401"


def gate_container() -> dict[str, Any]:
    container: dict[str, Any] = yaml.safe_load(GATED_JOB.read_text())["spec"]["template"]["spec"]["initContainers"][0]
    return container


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run_gate(
    container: dict[str, Any], folder: Path, collector: str = COLLECTOR, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The init container's own command, with `laggard` from `folder` and the message for the kubelet in it."""
    message = folder / "termination-log"
    message.write_text("")
    places = {COLLECTOR: collector, "/dev/termination-log": str(message)}
    command = [*container["command"], *container["args"]]
    for place, other in places.items():
        assert place in command[-1]
        command[-1] = command[-1].replace(place, other)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "LAGGARD_GATE": "on", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("script", ["exit 1", "echo 'Traceback: gate: reject' >&2; exit 1", "exit 127"])
def test_a_gate_that_breaks_passes_the_node(script: str, tmp_path: Path) -> None:
    executable(tmp_path / "laggard", script)
    assert run_gate(gate_container(), tmp_path).returncode == 0


def test_a_gate_that_no_collector_answers_says_so_where_kubectl_shows_it(tmp_path: Path) -> None:
    """A network policy that does not let the job's namespace in is the usual cause: the gate then rejects no node."""
    (tmp_path / "laggard").symlink_to(Path(sys.executable).parent / "laggard")
    away = f"http://127.0.0.1:{free_port()}"
    done = run_gate(gate_container(), tmp_path, away, LAGGARD_NODE="n1")
    assert done.returncode == 0, done.stdout
    assert f"gate: WRONG SETUP: the collector {away} does not answer" in done.stdout
    assert "SLURM" not in done.stdout
    assert (tmp_path / "termination-log").read_text() == done.stdout


@pytest.mark.parametrize(
    ("ignore", "gate", "status"),
    [(None, "on", 1), ("", "on", 1), ("false", "on", 1), ("False", "on", 1), ("true", "on", 0), ("yes", "on", 0)]
    + [(None, "off", 0)],
)
def test_a_pod_that_is_annotated_is_not_gated(ignore: str | None, gate: str, status: int, tmp_path: Path) -> None:
    """The init container's own script, on a node that the gate rejects. The kubelet gives an annotation that is absent
    as an empty variable."""
    from laggard.kubernetes.node import OPT_OUT, ApiNode

    pod = yaml.safe_load(GATED_JOB.read_text())["spec"]["template"]
    container = gate_container()
    fields = {it["name"]: it["valueFrom"]["fieldRef"]["fieldPath"] for it in container["env"] if "valueFrom" in it}
    assert (
        fields["LAGGARD_IGNORE"] == f"metadata.annotations['{OPT_OUT}']" and OPT_OUT in pod["metadata"]["annotations"]
    )
    stand_in = executable(tmp_path / "laggard", "echo 'laggard: fail'; echo 'gate: reject'; exit 1")
    done = run_gate(container, stand_in.parent, LAGGARD_GATE=gate, LAGGARD_IGNORE=ignore or "")
    assert done.returncode == status, done.stderr
    if gate == "on":
        assert ("laggard/ignore" in done.stdout) == (status == 0), "the pod's log says why nothing was asked"
        annotations = {} if ignore is None else {OPT_OUT: ignore}
        node = msgspec.convert({"metadata": {"name": "n", "annotations": annotations}}, ApiNode).node()
        assert node.opted_out == (status == 0), "as on nodes"
