"""deploy/kubernetes under a real kubelet, which runs the image's containers by containerd on this machine.

What stands in for others: a program of ours for kube-proxy and CoreDNS (services.py), the usual runtime under NVIDIA's
name, and a count of GPUs that an administrator wrote on the node. No network policy is enforced. GPUs there are none,
so that NVIDIA's overlay finds the node unfit, as it should.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from install_check_parts.image import Store
from install_check_parts.node import NODE, PAUSE, Node
from install_check_parts.site import SLOW_RANK
from laggard.kubernetes.events import COMPONENT

IMAGE = "registry.example.org/laggard:0.1.0"
PATIENCE_SECONDS = 240.0
FULL = Path("/run/scratch")
_TRAINER = 1000
_TRAIN = f"""\
exec /opt/laggard/bin/python -m torch.distributed.run --no-python --nproc-per-node 3 sh -c '
    exec laggard run /bench/trainings/verdict_job.py ddp /tmp $([ $RANK = {SLOW_RANK} ] && echo 0.2 || echo 0.05)'
"""


def check_kubelet(repository: Path, archive: Path, fetched: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="laggard-kubelet-") as name:
        folder = Path(name)
        with Store(folder) as store:
            store.make_base(archive, fetched)
            store.build(repository, fetched)
            images = [store.save(IMAGE, folder / "laggard.tar"), store.save_pause(PAUSE, folder / "pause.tar")]
        (folder / "node").mkdir()
        with Node(folder / "node", images) as node:
            _Check(repository, folder, node).run()


class _Check:
    def __init__(self, repository: Path, folder: Path, node: Node) -> None:
        self._repository, self._folder, self._node = repository, folder, node

    def run(self) -> None:
        self._say(self._kubectl("get", "nodes", "-o", "wide").splitlines()[-1])
        self._pods_start()
        self._bare_and_inside_agree()
        self._slow_rank_is_named()
        self._everything_restarts_while_it_trains()
        self._agent_that_hangs_is_started_again()
        self._unfit_node_is_tainted_and_its_jobs_are_rejected()
        self._fit_node_loses_its_taint()
        self._away_again()

    def _pods_start(self) -> None:
        """Without NVIDIA's part, since there is no GPU."""
        self._apply("fit", components=["controller"])
        self._await_condition("True", "Healthy")
        self._say(f"{self._kubectl('-n', 'laggard', 'get', 'pods', '--no-headers')}")

    def _bare_and_inside_agree(self) -> None:
        words = ["healthcheck", "--no-agent", "--format", "json"]
        inside = self._verdicts(self._in_agent("laggard", *words))
        own = [sys.executable, "-m", "laggard", *words]
        bare = self._verdicts(subprocess.run(own, capture_output=True, text=True, timeout=300).stdout)
        differ = {
            name: (bare.get(name), inside.get(name)) for name in bare | inside if bare.get(name) != inside.get(name)
        }
        self._say(f"probes that differ between the bare machine and the agent's container: {sorted(differ) or 'none'}")
        if differ:
            sys.exit(f"install-check: kubelet: {differ}")

    @staticmethod
    def _verdicts(report: str) -> dict[str, str]:
        return {probe["name"]: probe["verdict"] for probe in json.loads(report)["probes"]}

    def _slow_rank_is_named(self) -> None:
        """Of a pod of another user than root, whose processes laggard's reader may read, too."""
        self._create(_training(self._repository))
        self._await_culprit()
        pids = subprocess.run(["pgrep", "-u", str(_TRAINER), "-f", "verdict_job.py"], capture_output=True, text=True)
        pid = pids.stdout.split()[-1]
        code = f"from laggard.probes.host.reader import ask; print(ask('sockets {pid}').decode())"
        self._say(f"sockets of process {pid}: {self._in_agent('python', '-c', code).strip()[:80]}")

    def _everything_restarts_while_it_trains(self) -> None:
        kinds = ("daemonset/laggard-agent", "deployment/laggard-collector", "deployment/laggard-controller")
        self._kubectl("-n", "laggard", "rollout", "restart", *kinds)
        for kind in kinds:
            self._kubectl("-n", "laggard", "rollout", "status", kind, "--timeout=200s")
        self._await_culprit()

    def _agent_that_hangs_is_started_again(self) -> None:
        pattern = "laggard agent --config /etc/laggard/agent.yaml"
        (pid,) = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True).stdout.split()
        began = time.monotonic()
        os.kill(int(pid), signal.SIGSTOP)
        self._await("the agent started again", lambda: self._restarts() == 1)
        self._say(f"an agent that hangs was started again after {time.monotonic() - began:.0f} s")
        self._await_condition("True", "Healthy")

    def _restarts(self) -> int:
        (pod,) = self._pods("laggard", "app.kubernetes.io/name=laggard-agent")
        return int(next(it["restartCount"] for it in pod["status"]["containerStatuses"] if it["name"] == "agent"))

    def _unfit_node_is_tainted_and_its_jobs_are_rejected(self) -> None:
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        self._create({**runtime, "handler": "nvidia"})
        self._apply("unfit", components=["nvidia", "controller", "taint"])
        self._await_condition("False", "GPU_MISSING")
        self._await("the taint", lambda: "laggard/unhealthy" in self._node.plane.taints(NODE))
        self._say(f"tainted: {self._node.plane.taints(NODE)}")
        patch = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "8"}]
        self._kubectl("patch", "node", NODE, "--subresource=status", "--type=json", "-p", json.dumps(patch))
        with _full_disk():
            self._create(_gated_job(self._repository))
            self._await("two pods that the gate rejected", lambda: len(self._rejected()) >= 2)
            failed = self._node.plane.do("GET", "/apis/batch/v1/namespaces/default/jobs/gated-training")["status"]
            said = self._rejected()[0]["message"].strip().replace("\n", "; ")
            self._say(f"the gate: {said}; tries lost: {failed.get('failed', 0)}")
            if failed.get("failed", 0):
                sys.exit("install-check: kubelet: a rejected node costs the job a try")
        self._await("the gated job's end", lambda: self._ended("gated-training"))

    def _rejected(self) -> list[Any]:
        pods = self._pods("default", "batch.kubernetes.io/job-name=gated-training")
        gates = [
            it["status"]["initContainerStatuses"][0]["state"] for it in pods if "initContainerStatuses" in it["status"]
        ]
        return [it["terminated"] for it in gates if it.get("terminated", {}).get("exitCode") == 1]

    def _ended(self, job: str) -> bool:
        status = self._node.plane.do("GET", f"/apis/batch/v1/namespaces/default/jobs/{job}")["status"]
        return bool(status.get("succeeded"))

    def _fit_node_loses_its_taint(self) -> None:
        self._apply("fit-again", components=["controller", "taint"])
        self._await_condition("True", "Healthy")
        self._await("no taint", lambda: not self._node.plane.taints(NODE))
        events = self._node.plane.do("GET", "/api/v1/namespaces/default/events")["items"]
        reasons = [it["reason"] for it in events if it["source"].get("component") == COMPONENT]
        self._say(f"events: {', '.join(reasons)}")
        if not {"GPU_MISSING", "Tainted", "TaintRemoved", "Healthy"} <= set(reasons):
            sys.exit("install-check: kubelet: an event is missing")

    def _away_again(self) -> None:
        self._kubectl("annotate", "nodes", "--all", "--overwrite", "laggard/ignore=true")
        self._await("no condition", lambda: self._node.plane.condition(NODE) is None)
        self._kubectl("delete", "-k", self._folder / "fit-again", "--timeout=200s")
        self._say("away again")

    def _apply(self, name: str, components: list[str]) -> None:
        """The base with these components, and a controller that is quicker with taints than a site's."""
        base = self._folder / f"{name}-base"
        for folder in (base, self._folder / name):
            folder.mkdir()
        deploy = os.path.relpath(self._repository / "deploy" / "kubernetes", base.resolve())
        image, _, tag = IMAGE.rpartition(":")
        text = {"resources": [f"{deploy}/base"], "components": [f"{deploy}/components/{it}" for it in components],
                "images": [{"name": "laggard", "newName": image, "newTag": tag}]}  # fmt: skip
        (base / "kustomization.yaml").write_text(yaml.safe_dump(text))
        quick: dict[str, Any] = {"resources": [f"../{base.name}"]}
        if "taint" in components:
            own = self._repository / "deploy/kubernetes/components/taint/config/controller.yaml"
            settings = {**yaml.safe_load(own.read_text()), "failing_seconds": 20, "healthy_seconds": 20}
            (self._folder / name / "controller.yaml").write_text(yaml.safe_dump(settings))
            changed = {"name": "laggard-controller", "namespace": "laggard", "behavior": "merge"}
            quick["configMapGenerator"] = [{**changed, "files": ["controller.yaml"]}]
        (self._folder / name / "kustomization.yaml").write_text(yaml.safe_dump(quick))
        self._kubectl("apply", "-k", self._folder / name)
        self._kubectl("-n", "laggard", "rollout", "status", "daemonset/laggard-agent", "--timeout=200s")

    def _await_condition(self, status: str, reason: str) -> None:
        def holds() -> bool:
            condition = self._node.plane.condition(NODE) or {}
            return (condition.get("status"), condition.get("reason")) == (status, reason)

        self._await(f"the condition {status} {reason}", holds)
        self._say(f"LaggardHealthy {status}: {self._node.plane.condition(NODE)['message'][:120]}")

    def _await_culprit(self) -> None:
        locate = ("-n", "laggard", "exec", "deploy/laggard-collector", "--", "laggard", "locate")

        def named() -> bool:
            return f"Rank {SLOW_RANK} on {NODE} is slow" in self._kubectl(*locate, check=False)

        self._await("the slow rank", named)
        self._say(self._kubectl(*locate, check=False).splitlines()[0])

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                pods = self._kubectl("get", "pods", "-A", check=False)
                events = self._kubectl("get", "events", "-A", check=False)
                sys.exit(f"install-check: kubelet: not in time: {what}\n{pods}\n{events[-3000:]}")
            time.sleep(1)

    def _in_agent(self, *words: str) -> str:
        command = ["-n", "laggard", "exec", "daemonset/laggard-agent", "-c", "agent", "--", *words]
        return self._kubectl(*command, check=False)

    def _pods(self, namespace: str, selector: str) -> list[Any]:
        found = self._node.plane.do("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return [pod for pod in found if pod["metadata"].get("deletionTimestamp") is None]

    def _create(self, item: dict[str, Any]) -> None:
        path = self._folder / f"{item['kind']}.yaml"
        path.write_text(yaml.safe_dump(item))
        self._kubectl("create", "-f", path)

    def _kubectl(self, *words: object, check: bool = True) -> str:
        command = ["kubectl", f"--kubeconfig={self._node.kubeconfig}", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if check and done.returncode:
            sys.exit(f"install-check: kubelet: {shlex.join(command)}: {done.stderr}")
        return done.stdout

    def _say(self, text: str) -> None:
        print("\n".join(f"  {line}" for line in text.splitlines()), flush=True)


def _training(repository: Path) -> dict[str, Any]:
    """A job of docs/kubernetes.md's kind: torch is this repository's own, for the same Python as the image's."""
    (torch,) = (repository / ".venv" / "lib").glob("python3.*/site-packages")
    places = {"ranks": ("/run/laggard/ranks", "/run/laggard/ranks"), "torch": (torch, "/torch"),
              "bench": (repository / "bench", "/bench")}  # fmt: skip
    container = {
        "name": "train", "image": IMAGE, "command": ["sh", "-c", _TRAIN],
        "env": [
            {"name": "LAGGARD_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "PYTHONPATH", "value": "/torch"}, {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"},
        ],
        "volumeMounts": [{"name": name, "mountPath": inside} for name, (_, inside) in places.items()],
    }  # fmt: skip
    volumes = [
        {"name": name, "hostPath": {"path": str(path), "type": "Directory"}} for name, (path, _) in places.items()
    ]
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes,
           "securityContext": {"runAsUser": _TRAINER, "runAsGroup": _TRAINER}}  # fmt: skip
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "default"}}
    return {**job, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}


def _gated_job(repository: Path) -> dict[str, Any]:
    """The example, for one pod, that tolerates the taint: else it would not come to this node at all."""
    job: dict[str, Any] = yaml.safe_load((repository / "deploy/kubernetes/examples/gated-job.yaml").read_text())
    job["spec"].update(completions=1, parallelism=1)
    pod = job["spec"]["template"]["spec"]
    pod["tolerations"] = [{"key": "laggard/unhealthy", "operator": "Exists"}]
    gate, train = pod["initContainers"][0], pod["containers"][0]
    gate["image"] = train["image"] = IMAGE
    train["command"] = ["echo", "trained"]
    gate["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    pod["volumes"].append({"name": "scratch", "hostPath": {"path": str(FULL), "type": "Directory"}})
    return job


@contextmanager
def _full_disk() -> Iterator[None]:
    """A small file system of the node without room, which the gate will judge; empty afterwards."""
    FULL.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", FULL], check=True)
    (FULL / "file").write_bytes(bytes(8150 << 10))
    yield
    (FULL / "file").unlink()
