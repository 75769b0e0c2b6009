"""A node's report from what its probes observed: who failed, for which findings, and what is left without some of them.

Pure. `ProbeResult.reason` is rendered here for people; nothing reads it back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from laggard.kit.words import clipped, lazy_pattern, printable_line
from laggard.model import MAX_DEVICE, MAX_FINDINGS, Finding, ProbeResult, Report, Severity, Verdict, worst
from laggard.probes.errors import or_none
from laggard.probes.host.virtualization import parse_cpu_list
from laggard.probes.runner.worker import Observation

_REASON_LENGTH = 300
_NO_REASON = "it gave no reason"


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The observation of the probe `name`, and the seconds that it took."""

    name: str
    observation: Observation
    elapsed_seconds: float


def build_report(
    answers: Sequence[ProbeAnswer], *, node: str, elapsed_seconds: float, facts: dict[str, Any], warnings_fail: bool
) -> Report:
    """The report of `node`: results and findings in the order of `answers`. A critical finding fails its probe, and so
    the report; a warning does where `warnings_fail`. Of more findings than MAX_FINDINGS the worst are kept."""
    empty = Report(Verdict.SKIPPED, node, round(elapsed_seconds, 4), (), (), facts)
    told = [(answer, one_of_a_kind(answer.observation.findings)) for answer in answers]
    report = _joined(empty, [(_result(answer, found, warnings_fail), found) for answer, found in told])
    severities = list(Severity)
    worst_first = sorted(
        range(len(report.findings)), key=lambda place: severities.index(report.findings[place].severity)
    )
    return _joined(report, _parts(report, frozenset(worst_first[MAX_FINDINGS:])))


Part = tuple[ProbeResult, tuple[Finding, ...]]
"""A probe's result, and its findings. The places in the result are set where parts are joined."""


def _parts(report: Report, without: Collection[int] = ()) -> list[Part]:
    """`without`: the places of findings that are left out."""
    return [
        (it, tuple(report.findings[place] for place in it.findings if place not in without)) for it in report.probes
    ]


def _joined(report: Report, parts: Iterable[Part], **changes: Any) -> Report:
    """`report` with these parts in place of its own, and other `changes`."""
    results: list[ProbeResult] = []
    findings: list[Finding] = []
    for result, own in parts:
        places = tuple(range(len(findings), len(findings) + len(own)))
        results.append(msgspec.structs.replace(result, findings=places))
        findings += own
    verdict = worst(result.verdict for result in results)
    return msgspec.structs.replace(report, verdict=verdict, probes=tuple(results), findings=tuple(findings), **changes)


def merge_reports(first: Report, second: Report) -> Report:
    """The report of both runs on one node: `first` with the probes, findings and facts of `second` behind its own."""
    return _joined(
        first,
        [*_parts(first), *_parts(second)],
        elapsed_seconds=round(first.elapsed_seconds + second.elapsed_seconds, 4),
        facts={**first.facts, **second.facts},
    )


def replace_probes(report: Report, fresh: Report) -> Report:
    """`report` with the results, findings and facts of the probes of `fresh`, in place of its own of the same names."""
    names = {result.name for result in fresh.probes}
    kept = [part for part in _parts(report) if part[0].name not in names]
    facts = {name: value for name, value in report.facts.items() if name not in names}
    return merge_reports(_joined(report, kept, facts=facts), fresh)


def with_lowered(report: Report, lowered: Mapping[int, Finding], warnings_fail: bool) -> Report:
    """The report with these findings at their places, of a lower severity than before. They fail nothing."""
    return _changed(report, lowered, warnings_fail) if lowered else report


def drop_findings(report: Report, dropped: Collection[int], warnings_fail: bool) -> Report:
    """The report as if the findings at the places `dropped` had not been made. A probe that failed for nothing else is
    unknown where it could not judge everything, else ok."""
    return _changed(report, dict.fromkeys(dropped), warnings_fail)


def _changed(report: Report, changes: Mapping[int, Finding | None], warnings_fail: bool) -> Report:
    """The report with these findings at their places, None: without it. Those at other places alone fail a probe."""
    parts: list[Part] = []
    for result, others in _parts(report, changes):
        failing = [finding for finding in others if fails(finding, warnings_fail)]
        if result.verdict is Verdict.FAIL and len(others) < len(result.findings):
            without_failure = Verdict.UNKNOWN if result.unknown else Verdict.OK
            verdict = Verdict.FAIL if failing else without_failure
            result = msgspec.structs.replace(result, verdict=verdict, reason=_reason(failing, result.unknown))
        own = (changes.get(place, report.findings[place]) for place in result.findings)
        parts.append((result, tuple(finding for finding in own if finding)))
    return _joined(report, parts)


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


def _result(answer: ProbeAnswer, findings: Iterable[Finding], warnings_fail: bool) -> ProbeResult:
    observation = answer.observation
    failing = [finding for finding in findings if fails(finding, warnings_fail)]
    unknown = ""
    if observation.verdict is Verdict.UNKNOWN:
        unknown = printable_line(observation.reason, _REASON_LENGTH) or _NO_REASON
    return ProbeResult(
        name=answer.name,
        verdict=Verdict.FAIL if failing else observation.verdict,
        reason=_reason(failing, unknown or observation.reason),
        elapsed_seconds=round(answer.elapsed_seconds, 4),
        unknown=unknown,
    )


_ADDRESS: Final = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_FIGURE: Final = lazy_pattern(rf"{_ADDRESS}|\d+(?:\.\d+)?")
_OF_GPU: Final = lazy_pattern(rf"GPU (?:\d+ \()?({_ADDRESS})\)?")


def one_of_a_kind(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """A probe's findings, in which warnings that say the same of several devices, but for figures, are one finding. Its
    device has the names of all, and `evidence.devices` what is said of each. A warning of the kernel's log stays alone:
    it is an event of one device."""
    seen: Counter[Hashable] = Counter()
    kinds: dict[Hashable, list[Finding]] = {}
    for place, finding in enumerate(findings):
        kind: Hashable = place
        if finding.severity is Severity.WARNING and "last_at" not in finding.evidence:
            said = finding.code, _FIGURE.sub("#", finding.device), _FIGURE.sub("#", finding.summary)
            kind = *said, finding.evidence.get("of_users")  # by which an agent tells what no prolog has to look at
        seen[kind, finding.device] += 1
        kinds.setdefault((kind, seen[kind, finding.device]), []).append(finding)
    return tuple(alike[0] if len(alike) == 1 else joint(alike) for alike in kinds.values())


def joint(alike: Sequence[Finding]) -> Finding:
    """One finding for several that say the same of different devices."""
    devices = {it.device: it.summary for it in alike}
    gpus = [found[1] for device in devices if (found := _OF_GPU.fullmatch(device))]
    names = "GPU " + ", ".join(gpus) if len(gpus) == len(devices) else ", ".join(devices)
    evidence = {**alike[0].evidence, "devices": devices}
    return msgspec.structs.replace(alike[0], device=clipped(names, MAX_DEVICE), evidence=evidence)


def _reason(failing: Iterable[Finding], rest: str) -> str:
    return printable_line("; ".join(filter(None, [*map(finding_name, failing), rest])), _REASON_LENGTH)


_MAX_GPUS: Final = 4096


def parse_gpus(text: str) -> frozenset[int] | None:
    """The numbers of a list such as `0,1,4-7`, as SLURM writes it; None where `text` is something else."""
    gpus = or_none(parse_cpu_list, text, "SLURM's list")
    return gpus if gpus and len(gpus) <= _MAX_GPUS else None


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
    named = re.findall(_ADDRESS, finding.device)
    return bool(named) and all(address in addresses for address in named)


def _addresses_by_minor(report: Report) -> Mapping[int, str]:
    """PCI addresses of the GPUs by device minor, the N of /dev/nvidiaN, which SLURM counts GPUs by (gres.conf:
    File=/dev/nvidia[0-7])."""
    minors = report.facts.get("gpu_count", {}).get("minors", {})
    return {int(minor): address for minor, address in minors.items()}
