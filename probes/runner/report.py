"""A node's report from what its probes observed: who failed, for which findings, and what is left without some of them.

Pure. `ProbeResult.reason` is rendered here for people; nothing reads it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from laggard.kit.words import lazy_pattern, printable_line
from laggard.model import (
    MAX_FINDINGS,
    Finding,
    ProbeResult,
    Report,
    Severity,
    Verdict,
    worst,
)
from laggard.probes.runner.worker import Observation

_REASON_LENGTH = 300
_NO_REASON = "it gave no reason"


class ProbeAnswer(NamedTuple):
    """The observation of the probe `name`, and the seconds that it took."""

    name: str
    observation: Observation
    elapsed_seconds: float


def build_report(
    answers: Sequence[ProbeAnswer], *, node: str, elapsed_seconds: float, facts: dict[str, Any], warnings_fail: bool
) -> Report:
    """The report of `node`: results and findings in the order of `answers`. A critical finding fails its probe, and so
    the report; a warning does where `warnings_fail`. Of more findings than MAX_FINDINGS the worst are kept."""
    results = _results(answers, warnings_fail)
    findings = tuple(finding for answer in answers for finding in answer.observation.findings)
    kept = sorted(_worst(findings))
    moved = {place: number for number, place in enumerate(kept)}
    return Report(
        verdict=worst(result.verdict for result in results),
        node=node,
        elapsed_seconds=round(elapsed_seconds, 4),
        probes=tuple(_renumbered(result, moved) for result in results),
        findings=tuple(findings[place] for place in kept),
        facts=facts,
    )


def _worst(findings: Sequence[Finding]) -> list[int]:
    """The places of the worst MAX_FINDINGS."""
    severities = list(Severity)
    return sorted(range(len(findings)), key=lambda place: severities.index(findings[place].severity))[:MAX_FINDINGS]


def _results(answers: Iterable[ProbeAnswer], warnings_fail: bool) -> tuple[ProbeResult, ...]:
    """One result for each answer. The places count the findings of all `answers` in order."""
    results: list[ProbeResult] = []
    first = 0
    for answer in answers:
        places = range(first, first + len(answer.observation.findings))
        results.append(_result(answer, tuple(places), warnings_fail))
        first = places.stop
    return tuple(results)


def merge_reports(first: Report, second: Report) -> Report:
    """The report of both runs on one node: `first` with the probes, findings and facts of `second` behind its own."""
    moved = {place: place + len(first.findings) for place in range(len(second.findings))}
    results = (*first.probes, *(_renumbered(result, moved) for result in second.probes))
    return msgspec.structs.replace(
        first,
        verdict=worst(result.verdict for result in results),
        elapsed_seconds=round(first.elapsed_seconds + second.elapsed_seconds, 4),
        probes=results,
        findings=(*first.findings, *second.findings),
        facts={**first.facts, **second.facts},
    )


def replace_probes(report: Report, fresh: Report, warnings_fail: bool) -> Report:
    """`report` with the results, findings and facts of the probes of `fresh`, in place of its own of the same names."""
    names = {result.name for result in fresh.probes}
    dropped = {place for result in report.probes if result.name in names for place in result.findings}
    rest = drop_findings(report, dropped, warnings_fail)
    kept = tuple(result for result in rest.probes if result.name not in names)
    facts = {name: value for name, value in rest.facts.items() if name not in names}
    return merge_reports(msgspec.structs.replace(rest, probes=kept, facts=facts), fresh)


def with_lowered(report: Report, lowered: Mapping[int, Finding], warnings_fail: bool) -> Report:
    """The report with these findings at their places, of a lower severity than before."""
    if not lowered:
        return report
    findings = tuple(lowered.get(place, it) for place, it in enumerate(report.findings))
    without = frozenset(range(len(findings))) - lowered.keys()
    results = tuple(_rejudged(it, findings, without, warnings_fail) for it in report.probes)
    return msgspec.structs.replace(
        report, verdict=worst(result.verdict for result in results), probes=results, findings=findings
    )


def drop_findings(report: Report, dropped: Collection[int], warnings_fail: bool) -> Report:
    """The report as if the findings at the places `dropped` had not been made. A probe that failed for nothing else is
    unknown where it could not judge everything, else ok."""
    kept = [place for place in range(len(report.findings)) if place not in dropped]
    moved = {place: number for number, place in enumerate(kept)}
    results = [_renumbered(_rejudged(it, report.findings, moved, warnings_fail), moved) for it in report.probes]
    return msgspec.structs.replace(
        report,
        verdict=worst(result.verdict for result in results),
        probes=tuple(results),
        findings=tuple(report.findings[place] for place in kept),
    )


def places_are_complete(report: Report) -> bool:
    """Whether each finding is named by exactly one probe. It is not in the report of an agent that is older than
    `ProbeResult.findings`."""
    places = sorted(place for result in report.probes for place in result.findings)
    return places == list(range(len(report.findings)))


def fails(finding: Finding, warnings_fail: bool) -> bool:
    """Whether `finding` fails its probe, and so the report."""
    return finding.severity is Severity.CRITICAL or (warnings_fail and finding.severity is Severity.WARNING)


def finding_name(finding: Finding) -> str:
    """`finding` in a list: its code and device."""
    return f"{finding.code} {finding.device}"


def _result(answer: ProbeAnswer, places: tuple[int, ...], warnings_fail: bool) -> ProbeResult:
    observation = answer.observation
    failing = [finding for finding in observation.findings if fails(finding, warnings_fail)]
    unknown = _unknown_part(observation)
    return ProbeResult(
        name=answer.name,
        verdict=Verdict.FAIL if failing else observation.verdict,
        reason=_reason(failing, unknown or observation.reason),
        elapsed_seconds=round(answer.elapsed_seconds, 4),
        findings=places,
        unknown=unknown,
    )


def _unknown_part(observation: Observation) -> str:
    if observation.verdict is not Verdict.UNKNOWN:
        return ""
    return printable_line(observation.reason, _REASON_LENGTH) or _NO_REASON


def _rejudged(
    result: ProbeResult, findings: Sequence[Finding], kept: Collection[int], warnings_fail: bool
) -> ProbeResult:
    if result.verdict is not Verdict.FAIL or all(place in kept for place in result.findings):
        return result
    failing = [findings[place] for place in result.findings if place in kept and fails(findings[place], warnings_fail)]
    without_failure = Verdict.UNKNOWN if result.unknown else Verdict.OK
    return msgspec.structs.replace(
        result,
        verdict=Verdict.FAIL if failing else without_failure,
        reason=_reason(failing, result.unknown),
    )


def _renumbered(result: ProbeResult, moved: Mapping[int, int]) -> ProbeResult:
    """`moved`: the new place by the old one; the other places are left out."""
    return msgspec.structs.replace(result, findings=tuple(moved[place] for place in result.findings if place in moved))


def _reason(failing: Iterable[Finding], rest: str) -> str:
    return printable_line("; ".join(filter(None, [*map(finding_name, failing), rest])), _REASON_LENGTH)


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
