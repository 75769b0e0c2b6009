"""The table that `nvidia-smi` prints without options, as values and findings. The format `hl-smi`, of Intel Gaudi
accelerators, has the rows of its older form.

Layouts: drivers to 418, which have two lines a GPU; 450 to 530, with a line for MIG; 535 and newer, with wider columns.
N/A, Off and idle clocks are no fault. ERR! is what nvidia-smi prints where the driver answers with an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.diagnose.file_format import (
    FileContent,
    FileFormat,
    FileJudgement,
    KnownHardware,
    is_table,
    without_colours,
)
from laggard.diagnose.rules import patterns, table
from laggard.model import Finding, Severity
from laggard.probes.nvml.model import sysfs_bus_id

_P: Final = patterns("paste_forms", "smi_table_")

SAYS: Final = table("gpus").sections
HEAD: Final = re.compile(r"^\| NVIDIA-SMI \S+ .*Driver Version: *([\w.]+)", re.MULTILINE)
_MAX_GPUS: Final = 1024
_PARTS_HEAD: Final = "| MIG devices:"
_PROCESSES_HEAD: Final = "| Processes:"


class TableGpu(NamedTuple):
    """A GPU's rows. `lines`: as they stand, at most three."""

    number: int
    name: str
    bus_id: str
    persistence: str
    ecc: str
    celsius: int | None
    lines: tuple[str, ...]

    @property
    def device(self) -> str:
        return f"GPU {self.number} ({self.bus_id})"

    @property
    def uncorrected(self) -> int:
        return int(self.ecc) if self.ecc.isascii() and self.ecc.isdigit() and len(self.ecc) < 20 else 0


class Table(NamedTuple):
    driver_version: str
    gpus: tuple[TableGpu, ...]
    uncorrected_of_parts: dict[int, int]
    """By index of a GPU in MIG mode: the uncorrected errors of its parts."""


def read_table(text: str) -> Table:
    head = HEAD.search(text)
    body, _, rest = text.partition(_PARTS_HEAD)
    gpus = tuple(_gpus(body.partition(_PROCESSES_HEAD)[0]))
    parts: dict[int, int] = {}
    for line in rest.splitlines() if rest else ():
        if line.startswith(_PROCESSES_HEAD):
            break
        if found := _P["part"].match(line):
            parts[int(found[1])] = parts.get(int(found[1]), 0) + int(found[2])
    return Table(head[1] if head else "", gpus, parts)


def _gpus(text: str) -> Iterator[TableGpu]:
    first: re.Match[str] | None = None
    lines: list[str] = []
    count = 0
    for line in (*text.splitlines(), "+"):
        found = _P["first"].match(line) if len(line) < 400 else None
        if first and (found or not line.startswith("|")):
            yield _gpu(first, lines)
            first, count = None, count + 1
        if found and count < _MAX_GPUS:
            first, lines = found, [line]
        elif first and len(lines) < 3:
            lines.append(line)


def _gpu(first: re.Match[str], lines: list[str]) -> TableGpu:
    celsius = _P["celsius"].search(lines[1]) if len(lines) > 1 else None
    return TableGpu(
        int(first["index"]),
        first["name"],
        sysfs_bus_id(first["bus"]),
        first["persistence"],
        first["ecc"],
        int(celsius[1]) if celsius else None,
        tuple(lines),
    )


_MIN_FAILED_READINGS: Final = 2
"""The number of ERR! from which on the GPU does not answer; a single one may be a fan's."""
_HOT_CELSIUS: Final = 95
"""A temperature at which each data centre GPU lowers its clocks."""
_BASEBOARD_GPUS: Final = 8


def judge_table(table: Table) -> Iterator[Finding]:
    for gpu in table.gpus:
        yield from _errors(gpu)
        yield from _memory(gpu, gpu.uncorrected or table.uncorrected_of_parts.get(gpu.number, 0))
        if gpu.celsius is not None and gpu.celsius >= _HOT_CELSIUS:
            yield SAYS["hot"].found({"celsius": gpu.celsius}, device=gpu.device, celsius=gpu.celsius, number=gpu.number)
    yield from _gaps([gpu.number for gpu in table.gpus])
    yield from _incomplete_board(table.gpus)


def _errors(gpu: TableGpu) -> Iterator[Finding]:
    text = "\n".join(gpu.lines)
    failed = text.count("ERR!") + text.count("Unknown Error")
    if lost := re.search(r"GPU (?:is lost|requires reset)", text):
        summary, severity = f"does not answer: {lost[0]}", Severity.CRITICAL
    elif failed >= _MIN_FAILED_READINGS:
        summary, severity = f"does not answer the driver: {failed} of its readings are ERR!", Severity.CRITICAL
    elif failed:
        summary, severity = "gives ERR! for one of its readings", Severity.WARNING
    else:
        return
    evidence = {"rows": [line.strip() for line in gpu.lines if "E" in line], "failed_readings": failed}
    yield SAYS["no_answer"].found(evidence, severity, device=gpu.device, told=summary, number=gpu.number)


def _memory(gpu: TableGpu, errors: int) -> Iterator[Finding]:
    """Ampere and newer contain such errors, so that they are critical only on GPUs which do not."""
    if not errors:
        return
    contained = not _P["without_containment"].search(gpu.name)
    yield SAYS["uncorrected"].found(
        {"uncorrected_since_driver_load": errors, "model": gpu.name},
        Severity.WARNING if contained else Severity.CRITICAL,
        device=gpu.device,
        number=gpu.number,
        errors=errors,
        noun="error" if errors == 1 else "errors",
    )


def _gaps(indices: Sequence[int]) -> Iterator[Finding]:
    """Numbers that are left out between others. Where most are left out, somebody asked for a few."""
    expected = max(indices, default=-1) + 1
    absent = sorted(set(range(expected)) - set(indices))
    if absent and len(indices) > len(absent):
        yield missing(f"GPU {', '.join(map(str, absent))}", len(indices), expected, "nvidia-smi leaves the number out")


def _incomplete_board(gpus: Sequence[TableGpu]) -> Iterator[Finding]:
    if len(gpus) != _BASEBOARD_GPUS - 1 or len({gpu.name for gpu in gpus}) > 1 or gpus[-1].number != len(gpus) - 1:
        return
    if _P["on_a_baseboard"].search(gpus[0].name):
        reason = f"boards with {gpus[0].name} have {_BASEBOARD_GPUS}, unless this is a container or a job with 7"
        yield missing("GPUs", len(gpus), _BASEBOARD_GPUS, reason, Severity.WARNING)


def missing(
    device: str, listed: int, expected: int, reason: str, severity: Severity = Severity.CRITICAL, **evidence: object
) -> Finding:
    found = {"listed": listed, "expected": expected, **evidence}
    count = expected - listed
    return SAYS["missing"].found(found, severity, device=device, count=count, expected=expected, reason=reason)


_MAX_CHARACTERS: Final = 1 << 20
_BOARD_DEVICES: Final = 8


def recognise_hl_smi(content: FileContent) -> bool:
    return is_table(content, _P["head"])


def judge_hl_smi(content: FileContent, hardware: KnownHardware) -> FileJudgement:
    text = without_colours(content.text[:_MAX_CHARACTERS])
    version, devices = _P["head"].search(text), read_table(text).gpus
    facts = {"devices": len(devices), "version": version[1] if version else ""}
    return FileJudgement(tuple(_judge(devices)), facts, "" if devices else "it lists no device: it is cut")


def _judge(devices: tuple[TableGpu, ...]) -> Iterator[Finding]:
    for device in devices:
        text = "\n".join(device.lines)
        name = f"Gaudi {device.number} ({device.bus_id})"
        evidence = {"rows": [line.strip() for line in device.lines], "model": device.name}
        if device.uncorrected:
            yield SAYS["gaudi_uncorrected"].found(evidence, device=name, errors=device.uncorrected)
        if _P["failed"].search(text):
            yield SAYS["gaudi_lost"].found(evidence, device=name)
    numbers = {device.number for device in devices}
    absent = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if absent and len(numbers) > len(absent):
        yield missing(f"Gaudi {', '.join(map(str, absent))}", len(numbers), max(numbers) + 1, "hl-smi leaves it out")
    elif len(devices) == _BOARD_DEVICES - 1:
        reason = f"boards have {_BOARD_DEVICES}, unless this is a container or a job with 7"
        yield missing("Gaudi devices", len(devices), _BOARD_DEVICES, reason, Severity.WARNING)


HL_SMI = FileFormat("hl-smi", recognise_hl_smi, judge_hl_smi)
