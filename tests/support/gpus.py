"""Files that an HGX H100 node has for its GPUs: NVML's readings, the driver's files, the fabric manager, the log.

The readings are those of a real `nvidia-smi -q -x` of eight H100 with driver 580 (NVIDIA/k8s-test-infra 3b2b865d,
qx-h100.xml; its temperatures are of GPUs 0, 1 and 4). It shows no temperature as a limit, only margins. PCI addresses,
NVLinks and the log are made up.
"""

from __future__ import annotations

import json
from typing import Any, Final

from support.archive import Tree

BUSES: Final = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB)
_LINKS: Final = 18
_MANAGER: Final = 3120
_TEMPERATURES: Final = ((29, 58, 37), (30, 56, 39), (32, 55, 37))
"""Degrees of the GPU, its margin, and degrees of its memory."""
_NOT_SUPPORTED: Final = ("gpu_max_celsius", "memory_max_celsius", "shutdown_celsius", "slowdown_celsius")

# A healthy node's log: the driver's start, and the errors of two jobs (an illegal address, a job that was killed).
_KMSG: Final = """5,0,0,-;Linux version 6.8.0-60-generic (gcc 13.3.0) #63-Ubuntu SMP PREEMPT_DYNAMIC
6,911,14211020,-;nvidia-nvlink: Nvlink Core is being initialized, major device number 234
6,912,14902110,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build
4,1402,801210333,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=81233, name=python, Ch 00000008, intr 00000000. MMU Fault
4,1403,801210390,-;NVRM: Xid (PCI:0000:3b:00): 43, pid=81233, name=python, Ch 00000008
 SUBSYSTEM=pci
 DEVICE=+pci:0000:3b:00.0
4,1811,863710001114,-;NVRM: Xid (PCI:0000:cb:00): 13, pid=99121, name=python, Graphics SM Warp Exception on GPC 7
4,1812,863710001201,-;NVRM: Xid (PCI:0000:cb:00): 45, pid=99121, name=python, Ch 00000010
"""


def gpu(index: int) -> dict[str, Any]:
    """NVML's readings of one idle H100, in the form of probes/nvml/model.py."""
    celsius, margin, memory_celsius = _TEMPERATURES[index % len(_TEMPERATURES)]
    return {
        "index": index,
        "errors": dict.fromkeys(_NOT_SUPPORTED, "NOT_SUPPORTED"),
        "bus_id": f"0000:{BUSES[index]:02x}:00.0",
        "uuid": f"GPU-{index:08x}-5f1e-4c1a-8a6d-2b7c9d1e{index:04x}",
        "name": "NVIDIA H100 80GB HBM3",
        "board_part": "692-2G520-0200-000",
        "vbios": "96.00.99.00.01",
        "minor": index,
        "mig": False,
        "persistence": True,
        "ecc_volatile": 0,
        "ecc_aggregate": 0,
        "sram_threshold_exceeded": False,
        "rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
        "repair": {"channel": False, "tpc": False},
        "recovery_action": 0,
        "clocks_event_reasons": 1,
        "throttled_nanoseconds": {"sw_thermal": 0, "hw_thermal": 0, "hw_power_brake": 0},
        "temperature_celsius": celsius,
        "memory_temperature_celsius": memory_celsius,
        "margin_celsius": margin,
        "slowdown_margin_celsius": -2,
        "gpu_max_margin_celsius": 0,
        "max_sm_mhz": 1980,
        "max_memory_mhz": 2619,
        "application_sm_mhz": 1980,
        "application_memory_mhz": 2619,
        "default_sm_mhz": 1980,
        "sm_mhz": 345,
        "power_limit_watts": 700.0,
        "enforced_power_limit_watts": 700.0,
        "default_power_limit_watts": 700.0,
        "processes": [],
        "links": [True] * _LINKS,
        "link_errors": {"replay": [0] * _LINKS, "recovery": [0] * _LINKS, "crc": [0] * _LINKS},
        "fabric": {"state": 3, "status": 0, "health_mask": 0},
    }


def nvml(count: int = 8) -> dict[str, Any]:
    """NVML's readings of `count` GPUs."""
    status = [[None if row == column else 0 for column in range(count)] for row in range(count)]
    return {
        "laggard_nvml": 1,
        "driver_version": "580.105.08",
        "gpus": [gpu(index) for index in range(count)],
        "p2p_read": status,
        "p2p_write": status,
    }


def gpu_files() -> Tree:
    """The files that belong to no PCI device. nvml.json has one GPU a line, so that people can read and change it."""
    answers = nvml()
    gpus = ",\n ".join(json.dumps(one) for one in answers.pop("gpus"))
    head = json.dumps(answers)[:-1]
    return {
        "/laggard/nvml.json": f'{head}, "gpus": [\n {gpus}\n]}}\n',
        "/laggard/kmsg": _KMSG,
        "/proc/2/comm": "kthreadd\n",
        f"/proc/{_MANAGER}/comm": "nv-fabricmanage\n",
        f"/proc/{_MANAGER}/status": "Name:\tnv-fabricmanage\nUid:\t0\t0\t0\t0\n",
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": f"{_MANAGER}\n",
        "/sys/module/nvidia/refcnt": "41\n",
        "/sys/module/nvidia/holders/nvidia_uvm/refcnt": "4\n",
        "/sys/module/nvidia/holders/nvidia_modeset/refcnt": "0\n",
    }
