"""Findings from what NCCL calls to attention: lines of the levels WARN and, since 2.32, ATTN. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from laggard.model import Finding
from laggard.nccl.log.model import NcclProcess
from laggard.probes.nccl.model.job import evidence_of, hosts_of
from laggard.probes.probe import finding

_INVALID = re.compile(r"Invalid value (.{1,80}) for (NCCL_[A-Z0-9_]{1,80}), using default (-?\d{1,19})\.")
"""The line of src/misc/param.cc of 2.32 on a value that is not valid."""

_DEGRADED = re.compile(r"MNNVL busId (\S{1,40}) NVLink fabric health reports (DEGRADED_BANDWIDTH)\b")


def judge_attention(processes: Sequence[NcclProcess]) -> tuple[Finding, ...]:
    """Returns a finding for each variable whose value NCCL could not read, and for each GPU whose NVLinks it found
    degraded."""
    by_match: dict[tuple[str, ...], list[NcclProcess]] = {}
    for process in processes:
        for text in process.warnings:
            if found := _INVALID.match(text):
                by_match.setdefault(("invalid", found[2], found[1], found[3]), []).append(process)
            elif found := _DEGRADED.match(text):
                by_match.setdefault(("degraded", process.host, found[1], text), []).append(process)
    return tuple(_finding(key, own) for key, own in by_match.items())


def _finding(key: tuple[str, ...], processes: list[NcclProcess]) -> Finding:
    kind, first, second, third = key
    if kind == "invalid":
        return finding(
            "NCCL_ENV_INERT",
            first,
            f"{second} is no number: NCCL uses its default, {third}",
            evidence={"value": second, "default": third, "set_on": hosts_of(processes)} | evidence_of(processes),
            fix=f"Give {first} a number, or remove it.",
        )
    return finding(
        "FABRIC_NOT_READY",
        f"{first or 'the job'} {second}",
        "NCCL found the bandwidth of the GPU's NVLink fabric degraded",
        evidence={"log": third} | evidence_of(processes),
        fix="`nvidia-smi -q` of this GPU, section Fabric, and the fabric manager's log name the links.",
    )
