"""The confinement of this process to some of the node's GPUs: NVML leaves out, or fails for, those that a cgroup
forbids, and nothing tells them from faulty ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from laggard.probes.errors import NotFound, Unknown
from laggard.probes.gpu.model.pci_devices import find_nvidia_devices, gpu_files
from laggard.probes.host.host import Host

_MARKERS: Final = ("/.dockerenv", "/run/.containerenv")  # of Docker and of Podman
_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in every container


def why_confined(host: Host) -> str:
    """Returns why not all GPUs may be shown here; empty where nothing confines this process. SLURM's prologs and
    epilogs run outside of the job's cgroup."""
    environ = _environ(host)
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible not in ("", "void", "all"):
        return "this container was given only some (NVIDIA_VISIBLE_DEVICES)"
    script = environ.get("SLURM_SCRIPT_CONTEXT", "")
    if "SLURM_JOB_ID" in environ and not script.startswith(("prolog", "epilog")):
        return "this process runs in a SLURM job, which may be given only some"
    container = _container(host, environ)
    if not container or (visible == "all" and _KUBERNETES not in environ) or _has_all_device_files(host):
        return ""
    return f"this process runs in {container}, which may be given only some"


def _container(host: Host, environ: Mapping[str, str]) -> str:
    """Returns what kind of container this is; empty for none. The Container Device Interface sets
    NVIDIA_VISIBLE_DEVICES=void, whatever GPUs it gives; containerd leaves no marker, but outside of a container, where
    all processes can be seen, process 2 is kthreadd, a thread of the kernel."""
    if _KUBERNETES in environ:
        return "a container of Kubernetes"
    if environ.get("NVIDIA_VISIBLE_DEVICES") == "void" or any(_exists(host, path) for path in _MARKERS):
        return "a container"
    try:
        return "" if host.read("/proc/2/comm").strip() == "kthreadd" else "a container"
    except NotFound:
        return "a container" if _exists(host, "/proc/1/comm") else ""
    except Unknown:
        return ""


def _has_all_device_files(host: Host) -> bool:
    """Returns whether there is a /dev/nvidiaN for each GPU of the PCI tree: then the container was given all."""
    pci = find_nvidia_devices(host)
    return pci.shown and len(gpu_files(host)) >= len(pci.gpus)


def _exists(host: Host, path: str) -> bool:
    try:
        host.read_bytes(path)
    except NotFound:
        return False
    except Unknown:
        return True
    return True


def _environ(host: Host) -> Mapping[str, str]:
    try:
        return host.environ()
    except NotFound:
        return {}
