"""A stand-in for scheduler and kubelet, beside a real control plane: it binds the pods of Jobs to one node, runs their
first container's command as a process of this machine, without any container, writes the pods' states, and serves their
logs to the API server as a kubelet does."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from support.control_plane import STRATEGIC, ControlPlane

NODE = "stand-in"
PODS = "/api/v1/namespaces/default/pods"


class Kubelet:
    """From __enter__ to __exit__."""

    def __init__(self, plane: ControlPlane, folder: Path, environ: dict[str, str]) -> None:
        self._plane, self._folder, self._environ = plane, folder, environ
        self.logs: dict[str, Path] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ends = threading.Event()
        self._server = _server(self)

    def __enter__(self) -> Kubelet:
        self._plane.add_node(NODE)
        port = {"kubeletEndpoint": {"Port": self._server.server_address[1]}}
        self._plane.do("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"daemonEndpoints": port}}, STRATEGIC)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._look_for_ever, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for process in self._running.values():
            process.kill()
            process.wait()

    def _look_for_ever(self) -> None:
        while not self._ends.wait(0.1):
            for pod in self._plane.do("GET", f"{PODS}?labelSelector=job-name")["items"]:
                self._look(pod["metadata"]["name"], pod)

    def _look(self, name: str, pod: dict[str, Any]) -> None:
        process = self._running.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if process is not None:
                process.kill()
                process.wait()
            self._plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        elif "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self._plane.request("POST", f"{PODS}/{name}/binding", body)
        elif process is None:
            self._start(name, pod["spec"]["containers"][0])
        elif pod["status"]["phase"] == "Running" and (status := process.poll()) is not None:
            state = {"terminated": {"exitCode": status % 256, "reason": "Completed" if status == 0 else "Error"}}
            self._tell(name, pod["spec"]["containers"][0]["name"], "Failed" if status else "Succeeded", state)

    def _start(self, name: str, container: dict[str, Any]) -> None:
        self.logs[name] = self._folder / name
        environ = {**self._environ, **{it["name"]: it.get("value", "") for it in container.get("env", ())}}
        with self.logs[name].open("wb") as log:
            self._running[name] = subprocess.Popen(container["command"], env=environ, stdout=log, stderr=log)
        self._tell(name, container["name"], "Running", {"running": {}})

    def _tell(self, pod: str, container: str, phase: str, state: dict[str, Any]) -> None:
        each = {"name": container, "state": state, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
        ended = phase in ("Succeeded", "Failed")
        conditions = [{"type": "Ready", "status": "False", "reason": "PodCompleted" if ended else "Starting"}]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [each]}
        self._plane.request("PATCH", f"{PODS}/{pod}/status", {"status": status}, kind=STRATEGIC)


def _server(kubelet: Kubelet) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, what, _, pod, *_ = self.path.partition("?")[0].split("/")
            body = b""
            with contextlib.suppress(KeyError, OSError):
                body = kubelet.logs[pod].read_bytes()
            self.send_response(200 if what == "containerLogs" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def path_alone() -> dict[str, str]:
    """The environment of a process that has the image's PATH alone."""
    return {"PATH": os.environ["PATH"]}
