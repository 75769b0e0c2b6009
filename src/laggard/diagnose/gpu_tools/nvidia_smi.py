"""The formats of nvidia-smi: `-q -x` and `-q`, its table without options, and `-L`. The first two are judged by the
GPU probes on a recorded machine with these GPUs alone.

Beside NVML's values `-q` has PCIe links, pages that wait to be retired and errors in the place of values. A link's
generation is lower while the GPU is idle, to save power, and its width is not. In a virtual machine the host's end is
not shown, and the link is not judged: a cloud's slot may have fewer lanes than the GPU.

The tables of several nodes are compared with each other.
"""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from xml.etree import ElementTree

from laggard.diagnose.file_format import FileContent, FileFormat, FileJudgement, KnownHardware, on_host, without_colours
from laggard.diagnose.gpu_tools.smi_messages import LINE, context, judge_messages
from laggard.diagnose.gpu_tools.smi_table import HEAD, SAYS, Table, judge_table, missing, read_table
from laggard.diagnose.pastes.section import one_of_many
from laggard.diagnose.rules import words
from laggard.model import Finding, Verdict
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import NVML_PATH, Nvml, encode_nvml
from laggard.probes.nvml.nvidia_smi import NotNvidiaSmi, is_text, parse_nvidia_smi, parse_text, parse_xml, read_log
from laggard.probes.registry import PROBES
from laggard.probes.runner.worker import observe

_MIN_BUSY_PERCENT: Final = 20
_GUESTS: Final = ("Pass-Through", "VGPU")
_LINK: Final = "pci/pci_gpu_link_info"
_GIGATRANSFERS: Final = ("", "2.5", "5.0", "8.0", "16.0", "32.0", "64.0")
"""The speed of a link by its PCIe generation."""


def judge_log(root: ElementTree.Element, nvml: Nvml) -> Iterator[Finding]:
    """The speed alone of GPUs at work, where both ends are shown: the width is the probe's to compare with peers."""
    for gpu, element in zip(nvml.gpus, root.iterfind("gpu"), strict=True):
        speed, *ends = (_number(element, f"{_LINK}/pcie_gen/{end}") for end in _GENERATIONS)
        reachable = min([end for end in ends if end], default=0)
        both = any(ends[1:3]) and any(ends[3:])
        if speed and both and speed < reachable and _is_busy(element) and not _is_guest(element):
            summary = f"runs at PCIe generation {speed} of {reachable} under load"
            evidence = {"generation": speed, "most_generation": reachable, "replays": gpu.pcie_replays}
            yield SAYS["narrow"].found(evidence, device=gpu.device, told=summary, index=gpu.index)


_GENERATIONS: Final = words("pcie_generations")


def _is_guest(element: ElementTree.Element) -> bool:
    return (element.findtext("gpu_virtualization_mode/virtualization_mode") or "").strip() in _GUESTS


def _is_busy(element: ElementTree.Element) -> bool:
    state = (element.findtext("performance_state") or "").strip()
    return state == "P0" and (_number(element, "utilization/gpu_util") or 0) >= _MIN_BUSY_PERCENT


def _number(element: ElementTree.Element, path: str) -> int | None:
    found = re.match(r"(\d{1,9})", (element.findtext(path) or "").strip())
    return int(found[1]) if found else None


_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MAX_CHARACTERS: Final = 8 << 20
_SAMPLE_CHARACTERS: Final = 1 << 18
_PROBES: Final = words("gpu_probes")
"""Probes that need only NVML and links. What others need (NVLinks, the fabric manager's process) is in no such
file."""


_ATTACHED = re.compile(r"^Attached GPUs\s*: (\d{1,4})\s*$", re.MULTILINE)


def recognise(content: FileContent) -> bool:
    return "<nvidia_smi_log>" in content.text[:4096]


def recognise_text(content: FileContent) -> bool:
    return is_text(content.text[:_SAMPLE_CHARACTERS])


def read_hardware(content: FileContent) -> KnownHardware:
    try:
        return KnownHardware(gpus=len(parse_nvidia_smi(content.document).gpus))
    except NotNvidiaSmi:
        return KnownHardware()


def read_hardware_of_text(content: FileContent) -> KnownHardware:
    return KnownHardware(gpus=len(_parse_text(content).findall("gpu")) or None)


def judge(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    try:
        return _judge(parse_xml(content.document))
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
        _write_machine(nvml, root, folder)
        for probe in PROBES:
            if probe.name in _PROBES:
                observation = observe(probe, Host(folder))
                findings += observation.findings
                if observation.verdict is Verdict.UNKNOWN:
                    unjudged[probe.name] = observation.reason
    findings += judge_log(root, nvml)
    facts = {"driver_version": nvml.driver_version, "gpus": len(nvml.gpus), "not_in_the_file": unjudged}
    return FileJudgement(one_of_many(findings), facts, "" if nvml.gpus else "it lists no GPU")


def _write_machine(nvml: Nvml, log: ElementTree.Element, root: str) -> None:
    """Writes a recorded machine: NVML's answers, and PCI devices as evidence that there are GPUs, with their links. Of
    the other ends of these nothing is known."""
    files = {NVML_PATH: encode_nvml(nvml)}
    if any(map(_is_guest, log.iterfind("gpu"))):
        files["/proc/cpuinfo"] = b"flags : hypervisor\n"
    for number, (gpu, element) in enumerate(zip(nvml.gpus, log.iterfind("gpu"), strict=True)):
        is_address = gpu.bus_id and _ADDRESS.fullmatch(gpu.bus_id)  # it becomes a folder's name
        folder = f"/sys/bus/pci/devices/{gpu.bus_id if is_address else f'0000:{number:02x}:00.0'}"
        files |= {f"{folder}/class": b"0x030200\n", f"{folder}/vendor": b"0x10de\n"}
        files[f"{folder}/device"] = f"0x{zlib.crc32((gpu.name or '').encode()) & 0xFFFF:04x}\n".encode()
        for end in ("current", "max"):
            generation = _number(element, f"{_LINK}/pcie_gen/{end}_link_gen") or 0
            width = _number(element, f"{_LINK}/link_widths/{end}_link_width") or 0
            if width and 0 < generation < len(_GIGATRANSFERS):
                files[f"{folder}/{end}_link_width"] = f"{width}\n".encode()
                files[f"{folder}/{end}_link_speed"] = f"{_GIGATRANSFERS[generation]} GT/s PCIe\n".encode()
    for path, data in files.items():
        os.makedirs(root + os.path.dirname(path), exist_ok=True)
        with open(root + path, "wb") as file:
            file.write(data)


NVIDIA_SMI = FileFormat("nvidia-smi -q -x", recognise, judge, read_hardware)
NVIDIA_SMI_TEXT = FileFormat("nvidia-smi -q", recognise_text, judge_text, read_hardware_of_text)


_MAX_PLAIN_CHARACTERS: Final = 4 << 20
_MAX_MESSAGE_LINES: Final = 60
_MIN_SHARE: Final = 0.6
_LISTED = re.compile(r"^GPU (\d{1,4}): .{1,120}\(UUID: ", re.MULTILINE)
_NOT_ITS_OWN = re.compile(
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\s*$|command terminated with exit code \d+\s*$"
)
"""A date above it, and what kubectl says below it."""


class _Output(NamedTuple):
    content: FileContent
    text: str
    table: Table


def recognise_plain(content: FileContent) -> bool:
    """Returns whether a table is most of the text, or every line is a message that nvidia-smi prints."""
    text = without_colours(content.text[:_SAMPLE_CHARACTERS])
    lines = [line for line in text.splitlines() if line.strip() and not _NOT_ITS_OWN.match(line)]
    known = sum(1 for line in lines if line.startswith(("|", "+")) or LINE.search(line[:400]))
    if HEAD.search(text):
        return known >= _MIN_SHARE * len(lines)
    return 0 < len(lines) <= _MAX_MESSAGE_LINES and known == len(lines) and not text.startswith(("|", "+"))


def read_hardware_of_plain(content: FileContent) -> KnownHardware:
    text = _text(content)
    count = len(read_table(text).gpus) or len(_LISTED.findall(text))
    return KnownHardware(gpus=count or None)


def judge_together(contents: Iterable[FileContent], hardware: KnownHardware) -> FileJudgement:
    outputs = [_Output(content, text := _text(content), read_table(text)) for content in contents]
    findings = [
        *(on_host(found, output.content) for output in outputs for found in _judge_table(output)),
        *(on_host(found, output.content) for output, found in _compare(outputs)),
    ]
    evidence = {name: value for output in outputs for name, value in context(output.text).items()}
    facts = {
        "gpus": sum(len(output.table.gpus) for output in outputs),
        "models": sorted({gpu.name for output in outputs for gpu in output.table.gpus})[:16],
        "driver_versions": sorted({output.table.driver_version for output in outputs} - {""}),
        **evidence,
    }
    is_cut = any(HEAD.search(output.text) and not output.table.gpus for output in outputs)
    return FileJudgement(
        one_of_many(findings), facts, "" if findings or not is_cut else "no row of a GPU is in its table"
    )


def _judge_table(output: _Output) -> Iterator[Finding]:
    yield from judge_messages(output.text)
    yield from judge_table(output.table)


def _compare(outputs: Iterable[_Output]) -> Iterator[tuple[_Output, Finding]]:
    """Yields what nodes lack whose GPUs sit where some of a peer's do: boards of one kind have them at one address."""
    boards = {output.content.host: output for output in outputs if output.content.host and output.table.gpus}
    whole = max(boards.values(), key=lambda output: len(output.table.gpus), default=None)
    for output in boards.values():
        if whole is None or len(whole.table.gpus) <= len(output.table.gpus):
            continue
        here, there = _places(output), _places(whole)
        if here < there and 2 * len(here) > len(there):
            absent = sorted(bus_id for bus_id, _ in there - here)
            reason = f"{output.content.host} lists {len(here)} where {whole.content.host} lists {len(there)}"
            yield output, missing(f"GPU {', '.join(absent)}", len(here), len(there), reason)


def _places(output: _Output) -> set[tuple[str, str]]:
    return {(gpu.bus_id, gpu.name) for gpu in output.table.gpus}


def _text(content: FileContent) -> str:
    return without_colours(content.text[:_MAX_PLAIN_CHARACTERS])


NVIDIA_SMI_TABLE = FileFormat("nvidia-smi", recognise_plain, None, read_hardware_of_plain, judge_together)
