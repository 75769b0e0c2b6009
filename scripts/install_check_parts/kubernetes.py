"""The install on Kubernetes, from docs/kubernetes.md, on a real control plane. It has no kubelet: what a kubelet would
do with the pods, as the API server holds them (users, capabilities, volumes, environment, arguments), is done here by
systemd in a fresh Debian that is the node and, for each pod, the image."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.control_plane import ControlPlane, missing
from support.helm_command import helm_first

from install_check_parts.fresh_root import FreshRoot
from install_check_parts.site import Site, commands

NODE, ADDRESS = "node1", "127.0.0.1"
_NAMES = "laggard-agents laggard-collector laggard-collector.laggard.svc"
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def check_kubernetes(site: Site) -> None:
    if absent := missing():
        sys.exit(f"install-check: kubernetes: not here: {', '.join(absent)} (KUBE_BIN)")
    folder = site.root.folder.parent / "control-plane"
    folder.mkdir()
    plane = ControlPlane(folder)
    try:
        _apply(site, plane)
        _build_image(site)
        for kind, name in (("daemonset", "agent"), ("deployment", "collector"), ("deployment", "controller")):
            _start_pod(site.root, plane, kind, f"laggard-{name}")
        _first_answers(site, plane)
    finally:
        plane.close()


def _apply(site: Site, plane: ControlPlane) -> None:
    """The page's own commands, by kubectl and Helm, on a cluster as NVIDIA's operator leaves it."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    plane.do("POST", "/apis/node.k8s.io/v1/runtimeclasses", {**runtime, "handler": "nvidia"})
    plane.add_node(NODE, ADDRESS)
    block = commands(site.repository / "docs" / "kubernetes.md", "First answer")[0]
    for line in block.splitlines():
        if line.startswith(("helm ", "kubectl create ", "kubectl label ")):
            print(f"  $ {line}", flush=True)
            _run(site, plane, line)
    plane.wait_until(lambda: _pods(plane, "laggard-agent"))


def _run(site: Site, plane: ControlPlane, line: str) -> str:
    """What a line of the page prints, as the cluster's administrator."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.write_kubeconfig(plane.folder)),
        "PATH": helm_first(plane.folder),
    }
    done = subprocess.run(
        ["bash", "-c", line], cwd=site.repository, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        sys.exit(f"install-check: {line}: {done.stderr}")
    return done.stdout


def _pods(plane: ControlPlane, name: str) -> list[dict[str, Any]]:
    found = plane.do("GET", f"/api/v1/namespaces/laggard/pods?labelSelector=app.kubernetes.io/name={name}")["items"]
    return [pod for pod in found if pod["metadata"].get("deletionTimestamp") is None]


def _build_image(site: Site) -> None:
    """As deploy/container/Containerfile does, whose line this is."""
    text = (site.repository / "deploy" / "container" / "Containerfile").read_text()
    (line,) = (line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN "))
    site.root.run(f"ln -sf /usr/bin/python3 /usr/local/bin/python\n{line}")
    hosts = site.root.folder / "etc" / "hosts"  # in place of the cluster's DNS
    hosts.write_text(f"{hosts.read_text()}{ADDRESS} {_NAMES}\n")


def _start_pod(root: FreshRoot, plane: ControlPlane, kind: str, name: str) -> None:
    if kind == "daemonset":
        spec = _pods(plane, name)[0]["spec"]
    else:
        spec = plane.do("GET", f"/apis/apps/v1/namespaces/laggard/deployments/{name}")["spec"]["template"]["spec"]
    places = {volume["name"]: _place(root, plane, name, volume, spec) for volume in spec.get("volumes", ())}
    if spec.get("automountServiceAccountToken"):
        folder = root.folder / "pods" / name / "token"
        folder.mkdir(parents=True)
        (folder / "token").write_text(plane.service_account_token("laggard", spec["serviceAccountName"]))
        (folder / "ca.crt").write_bytes(Path(plane.ca_file).read_bytes())
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        _name_user(root, *_user(_context(spec, container)))
        first = container in spec.get("initContainers", ()) and container.get("restartPolicy") != "Always"
        words = _unit(name, spec, container, places, plane, first)
        root.run(shlex.join(words))


def _name_user(root: FreshRoot, user: int, group: int) -> None:
    """systemd asks that a user and a group have names, a kubelet does not."""
    root.run(f"getent group {group} || groupadd --gid {group} pod-{group}")
    root.run(f"getent passwd {user} || useradd --uid {user} --gid {group} --no-create-home pod-{user}")


def _user(context: dict[str, Any]) -> tuple[int, int]:
    user = context.get("runAsUser", 0)
    return user, context.get("runAsGroup", user)


def _context(spec: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    return {**spec.get("securityContext", {}), **container.get("securityContext", {})}


def _place(root: FreshRoot, plane: ControlPlane, pod: str, volume: dict[str, Any], spec: dict[str, Any]) -> str:
    """The folder of a volume on the node."""
    if "hostPath" in volume:
        path: str = volume["hostPath"]["path"]
        if volume["hostPath"].get("type") == "DirectoryOrCreate":
            root.run(f"mkdir -p {path}")
        return path
    path = f"/pods/{pod}/{volume['name']}"
    group = spec.get("securityContext", {}).get("fsGroup", 0)
    root.run(f"mkdir -p {path}; chgrp {group} {path}; chmod 2777 {path}")
    if "configMap" in volume:
        data = plane.do("GET", f"/api/v1/namespaces/laggard/configmaps/{volume['configMap']['name']}")["data"]
        for name, text in data.items():
            (root.folder / path.lstrip("/") / name).write_text(text)
    return path


def _unit(
    pod: str, spec: dict[str, Any], container: dict[str, Any], places: dict[str, str], plane: ControlPlane, first: bool
) -> list[str]:
    """The command of systemd that runs the container as its kubelet would."""
    context = _context(spec, container)
    powers = " ".join(f"CAP_{power}" for power in context["capabilities"].get("add", ()))
    user, group = _user(context)
    settings = [f"User={user}", f"Group={group}", f"CapabilityBoundingSet={powers}", f"AmbientCapabilities={powers}"]
    settings += ["NoNewPrivileges=yes", "ProtectSystem=strict"]
    if spec.get("automountServiceAccountToken"):
        settings.append(f"BindReadOnlyPaths=/pods/{pod}/token:{_TOKEN}")
    for mount in container.get("volumeMounts", ()):
        bind = "BindReadOnlyPaths" if mount.get("readOnly") else "BindPaths"
        settings.append(f"{bind}={places[mount['name']]}:{mount['mountPath']}")
        if not mount.get("readOnly"):
            settings.append(f"ReadWritePaths={mount['mountPath']}")
    server = plane.url.rpartition(":")
    environment = {"PATH": "/opt/laggard/bin:/usr/bin:/bin", "KUBERNETES_SERVICE_HOST": ADDRESS,
                   "KUBERNETES_SERVICE_PORT": server[2]}  # fmt: skip
    for entry in container.get("env", ()):
        environment[entry["name"]] = entry.get("value", NODE)  # the rest are the node's name
    words = ["systemd-run", "--quiet", f"--unit=laggard-pod-{container['name']}", *(["--wait"] if first else [])]
    words += [f"--property={it}" for it in settings] + [f"--setenv={key}={value}" for key, value in environment.items()]
    return [*words, "/usr/bin/env", *(container.get("command") or ["laggard"]), *container.get("args", ())]


def _first_answers(site: Site, plane: ControlPlane) -> None:
    site.show("curl -sf localhost:19400/-/ready", "ready")
    site.show('laggard() { /opt/laggard/bin/laggard "$@"; }; laggard locate || true', " ")
    site.train()
    site.wait_for_culprit()
    line = [it for it in commands(site.repository / "docs" / "kubernetes.md", "First answer")[0].splitlines()
            if it.startswith("kubectl get nodes")][0]  # fmt: skip
    plane.wait_until(lambda: (plane.condition(NODE) or {}).get("reason") not in (None, "AgentSilent"))
    told = _run(site, plane, line)
    print(f"  $ {line}\n{told}", flush=True)
    if NODE not in told or "<none>" in told:
        sys.exit("install-check: the node has no condition")
