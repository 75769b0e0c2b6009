"""`nvidia-smi -q -x`: judged by the GPU probes, which are given a machine that has these GPUs and nothing else."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Final

from laggard.diagnose.file_format import Kind, Reading, Told
from laggard.model import Finding, Verdict
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import NVML_PATH, Nvml, encode_nvml
from laggard.probes.nvml.nvidia_smi import NotNvidiaSmi, parse_nvidia_smi
from laggard.probes.registry import PROBES
from laggard.probes.runner.worker import observe

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PROBES: Final = (
    "gpu_lost",
    "gpu_ecc",
    "gpu_rows",
    "gpu_throttle",
    "gpu_temperature",
    "gpu_clocks",
    "gpu_persistence",
)
"""Those that ask NVML alone. What others join with it (links, fabric manager, processes) is not in such a file."""


def recognise(text: str) -> bool:
    return "<nvidia_smi_log>" in text[:4096]


def tell(text: str) -> Told:
    try:
        return Told(gpus=len(parse_nvidia_smi(text).gpus))
    except NotNvidiaSmi:
        return Told()


def read(text: str, told: Told) -> Reading:
    try:
        nvml = parse_nvidia_smi(text)
    except NotNvidiaSmi as error:
        return Reading(unknown=str(error))
    findings: list[Finding] = []
    unjudged: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="laggard-") as root:
        _lay(nvml, root)
        for probe in PROBES:
            if probe.name in _PROBES:
                seen = observe(probe, Host(root))
                findings += seen.findings
                if seen.verdict is Verdict.UNKNOWN:
                    unjudged[probe.name] = seen.reason
    facts = {"driver_version": nvml.driver_version, "gpus": len(nvml.gpus), "not_in_the_file": unjudged}
    return Reading(tuple(findings), facts, "" if nvml.gpus else "it lists no GPU")


def _lay(nvml: Nvml, root: str) -> None:
    """A recorded machine: NVML's answers, and the PCI devices that say that there are GPUs."""
    files = {NVML_PATH: encode_nvml(nvml)}
    for number, gpu in enumerate(nvml.gpus):
        known = gpu.bus_id and _ADDRESS.fullmatch(gpu.bus_id)  # it becomes the name of a folder
        folder = f"/sys/bus/pci/devices/{gpu.bus_id if known else f'0000:{number:02x}:00.0'}"
        files |= {f"{folder}/class": b"0x030200\n", f"{folder}/vendor": b"0x10de\n"}
    for path, data in files.items():
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        with open(root + path, "wb") as file:
            file.write(data)


NVIDIA_SMI = Kind("nvidia-smi -q -x", recognise, read, tell)
