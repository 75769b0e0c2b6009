"""What others' default rules say of the same machines.

NHC: mej/nhc@9c4a38c0. `nhc.conf`, the example that it installs, tests six things; of those a machine here can differ in
check_hw_mem_free 1mb (MemFree + Buffers + Cached + SwapFree) and check_fs_mount_rw -f /. nhc-genconf writes a
configuration from the node as it is: check_fs_mount_rw or _ro for each mount, by device and type, without autofs;
check_fs_used at 90 %, or at what was used; check_hw_physmem within 3 %; check_hw_ib for each port that was up;
check_hw_eth for each device; check_ps_loadavg at twice the threads. csc_nvidia_smi.nhc, which sites add, takes the
place of a tool that NVIDIA withdrew: nvidia-smi has to end with status 0. NHC asks df, which a dead file server stops:
the watchdog ends NHC, and the node is taken. README: HealthCheckInterval=300.

node-problem-detector: kubernetes/node-problem-detector@6632ca67. deployment/node-problem-detector.yaml has
kernel-monitor.json, readonly-monitor.json and docker-monitor.json. Rules of the type `permanent` set a condition of the
node, which remedy systems act on, until the detector starts anew; those of the type `temporary` (OOMKilling, TaskHung,
KernelOops, Ext4Error, IOError, MemoryReadError) are events that nothing drains for."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from drains.machine import MOUNTS, NET, RDMA, Machine

_CONDITIONS: Final = {
    "ReadonlyFilesystem": re.compile(r"Remounting filesystem read-only"),
    "XfsShutdown": re.compile(r"XFS .* Shutting down filesystem"),
    "CperHardwareErrorFatal": re.compile(r"\[Hardware Error\]: event severity: fatal$"),
    "KernelDeadlock": re.compile(r"task docker:\w+ blocked for more than \w+ seconds\."),
}
_SKIPPED: Final = re.compile(r"cgroup|autofs|rpc|nfsd|fuse.gvfs|binfmt")


def node_problem_detector(machine: Machine, written_for: Machine) -> Iterator[str]:
    for line in machine.log:
        if not line.earlier_boot:
            yield from (name for name, pattern in _CONDITIONS.items() if pattern.search(line.text))


def _mounts(machine: Machine) -> dict[str, tuple[str, str, str]]:
    """By mount point: device, type, rw or ro."""
    rows = [line.split() for line in machine.read(MOUNTS).splitlines()]
    return {point: (device, kind, options.split(",")[0]) for device, point, kind, options, *_ in rows}


def _memory(machine: Machine) -> dict[str, int]:
    lines = machine.read("proc/meminfo").splitlines()
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def nhc_as_shipped(machine: Machine, written_for: Machine) -> Iterator[str]:
    memory = _memory(machine)
    if sum(memory.get(name, 0) for name in ("MemFree", "Buffers", "Cached", "SwapFree")) < 1024:
        yield "check_hw_mem_free 1mb"
    if _mounts(machine).get("/", ("", "", ""))[2] != "rw":
        yield "check_fs_mount_rw -f /"


def nhc_genconf(machine: Machine, written_for: Machine) -> Iterator[str]:
    now = _mounts(machine)
    for point, mount in _mounts(written_for).items():
        if not _SKIPPED.match(mount[1]) and now.get(point) != mount:
            yield f"check_fs_mount_{mount[2]} -f {point}"
    if any("silent_seconds" in reply for reply in machine.replies.values()):
        yield "df does not return (watchdog)"
    for point, size in machine.facts["file_systems"].items():
        before = written_for.facts["file_systems"].get(point)
        if (
            before
            and point in now
            and now[point][1] != "tmpfs"
            and point != "/boot"
            and _used(size) > max(_used(before), 0.9)
        ):
            yield f"check_fs_used {point}"
    if 1.03 * _memory(machine)["MemTotal"] < _memory(written_for)["MemTotal"]:
        yield "check_hw_physmem"
    ports = dict(_ports(machine))
    yield from (
        f"check_hw_ib {name}" for name, was in _ports(written_for) if "ACTIVE" in was and ports.get(name) != was
    )
    for name in (port.netdev for port in written_for.ports()):
        if name and not machine.read(f"{NET}/{name}/operstate"):
            yield f"check_hw_eth {name}"
    threads = int(machine.read("sys/devices/system/cpu/present").split("-")[-1]) + 1
    if float(machine.read("proc/loadavg").split()[0]) > 2 * threads:
        yield "check_ps_loadavg"
    lost = [
        gpu
        for gpu in machine.gpus
        if {"handle"} & {*gpu.get("errors", {})} or "GPU_IS_LOST" in gpu.get("errors", {}).values()
    ]
    if lost or machine.nvml.get("error") or machine.nvml.get("hung"):
        yield "check_nvsmi_healthmon"


def _used(size: Mapping[str, int]) -> float:
    return 1 - size["available_bytes"] / max(size["total_bytes"], 1)


def _ports(machine: Machine) -> Iterator[tuple[str, str]]:
    """Each port's state, physical state and rate."""
    for port in machine.ports():
        folder = f"{RDMA}/{port.device}/ports/1"
        yield port.device, " ".join(machine.read(f"{folder}/{name}") for name in ("state", "phys_state", "rate"))


Rules = Callable[[Machine, Machine], Iterator[str]]
PEERS: Final[Mapping[str, tuple[Rules, float]]] = {
    "NHC, nhc.conf as installed": (nhc_as_shipped, 300.0),
    "NHC, by nhc-genconf": (nhc_genconf, 300.0),
    "node-problem-detector": (node_problem_detector, 60.0),
}
"""The rules, which get the machine and the healthy one that a configuration was written for, and the seconds between
two looks."""
