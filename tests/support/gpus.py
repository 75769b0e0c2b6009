"""Files that an HGX H100 node has for its GPUs: NVML's readings, the driver's files, the fabric manager, the log.

The readings are those of a real `nvidia-smi -q -x` of eight H100 with driver 580 (NVIDIA/k8s-test-infra 3b2b865d,
qx-h100.xml; its temperatures are of GPUs 0, 1 and 4). It shows no temperature as a limit, only margins. PCI addresses,
NVLinks and the log are made up.
"""

import json
from typing import Any, Final

from support.archive import Tree
from support.paths import TESTS

BUSES: Final = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB)
_MANAGER: Final = 3120
_TEMPERATURES: Final = ((29, 58, 37), (30, 56, 39), (32, 55, 37))
"""Degrees of the GPU, its margin, and degrees of its memory."""

# A healthy node's log: the driver's start, and the errors of two jobs (an illegal address, a job that was killed).
_KMSG: Final = (TESTS / "data" / "host" / "h100_kmsg").read_text()


def gpu(index: int) -> dict[str, Any]:
    """NVML's readings of one idle H100, in the form of probes/nvml/model.py."""
    celsius, margin, memory_celsius = _TEMPERATURES[index % len(_TEMPERATURES)]
    return {
        **json.loads((TESTS / "data" / "host" / "h100_gpu.json").read_text()),
        "index": index,
        "bus_id": f"0000:{BUSES[index]:02x}:00.0",
        "uuid": f"GPU-{index:08x}-5f1e-4c1a-8a6d-2b7c9d1e{index:04x}",
        "minor": index,
        "temperature_celsius": celsius,
        "memory_temperature_celsius": memory_celsius,
        "margin_celsius": margin,
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
