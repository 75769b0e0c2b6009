"""A node with a real kubelet and a real containerd, in the network of this process, beside a real control plane.

Only what a node shares with nothing else is this machine's own: kernel, processes, control groups. Mounts are those of
this process: /run, /var/log and the folders that laggard keeps on a host are empty here, and gone afterwards. The
kubelet sets some settings of the kernel; they get back what they had.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.control_plane import ControlPlane, missing, program

from install_check_parts.services import NAMES_ADDRESS, Services

NODE, ADDRESS = "node1", "10.89.0.1"
PODS = "10.88.0.0/24"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
OTHERS = ("containerd", "runc", "kubectl", "ip", "iptables")
CNI = Path("/usr/lib/cni")
PAUSE = "laggard.test/pause:1"
PATIENCE_SECONDS = 180.0
# What a kubelet sets for itself, whatever its own configuration says.
_KERNEL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
           "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")  # fmt: skip
_EMPTY = ("/run", "/var/log", "/var/lib/laggard", "/etc/laggard")

_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    snapshotter = "overlayfs"
"""
_RUNTIME = """\
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
"""


def absent() -> list[str]:
    """The programs that are not here."""
    found = [*missing(PROGRAMS), *(name for name in OTHERS if shutil.which(name) is None)]
    return found if (CNI / "bridge").exists() else [*found, "containernetworking-plugins"]


class Node:
    """`images`: archives that containerd is given. To be made in a network and among mounts of its own (`enter`)."""

    def __init__(self, folder: Path, images: list[Path]) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._kernel = {name: Path("/proc/sys", name).read_text() for name in _KERNEL}
        self._mount()
        self._make_network()
        plane = folder / "control-plane"
        plane.mkdir()
        self.plane = ControlPlane(plane, ADDRESS)
        self.kubeconfig = self.plane.write_kubeconfig(folder)
        self._services = Services(self.plane)
        try:
            self._start_containerd(images)
            self._start_kubelet()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _mount(self) -> None:
        """A view of this machine in which /sys is the new network's, and control groups are of one kind alone."""
        _run("mount", "--make-rprivate", "/")
        kept = self.folder / "cgroup"
        kept.mkdir()
        _run("mount", "--rbind", "/sys/fs/cgroup", kept)
        _run("mount", "-t", "sysfs", "sysfs", "/sys")
        _run("mount", "--move", kept, "/sys/fs/cgroup")
        if os.path.ismount("/sys/fs/cgroup/unified"):
            _run("umount", "/sys/fs/cgroup/unified")
        for path in _EMPTY:
            Path(path).mkdir(exist_ok=True)
            _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
        _run("mount", "--make-rshared", "/")  # as a kubelet expects it

    def _make_network(self) -> None:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "node", "type", "veth", "peer", "name", "outside")
        for address in (f"{ADDRESS}/24", f"{NAMES_ADDRESS}/32"):
            _run("ip", "address", "add", address, "dev", "node")
        for name in ("outside", "node"):
            _run("ip", "link", "set", name, "up")
        _run("ip", "route", "add", "default", "dev", "node")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        cni = self.folder / "cni"
        cni.mkdir()
        addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
                     "dataDir": str(self.folder / "addresses")}  # fmt: skip
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}
        plugins = [bridge, {"type": "loopback"}]
        (cni / "pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}))

    def _start_containerd(self, images: list[Path]) -> None:
        config = self.folder / "containerd.toml"
        text = _CONTAINERD.format(folder=self.folder, pause=PAUSE, cni=CNI)
        # Without a GPU the class `nvidia` stands for the usual runtime.
        config.write_text(text + "".join(_RUNTIME.format(name=name) for name in ("runc", "nvidia")))
        self._start("containerd", "containerd", "--config", config)
        self._wait(lambda: self.ctr("version", check=False).returncode == 0, "containerd")
        for path in images:
            self.ctr("images", "import", path)

    def _start_kubelet(self) -> None:
        folder = self.folder / "kubelet"
        folder.mkdir()
        (folder / "resolv.conf").write_text("")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},  # this network has nobody else
            "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False,
            "clusterDNS": [NAMES_ADDRESS], "clusterDomain": "cluster.local",
            "resolvConf": str(folder / "resolv.conf"), "volumePluginDir": str(folder / "plugins"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "0%"}, "imageGCHighThresholdPercent": 100,
        }  # fmt: skip
        (folder / "config.yaml").write_text(json.dumps(config))
        self._start("kubelet", program("kubelet", self.folder), "--config", folder / "config.yaml",
                    "--root-dir", folder, "--kubeconfig", self.kubeconfig, "--node-ip", ADDRESS,
                    "--hostname-override", NODE, "--node-labels", "nvidia.com/gpu.present=true")  # fmt: skip
        self._wait(lambda: (self.plane.condition(NODE, "Ready") or {}).get("status") == "True", "kubelet")

    def _start(self, name: str, *words: object) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [str(word) for word in words]
            self._processes.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log))

    def _wait(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(AssertionError):  # the node is not there yet
                if condition():
                    return
            if time.monotonic() > deadline or any(it.poll() is not None for it in self._processes):
                sys.exit(f"install-check: no {what}: {(self.folder / f'{what}.log').read_text()[-3000:]}")
            time.sleep(0.3)

    def ctr(self, *words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        address = "--address=/run/containerd/containerd.sock"
        command = ["ctr", address, "--namespace=k8s.io", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if check and done.returncode:
            sys.exit(f"install-check: {command}: {done.stderr}")
        return done

    def close(self) -> None:
        """Ends what runs here, pods as well. What is mounted elsewhere goes with the process."""
        self._services.close()
        for process in reversed(self._processes):
            if process.args[0] != "containerd":  # type: ignore[index]
                _end(process)
        for name in self.ctr("tasks", "list", "--quiet", check=False).stdout.split():
            self.ctr("tasks", "kill", "--signal=KILL", name, check=False)
        time.sleep(1)
        for name in self.ctr("containers", "list", "--quiet", check=False).stdout.split():
            self.ctr("tasks", "delete", "--force", name, check=False)
        for process in self._processes:
            _end(process)
        self.plane.close()
        _unmount_below(self.folder)  # volumes of pods
        for name, value in self._kernel.items():
            Path("/proc/sys", name).write_text(value)
        _remove_groups()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _unmount_below(folder: Path) -> None:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((it for it in points if it.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point])


def _remove_groups() -> None:
    """The control groups of pods, deepest first; those that still have a process stay."""
    for root in Path("/sys/fs/cgroup").glob("*/kubepods"):
        folders = sorted((path for path in root.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for folder in (*folders, root):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)
