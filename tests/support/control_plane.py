"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, with RBAC, admission and
server-side validation. There is no kubelet and no scheduler: nodes are objects that a test makes, no container runs.

The programs are looked for in the folder that KUBE_BIN names, packed (kube-apiserver.xz) or not, and in PATH.
"""

import contextlib
import lzma
import os
import secrets
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from support.paths import SHARED
from support.ports import free_ports
from support.waiting import wait_for

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
HOW = (
    "a real control plane: put kube-apiserver and kube-controller-manager (any of 1.30 and newer, as built from their "
    "source or taken from a distribution) into a folder, name it in KUBE_BIN, and install etcd (apt: etcd-server)"
)
PATIENCE_SECONDS = 180.0
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


def missing(programs: tuple[str, ...] = PROGRAMS) -> list[str]:
    """The programs that are not here."""
    return [name for name in programs if not _find(name)]


def _find(name: str) -> Path | None:
    folder = Path(os.environ.get("KUBE_BIN") or SHARED / "lab" / "kubernetes")
    for path in (folder / name, folder / f"{name}.xz"):
        if path.is_file():
            return path
    found = shutil.which(name)
    return Path(found) if found else None


def program(name: str, folder: Path) -> str:
    """The path of the program, which is unpacked into `folder` if need be."""
    path = _find(name)
    assert path is not None
    if path.suffix != ".xz":
        return str(path)
    unpacked = folder / name
    with lzma.open(path) as packed, unpacked.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    unpacked.chmod(0o755)
    return str(unpacked)


class ControlPlane:
    """`request` asks as the cluster's administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        etcd, peer, secure, manager = free_ports(4)
        self.url = f"https://127.0.0.1:{secure}"
        self.ca_file = folder / "certs" / "apiserver.crt"
        self._token = secrets.token_hex(16)
        subprocess.run(["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=folder, capture_output=True, check=True)
        (folder / "tokens.csv").write_text(f"{self._token},admin,1,system:masters\n")
        (folder / "tokens.csv").chmod(0o600)
        try:
            self._start_etcd(etcd, peer)
            self._start_api_server(etcd, secure)
            self._client = self._wait_until_ready()
            self._start_controller_manager(manager)
        except BaseException:
            self.close()
            raise

    def write_kubeconfig(self, folder: Path) -> Path:
        """A file with which kubectl asks as the administrator."""
        config = folder / "kubeconfig"
        config.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            f'clusters: [{{name: c, cluster: {{server: "{self.url}", certificate-authority: "{self.ca_file}"}}}}]\n'
            f'users: [{{name: u, user: {{token: "{self._token}"}}}}]\n'
            "contexts: [{name: x, context: {cluster: c, user: u}}]\n"
        )
        config.chmod(0o600)
        return config

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._client.close()
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def request(self, method: str, path: str, body: Any = None, token: str = "", kind: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self._token}", "Content-Type": kind or "application/json"}
        return self._client.request(method, path, json=body, headers=headers)

    def do(self, method: str, path: str, body: Any = None, kind: str = "") -> Any:
        """As request(), for what must be done."""
        answer = self.request(method, path, body, kind=kind)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()

    def service_account_token(self, namespace: str, name: str) -> str:
        """As the kubelet gets it for a pod."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.do("POST", path, body)["status"]["token"]
        return token

    def add_node(self, name: str, address: str = "127.0.0.1", **metadata: Any) -> None:
        """A node as its kubelet registers it: Ready, with an address."""
        labels = {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels, **metadata}}
        self.do("POST", "/api/v1/nodes", node)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"conditions": [ready], "addresses": [{"type": "InternalIP", "address": address}]}
        self.do("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC)

    def node(self, name: str) -> Any:
        return self.do("GET", f"/api/v1/nodes/{name}")

    def condition(self, name: str, kind: str = "LaggardHealthy") -> Any:
        conditions = self.node(name)["status"].get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), None)

    def taints(self, name: str) -> dict[str, str]:
        """Key and effect of each."""
        return {each["key"]: each["effect"] for each in self.node(name)["spec"].get("taints", ())}

    def wait_until(self, condition: Any) -> None:
        wait_for(condition, lambda: "the control plane did not get there in time")

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [program(name, self.folder), *words]
            self._processes.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log))

    def _start_etcd(self, port: int, peer: int) -> None:
        here = f"http://127.0.0.1:{port}"
        urls = ("--listen-client-urls", here, "--advertise-client-urls", here)
        self._start("etcd", "--data-dir", "etcd-data", *urls, "--listen-peer-urls", f"http://127.0.0.1:{peer}")

    def _start_api_server(self, etcd: int, port: int) -> None:
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            # 192.0.2.1 is of RFC 5737: a machine may have no route, and loopback is refused here.
            "--advertise-address=192.0.2.1",
            "--cert-dir=certs",
            "--service-account-key-file=sa.key",
            "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--token-auth-file=tokens.csv",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--kubelet-preferred-address-types=InternalIP",
        )

    def _start_controller_manager(self, port: int) -> None:
        config = self.folder / "admin.kubeconfig"
        config.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            f'clusters: [{{name: c, cluster: {{server: "{self.url}", insecure-skip-tls-verify: true}}}}]\n'
            f'users: [{{name: u, user: {{token: "{self._token}"}}}}]\n'
            "contexts: [{name: x, context: {cluster: c, user: u}}]\n"
        )
        config.chmod(0o600)
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={config}",
            "--service-account-private-key-file=sa.key",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",
            # Nodes without a kubelet would be called unreachable.
            "--controllers=*,-node-lifecycle-controller",
            f"--root-ca-file={self.ca_file}",
        )

    def _wait_until_ready(self) -> httpx.Client:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            assert all(process.poll() is None for process in self._processes), self._last_words()
            with contextlib.suppress(httpx.HTTPError, OSError):
                client = httpx.Client(
                    base_url=self.url,
                    verify=ssl.create_default_context(cafile=self.ca_file),
                    timeout=PATIENCE_SECONDS,
                    trust_env=False,
                )
                if client.get("/readyz", headers={"Authorization": f"Bearer {self._token}"}).is_success:
                    return client
                client.close()
            time.sleep(0.2)
        raise AssertionError(f"no control plane: {self._last_words()}")

    def _last_words(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(folder)
    try:
        yield plane
    finally:
        plane.close()
