"""Findings from the table of `nvidia-smi`. Pure.

N/A, Off and idle clocks are no fault. ERR! is what nvidia-smi prints where the driver answers with an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from laggard.diagnose.gpu_tools.smi_table import Table, TableGpu
from laggard.model import Finding, Severity
from laggard.probes.probe import finding

_MIN_FAILED_READINGS: Final = 2
"""The number of ERR! from which on the GPU does not answer; a single one may be a fan's."""
_HOT_CELSIUS: Final = 95
"""A temperature at which each data centre GPU lowers its clocks."""
_WITHOUT_CONTAINMENT = re.compile(r"\b(?:K80|M\d0|P\d{1,3}|V100\w*|T4|RTX \d000)\b|TITAN")
_ON_A_BASEBOARD = re.compile(r"SXM|HBM3|HGX|\bB[23]00\b|H200(?! NVL)")
_BASEBOARD_GPUS: Final = 8

_LOST_FIX: Final = (
    "End what runs on it and reset it (`nvidia-smi --gpu-reset -i INDEX`; on NVSwitch systems all GPUs together). If "
    "it still does not answer, power the node off and on; if that does not help, replace it."
)
MISSING_FIX: Final = (
    "Look for the GPU in the kernel's log (`NVRM: GPU ... has fallen off the bus`, `RmInitAdapter failed`) and on the "
    "bus. Power the node off and on (not a mere reboot); if it stays away, reseat or replace it."
)


def judge_table(table: Table) -> Iterator[Finding]:
    for gpu in table.gpus:
        yield from _errors(gpu)
        yield from _memory(gpu, gpu.uncorrected or table.uncorrected_of_parts.get(gpu.number, 0))
        if gpu.celsius is not None and gpu.celsius >= _HOT_CELSIUS:
            fix = "Check inlet temperature, fans or coolant flow, and heat-sink seating; compare with the other GPUs."
            commands = (f"nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {gpu.number}",)
            yield finding(
                "GPU_TOO_HOT", gpu.device, f"is hot: {gpu.celsius} C", evidence={"celsius": gpu.celsius}, fix=fix,
                commands=commands, severity=Severity.WARNING,
            )  # fmt: skip
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
    yield finding(
        "GPU_LOST",
        gpu.device,
        summary,
        evidence={"rows": [line.strip() for line in gpu.lines if "E" in line], "failed_readings": failed},
        fix=_LOST_FIX,
        commands=(f"nvidia-smi -q -i {gpu.number}", "dmesg -T | grep -E 'NVRM|pcieport'"),
        severity=severity,
    )


def _memory(gpu: TableGpu, errors: int) -> Iterator[Finding]:
    """Ampere and newer contain such errors, so that they are critical only on GPUs which do not."""
    if not errors:
        return
    contained = not _WITHOUT_CONTAINMENT.search(gpu.name)
    noun = "error" if errors == 1 else "errors"
    yield finding(
        "GPU_ECC_UNCORRECTED",
        gpu.device,
        f"{errors} memory {noun} not correctable (uncorrectable ECC), since the driver was loaded",
        evidence={"uncorrected_since_driver_load": errors, "model": gpu.name},
        fix="Drain the node and reset the GPU, which replaces the faulty row or page. If errors come back, run "
        "`dcgmi diag -r 3` and return the board.",
        commands=(f"nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT -i {gpu.number}",),
        severity=Severity.WARNING if contained else Severity.CRITICAL,
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
    if _ON_A_BASEBOARD.search(gpus[0].name):
        reason = f"boards with {gpus[0].name} have {_BASEBOARD_GPUS}, unless this is a container or a job with 7"
        yield missing("GPUs", len(gpus), _BASEBOARD_GPUS, reason, Severity.WARNING)


def missing(
    device: str, listed: int, expected: int, reason: str, severity: Severity = Severity.CRITICAL, **evidence: object
) -> Finding:
    return finding(
        "GPU_MISSING",
        device,
        f"{expected - listed} of {expected} missing: {reason}",
        evidence={"listed": listed, "expected": expected, **evidence},
        fix=MISSING_FIX,
        commands=("lspci -d 10de: | grep -v Audio", "dmesg -T | grep -E 'NVRM|pcieport'"),
        severity=severity,
    )
