"""A job that has some of a node's GPUs is judged by those, and by what all GPUs share: links, disks, limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from laggard.errors import UsageError
from laggard.model import Finding, ProbeResult, Report, Severity, Verdict, worst
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host

_VARIABLE = "SLURM_JOB_GPUS"
_MOST = 4096
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def job_gpus(flag: str | None, host: Host) -> frozenset[int] | None:
    """The device minors of the job's GPUs; None where all are to be judged. Raises UsageError for a bad flag."""
    if flag:
        gpus = parse_gpus(flag)
        if gpus is None:
            raise UsageError(f"--gpus takes numbers such as 0,1,4-7, not {flag!r}")
        return gpus
    try:
        return parse_gpus(host.environ().get(_VARIABLE, ""))
    except Unknown:
        return None


def parse_gpus(text: str) -> frozenset[int] | None:
    """`0,1,4-7` as SLURM writes it. None where it is something else: then nothing is left out."""
    gpus: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 5 for end in ends):
            return None
        gpus.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(gpus) if 0 < len(gpus) <= _MOST else None


def for_job(report: Report, wanted: frozenset[int] | None) -> Report:
    """The report without the findings on GPUs that the job does not have. Where one of its numbers is no GPU that the
    probes saw, all of it counts."""
    addresses = gpu_addresses(report)
    if wanted is None or not wanted <= addresses.keys():
        return report
    others = {address for minor, address in addresses.items() if minor not in wanted}
    aside = [finding for finding in report.findings if _is_on(others, finding.device)]
    return without(report, aside) if aside else report


def gpu_addresses(report: Report) -> Mapping[int, str]:
    """PCI addresses of the GPUs by device minor, the N of /dev/nvidiaN, which is what SLURM counts GPUs by (gres.conf:
    File=/dev/nvidia[0-7])."""
    minors = report.facts.get("gpu_count", {}).get("minors", {})
    return {int(minor): address for minor, address in minors.items()}


def _is_on(addresses: Collection[str], device: str) -> bool:
    """Whether `device` is some of these GPUs and nothing besides."""
    named = _ADDRESS.findall(device)
    return bool(named) and all(address in addresses for address in named)


def without(report: Report, aside: Collection[Finding]) -> Report:
    """The report as if `aside` had not been found; they stay among the facts."""
    kept = tuple(finding for finding in report.findings if finding not in aside)
    dropped = {_named(finding) for finding in aside}
    serious = {_named(finding) for finding in kept if finding.severity is not Severity.INFO}
    probes = tuple(_without(result, dropped - serious, serious) for result in report.probes)
    return msgspec.structs.replace(
        report,
        verdict=worst(result.verdict for result in probes),
        probes=probes,
        findings=kept,
        facts={**report.facts, "other_gpus": sorted(dropped)},
    )


def _without(result: ProbeResult, dropped: Collection[str], serious: Collection[str]) -> ProbeResult:
    """A failed probe names what it failed for. What is left of its reason, but for findings, is what it could not
    tell."""
    if result.verdict is not Verdict.FAIL:
        return result
    said = result.reason.split("; ")
    left = [words for words in said if words not in dropped]
    if left == said or any(words in serious for words in left):
        return msgspec.structs.replace(result, reason="; ".join(left))
    return msgspec.structs.replace(result, verdict=Verdict.UNKNOWN if left else Verdict.OK, reason="; ".join(left))


def _named(finding: Finding) -> str:
    return f"{finding.code} {finding.device}"
