"""Judges a job by the GPUs that it has, and by what all GPUs share: links, disks, limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from laggard.model import Finding, Report
from laggard.probes.runner.report import drop_findings, finding_name
from laggard.text.lazy_pattern import lazy_pattern

_MAX_GPUS: Final = 4096
_ADDRESS = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def parse_gpus(text: str) -> frozenset[int] | None:
    """The numbers of a list such as `0,1,4-7`, as SLURM writes it; None where `text` is something else."""
    gpus: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 5 for end in ends):
            return None
        gpus.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(gpus) if 0 < len(gpus) <= _MAX_GPUS else None


def for_job(report: Report, wanted: frozenset[int] | None, warnings_fail: bool) -> Report:
    """The report without the findings on GPUs that the job does not have; their names stay in the fact `other_gpus`.
    All findings count where one of `wanted` is no GPU that the probes saw. `warnings_fail`: whether a warning fails
    its probe, as it did when the report was made."""
    others = other_gpus(report, wanted)
    dropped = {place for place, finding in enumerate(report.findings) if is_only_on(others, finding)}
    if not dropped:
        return report
    names = sorted({finding_name(report.findings[place]) for place in dropped})
    judged = drop_findings(report, dropped, warnings_fail)
    return msgspec.structs.replace(judged, facts={**judged.facts, "other_gpus": names})


def other_gpus(report: Report, wanted: frozenset[int] | None) -> frozenset[str]:
    """The PCI addresses of the node's GPUs that are not of `wanted`; none where all findings count."""
    addresses = _addresses_by_minor(report)
    if wanted is None or not wanted <= addresses.keys():
        return frozenset()
    return frozenset(address for minor, address in addresses.items() if minor not in wanted)


def is_only_on(addresses: Collection[str], finding: Finding) -> bool:
    """Whether the finding's device names GPUs, and only GPUs at `addresses`."""
    named = _ADDRESS.findall(finding.device)
    return bool(named) and all(address in addresses for address in named)


def _addresses_by_minor(report: Report) -> Mapping[int, str]:
    """PCI addresses of the GPUs by device minor, the N of /dev/nvidiaN, which SLURM counts GPUs by (gres.conf:
    File=/dev/nvidia[0-7])."""
    minors = report.facts.get("gpu_count", {}).get("minors", {})
    return {int(minor): address for minor, address in minors.items()}
