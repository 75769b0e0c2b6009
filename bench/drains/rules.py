"""The rules by which others take a node out of service, written anew from their sources, as data where they are lists.

Each function gets the machine and returns the reasons to take it out. `Tool` says how often it looks by default, for
how long a reason has to hold, and whether the reason stays until somebody acts (`sticky`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from drains.machine import Machine

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)\): (\d+)")
_SXID = re.compile(r"SXid \(PCI:[^)]*\): (\d+), (Non-fatal|Fatal)")
_HOUR: Final = 3600.0


class Tool(NamedTuple):
    name: str
    source: str
    poll_seconds: float
    hold_seconds: float
    sticky: bool
    judge: Callable[[Machine], Iterator[str]]
    outside: frozenset[str] = frozenset()
    """Classes of faults that are no business of this tool, by its own documentation."""


class XidSeen(NamedTuple):
    age: float
    bus: str
    code: int
    text: str


def xids(machine: Machine, within: float = float("inf")) -> list[XidSeen]:
    """The Xids that a tool acts on, each once, when it is logged: those of errors that were dealt with since are not
    among them."""
    found = ((line, _XID.search(line.text)) for line in machine.lines(within) if not line.dealt_with)
    return [XidSeen(line.age, match[1], int(match[2]), line.text) for line, match in found if match]


# --- NVSentinel -------------------------------------------------------------------------------------------------------

_NVSENTINEL_NONE: Final = frozenset(
    {
        8,
        11,
        13,
        14,
        25,
        31,
        32,
        37,
        38,
        *range(39, 42),
        43,
        44,
        45,
        60,
        63,
        66,
        67,
        68,
        69,
        *range(70, 73),
        75,
        76,
        77,
        80,
        *range(82, 87),
        88,
        89,
        92,
        93,
        94,
        *range(96, 109),
        121,
        *range(126, 136),
        137,
        139,
        141,
        152,
        153,
        157,
        160,
        161,
    }
)
"""Xids whose bucket becomes the action NONE: RESTART_APP, IGNORE, WORKFLOW_XID_45. Every other action is fatal, and a
number that is not in the catalogue, or has no bucket, is CONTACT_SUPPORT."""
_MLX5_FATAL: Final = (
    re.compile(r"timeout\. Will cause a leak of a command resource"),
    re.compile(r"device's health compromised - reached miss count"),
    re.compile(r"mlx5_core.*unrecoverable hardware error"),
)
_RECOVERY = re.compile(r"\(([^()]*)\)\s*$")


def nvsentinel_default(machine: Machine) -> Iterator[str]:
    """Monitors that the chart enables: the system log (Xid, SXid, off the bus) and DCGM's health watches."""
    for seen in xids(machine):
        if seen.code == 154:
            last = _RECOVERY.search(seen.text)
            if last and last[1] != "None":
                yield f"Xid 154 ({last[1]})"
        elif seen.code not in _NVSENTINEL_NONE:
            yield f"Xid {seen.code}"
    for line in machine.lines():
        if "fallen off the bus" in line.text and "Xid" not in line.text:
            yield "GPU fallen off the bus"
        if (match := _SXID.search(line.text)) and match[2] == "Fatal":
            yield f"SXid {match[1]}"
    yield from _dcgm_health(machine)


def nvsentinel_all(machine: Machine) -> Iterator[str]:
    """With the NIC monitor and the patterns of NIC drivers switched on, with the chart's own thresholds."""
    yield from nvsentinel_default(machine)
    for line in machine.lines():
        if any(pattern.search(line.text) for pattern in _MLX5_FATAL):
            yield "NIC driver: " + line.text[:60]
    ports = machine.ports()
    for device in machine.base.ports:
        if device not in {port.device for port in ports}:
            yield f"{device} disappeared"
    for port in ports:
        peers_up = sum(other.state == "ACTIVE" for other in ports)
        if (port.state == "DOWN" or port.phys_state == "Disabled") and peers_up:
            yield f"{port.device} {port.state}"
        folder = f"sys/class/infiniband/{port.device}/ports/1"
        for name in ("counters/link_downed", "counters/excessive_buffer_overrun_errors",
                     "counters/local_link_integrity_errors", "hw_counters/rnr_nak_retry_err"):  # fmt: skip
            if _increase(machine, f"{folder}/{name}") > 0:
                yield f"{port.device} {name}"
        if _increase(machine, f"{folder}/counters/symbol_error") > 120:
            yield f"{port.device} symbol_error"


def _increase(machine: Machine, path: str) -> int:
    """The counter's increase over the value of the healthy node, from which the monitor's baseline was."""
    before = machine.before.get(path)
    if before is None:
        place = machine.base.root / path
        before = place.read_text().strip() if place.is_file() else "0"
    return int(machine.read(path) or 0) - int(before or 0)


def _dcgm_health(machine: Machine) -> Iterator[str]:
    """DCGM's health watches (dcgmi health -s a; DCGM@72fa3fea, DcgmHealthWatch.cpp) in the readings that are here:
    volatile double-bit errors, row remapping that failed, NVLinks down, GPUs lost, a recovery action."""
    for gpu in machine.gpus:
        name, errors = f"GPU {gpu['index']}", gpu.get("errors", {})
        if "handle" in errors or "GPU_IS_LOST" in errors.values():
            yield f"{name} lost"
            continue
        if gpu.get("ecc_volatile"):
            yield f"{name} volatile double-bit errors"
        rows = gpu.get("rows")
        if rows and rows["failed"]:
            yield f"{name} row remapping failed"
        links = gpu.get("links")
        if links and not all(links) and machine.base.has_switches and not gpu.get("mig"):
            yield f"{name} NVLink down"
        if gpu.get("recovery_action"):
            yield f"{name} recovery action {gpu['recovery_action']}"


# --- gpud -------------------------------------------------------------------------------------------------------------

_GPUD_FATAL: Final = frozenset(
    {
        9,
        12,
        16,
        18,
        19,
        *range(26, 31),
        *range(32, 37),
        38,
        42,
        44,
        46,
        47,
        48,
        59,
        60,
        61,
        62,
        63,
        64,
        65,
        68,
        69,
        74,
        78,
        79,
        81,
        94,
        95,
        110,
        119,
        120,
        121,
        123,
        140,
        143,
    }
)
"""Xids whose event type is Fatal: the component is Unhealthy, and a reboot or an inspection is suggested."""


def gpud(machine: Machine) -> Iterator[str]:
    """Components that are Unhealthy and suggest a reboot or an inspection of the hardware, with the thresholds that it
    ships. Others are
    Unhealthy without a suggestion: persistence mode off, fabric manager, fabric state, disks."""
    for seen in xids(machine):  # a reboot clears them
        if seen.code in _GPUD_FATAL:
            yield f"xid {seen.code}"
    for line in machine.lines():
        if (match := _SXID.search(line.text)) and match[2] == "Fatal":
            yield f"sxid {match[1]}"
    for gpu in machine.gpus:
        name, errors = f"GPU {gpu['index']}", gpu.get("errors", {})
        if "handle" in errors or "GPU_IS_LOST" in errors.values():
            yield f"{name} lost"
            continue
        rows = gpu.get("rows")
        if rows and (rows["pending"] or rows["failed"]):
            yield f"{name} remapped rows"
        if (gpu.get("clocks_event_reasons") or 0) & 0xC8 and machine.slowdown_seconds >= 360:
            yield f"{name} hw slowdown"
    if machine.base.compute_ports:  # H100: at least 8 ports at 400 Gb/s
        good = [port for port in machine.ports() if port.state == "ACTIVE" and port.gigabits >= 400]
        if len(good) < 8:
            yield f"infiniband: {len(good)} of 8 ports at 400 Gb/s"
        for port in machine.ports():
            if machine.flaps.get(port.device, 0) >= 3:
                yield f"infiniband: {port.device} flaps"


# --- EKS --------------------------------------------------------------------------------------------------------------

_EKS_FATAL: Final = frozenset(
    {46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158}
)
"""WellKnownXidCodes: a condition of the node, which is replaced; others are events."""


def eks(machine: Machine) -> Iterator[str]:
    for seen in xids(machine):
        if seen.code in _EKS_FATAL:
            yield f"NvidiaXID{seen.code}Error"
    for gpu in machine.gpus:
        name, errors = f"GPU {gpu['index']}", gpu.get("errors", {})
        if "handle" in errors or "GPU_IS_LOST" in errors.values():
            yield f"{name}: DCGM health"
            continue
        if gpu.get("ecc_volatile"):
            yield f"{name}: NvidiaDoubleBitError"
        rows = gpu.get("rows")
        if rows and rows["failed"]:
            yield f"{name}: DCGM health, row remapping"
        links = gpu.get("links")
        if links and not all(links) and machine.base.has_switches and not gpu.get("mig"):
            yield f"{name}: DCGM health, NVLink down"
        mask = (gpu.get("fabric") or {}).get("health_mask") or 0
        if any(mask >> shift & 3 == 1 for shift in (0, 2, 4, 6)) or mask >> 8 & 0xF >= 2:
            yield f"{name}: NvidiaFabricError"
        if (gpu.get("fabric") or {}).get("status"):
            yield f"{name}: FabricManagerNotRunning"
    if len(machine.gpus) < machine.base.expected_gpus and not machine.nvml.get("hung"):
        yield "NvidiaDeviceCountMismatch"


# --- LBNL NHC, and Azure's on top of it -------------------------------------------------------------------------------


def _nvidia_smi(machine: Machine) -> Iterator[str]:
    """check_nvsmi_healthmon: nvidia-smi ends with another status than 0 (15: a GPU is lost)."""
    if machine.nvml.get("error"):
        yield "check_nvsmi_healthmon"
    for gpu in machine.gpus:
        errors = gpu.get("errors", {})
        if "GPU_IS_LOST" in errors.values() or "handle" in errors:
            yield "check_nvsmi_healthmon: GPU lost"
    if machine.nvml.get("hung"):
        yield "nhc: nvidia-smi does not return (watchdog)"


def _ports_as_written_down(machine: Machine, devices: tuple[str, ...]) -> Iterator[str]:
    """check_hw_ib RATE DEVICE: the port is ACTIVE, LinkUp, and of exactly the rate."""
    seen = {port.device: port for port in machine.ports()}
    for device in devices:
        if device in machine.unused:
            continue
        rate = (machine.base.root / f"sys/class/infiniband/{device}/ports/1/rate").read_text().split()[0]
        port = seen.get(device)
        if port is None or port.state != "ACTIVE" or port.phys_state != "LinkUp" or port.gigabits != int(float(rate)):
            yield f"check_hw_ib {rate} {device}"


def nhc(machine: Machine) -> Iterator[str]:
    """What nhc-genconf writes for this node: check_hw_ib for each port that was up, check_fs_mount_rw, check_fs_used
    at 90 % (or 100 % of what it was at), check_nvsmi_healthmon in place of the tool that NVIDIA withdrew."""
    yield from _nvidia_smi(machine)
    yield from _ports_as_written_down(machine, machine.base.ports)
    mounts = [line.split() for line in machine.read("proc/self/mounts").splitlines()]
    for point in ("/", "/scratch"):
        options = next((words[3].split(",") for words in mounts if words[1] == point), [])
        if options and "rw" not in options:
            yield f"check_fs_mount_rw {point}"
        size = machine.facts["file_systems"].get(point)
        if size and size["available_bytes"] < 0.1 * size["total_bytes"]:
            yield f"check_fs_used {point} 90%"
    if machine.replies.get("/home", {}).get("silent_seconds"):
        yield "nhc: df of /home does not return (watchdog)"


_AZURE_XIDS: Final = frozenset({48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 119, 120})


def azure(machine: Machine) -> Iterator[str]:
    """nd96isr_h100_v5.conf without its active tests (bandwidth of GPUs and NICs, NCCL), which need an idle node."""
    yield from _nvidia_smi(machine)
    yield from _ports_as_written_down(machine, machine.base.compute_ports)
    if len(machine.gpus) != machine.base.expected_gpus and not machine.nvml.get("hung"):
        yield "check_gpu_count"
    for seen in xids(machine, within=2 * _HOUR):
        if seen.code in _AZURE_XIDS:
            yield f"check_gpu_xid {seen.code}"
    for gpu in machine.gpus:
        rows, links = gpu.get("rows"), gpu.get("links")
        if rows and (rows["pending"] or rows["failed"]):
            yield f"check_gpu_ecc: GPU {gpu['index']} rows"
        if links and not all(links) and machine.base.has_switches:
            yield f"check_nvlink_status: GPU {gpu['index']}"
    for device, count in machine.flaps.items():
        if count >= 5:
            yield f"check_ib_link_flapping {device}"


_NETWORK: Final = frozenset(
    {"port down", "port slow", "link flaps", "bits damaged", "NIC lost", "no RoCE address", "NIC's PCIe link narrow"}
)
_HOST: Final = frozenset({"file server gone", "disk full", "file system read-only", "machine check"})
_GPU_DETAIL: Final = frozenset(
    {
        "uncontained ECC errors", "row remapping failed", "GPU firmware halted", "NVLink error (Xid 74)",
        "NVLink never up", "NVLink fabric failed", "GPU too hot",
    }
)  # fmt: skip
_PCIE: Final = frozenset({"GPU's PCIe link narrow", "NIC's PCIe link narrow"})

LAGGARD_OUTSIDE: Final = frozenset({"machine check", "file system read-only"})
"""No probe of laggard reads machine checks or how a file system is mounted: `laggard diagnose` reads their lines."""

TOOLS: Final = (
    Tool(
        "NVSentinel, as installed",
        "lalitadithya/NVSentinel@42672ae8 (a maintainer's fork): Xid-Catalog.xlsx, syslog-health-monitor's common.go "
        "and csv.go, dcgmerrorsmapping.csv, values.yaml of fault-quarantine",
        15.0,
        0.0,
        True,
        nvsentinel_default,
        _NETWORK | _HOST | _PCIE,
    ),
    Tool(
        "NVSentinel, NIC monitors on",
        "the same, nic-health-monitor values.yaml, docs/nic-health-monitor.md",
        1.0,
        0.0,
        True,
        nvsentinel_all,
        _HOST | _PCIE | {"no RoCE address"},
    ),
    Tool(
        "gpud",
        "leptonai/gpud@4a8de33a: components/accelerator/nvidia: xid, sxid, remapped-rows, hw-slowdown, infiniband",
        60.0,
        0.0,
        True,
        gpud,
        _HOST | _PCIE | {"machine check", "no RoCE address", "bits damaged", "NVLink fabric failed"},
    ),
    Tool(
        "EKS node monitoring agent",
        "aws/eks-node-monitoring-agent@51af5494: monitors/nvidia/dcgm, reasons.yaml; repair begins 10 minutes later",
        300.0,
        600.0,
        True,
        eks,
        _NETWORK | _HOST | _PCIE,
    ),
    Tool(
        "LBNL NHC",
        "mej/nhc@9c4a38c0: nhc-genconf, csc_nvidia_smi.nhc, lbnl_hw.nhc, lbnl_fs.nhc; HealthCheckInterval of README",
        300.0,
        0.0,
        False,
        nhc,
        _GPU_DETAIL | _PCIE | {"machine check", "link flaps", "bits damaged", "no RoCE address"},
    ),
    Tool(
        "Azure NHC",
        "Azure/azurehpc-health-checks@0e0a1ac2: conf/nd96isr_h100_v5.conf without active tests, customTests",
        300.0,
        0.0,
        False,
        azure,
        _HOST | _PCIE | {"GPU too hot", "bits damaged", "no RoCE address"},
    ),
)
