"""The formats `nvidia-smi -q -x` and `nvidia-smi -q`, judged by the GPU probes on a recorded machine with these GPUs
alone, and for what NVML's values do not have."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Final
from xml.etree import ElementTree

from laggard.diagnose.file_content import FileContent
from laggard.diagnose.file_format import FileFormat, FileJudgement, KnownHardware
from laggard.diagnose.gpu_tools.smi_log_findings import judge_log
from laggard.diagnose.gpu_tools.smi_messages import judge_messages
from laggard.diagnose.parts.terminal import without_colours
from laggard.model import Finding, Verdict
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import NVML_PATH, Nvml, encode_nvml
from laggard.probes.nvml.nvidia_smi import NotNvidiaSmi, parse_nvidia_smi, parse_xml, read_log
from laggard.probes.nvml.nvidia_smi_text import is_text, parse_text
from laggard.probes.registry import PROBES
from laggard.probes.runner.worker import observe

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MAX_CHARACTERS: Final = 8 << 20
_SAMPLE_CHARACTERS: Final = 1 << 18
_PROBES: Final = (
    "gpu_lost",
    "gpu_ecc",
    "gpu_rows",
    "gpu_throttle",
    "gpu_temperature",
    "gpu_clocks",
    "gpu_persistence",
    "fabric",
)
"""Probes that need only NVML. What others need (links, the fabric manager's process) is not in such a file."""


_ATTACHED = re.compile(r"^Attached GPUs\s*: (\d{1,4})\s*$", re.MULTILINE)


def recognise(content: FileContent) -> bool:
    return "<nvidia_smi_log>" in content.text[:4096]


def recognise_text(content: FileContent) -> bool:
    return is_text(content.text[:_SAMPLE_CHARACTERS])


def read_hardware(content: FileContent) -> KnownHardware:
    try:
        return KnownHardware(gpus=len(parse_nvidia_smi(content.text).gpus))
    except NotNvidiaSmi:
        return KnownHardware()


def read_hardware_of_text(content: FileContent) -> KnownHardware:
    return KnownHardware(gpus=len(_parse_text(content).findall("gpu")) or None)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    try:
        return _judge(parse_xml(content.text))
    except NotNvidiaSmi as error:
        return FileJudgement(unknown=str(error))


def judge_text(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    judged = _judge(_parse_text(content))
    if (attached := _ATTACHED.search(content.text[:_MAX_CHARACTERS])) and not judged.unknown:
        there, all_of_them = judged.facts.get("gpus", 0), int(attached[1])
        judged = judged._replace(unknown=f"it has {there} of {all_of_them} GPUs" if there < all_of_them else "")
    messages = judge_messages(without_colours(content.text[:_MAX_CHARACTERS]))
    return judged._replace(findings=(*messages, *judged.findings))


def _parse_text(content: FileContent) -> ElementTree.Element:
    return parse_text(without_colours(content.text))


def _judge(root: ElementTree.Element) -> FileJudgement:
    nvml = read_log(root)
    findings: list[Finding] = []
    unjudged: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="laggard-") as folder:
        _write_machine(nvml, folder)
        for probe in PROBES:
            if probe.name in _PROBES:
                observation = observe(probe, Host(folder))
                findings += observation.findings
                if observation.verdict is Verdict.UNKNOWN:
                    unjudged[probe.name] = observation.reason
    findings += judge_log(root, nvml)
    facts = {"driver_version": nvml.driver_version, "gpus": len(nvml.gpus), "not_in_the_file": unjudged}
    return FileJudgement(tuple(findings), facts, "" if nvml.gpus else "it lists no GPU")


def _write_machine(nvml: Nvml, root: str) -> None:
    """Writes a recorded machine: NVML's answers, and PCI devices as evidence that there are GPUs."""
    files = {NVML_PATH: encode_nvml(nvml)}
    for number, gpu in enumerate(nvml.gpus):
        is_address = gpu.bus_id and _ADDRESS.fullmatch(gpu.bus_id)  # it becomes a folder's name
        folder = f"/sys/bus/pci/devices/{gpu.bus_id if is_address else f'0000:{number:02x}:00.0'}"
        files |= {f"{folder}/class": b"0x030200\n", f"{folder}/vendor": b"0x10de\n"}
    for path, data in files.items():
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        with open(root + path, "wb") as file:
            file.write(data)


NVIDIA_SMI = FileFormat("nvidia-smi -q -x", recognise, judge, read_hardware)
NVIDIA_SMI_TEXT = FileFormat("nvidia-smi -q", recognise_text, judge_text, read_hardware_of_text)
