"""Events that amdgpu logged as findings of the probe gpu_xid: errors that no reset has closed, and resets that were the
answer to one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.gpu.model.amdgpu_log import AmdgpuEvent
from laggard.probes.gpu.model.amdgpu_messages import Kind
from laggard.probes.gpu.rules.amd_findings import POWER, REPLACE, RESET
from laggard.probes.host.kernel_log import last_at
from laggard.probes.probe import finding

RESET_SECONDS: Final = 300.0
"""The time after which a reset that was begun and did not end has failed: the driver waits for seconds, and for the
GPUs that are connected by XGMI to a minute."""

_CRITICAL: Final = {
    Kind.RESET_FAILED: POWER,
    Kind.RESET_BEGUN: POWER,
    Kind.LOST: POWER,
    Kind.NOT_STARTED: POWER,
    Kind.BOOT: POWER,
    Kind.XGMI_TRAINING: POWER,
}
"""The kinds after which a GPU cannot be used, or not with its peers, with what to do. All others are warnings: the
log alone says so, and gpu_ecc and nvlink_errors judge the counters."""

LASTING: Final = frozenset(_CRITICAL)
"""The kinds that count for as long as nothing closes them, however long ago they were logged."""

_OF_OTHER_PROBES: Final = frozenset({Kind.THRESHOLD, Kind.NEAR_THRESHOLD})
"""The kinds that gpu_rows judges."""


class EventJudgement(NamedTuple):
    """The findings, critical ones first; and what is none, for the facts."""

    findings: tuple[Finding, ...]
    facts: dict[str, Any]


def judge_amdgpu_events(
    events: Iterable[AmdgpuEvent], gpus: Collection[str], uptime: float, booted_at: float | None
) -> EventJudgement:
    """Makes one finding for each GPU and kind of error. `gpus`: the addresses of the machine's; what names another is
    of a GPU that is gone, and counts only where it says so. `uptime`: now, in seconds after boot. `booted_at`: Unix
    time, None for not known."""
    groups: dict[tuple[str, Kind], list[AmdgpuEvent]] = {}
    resets: dict[str, int] = {}
    faults = 0
    for event in events:
        if event.kind is Kind.PAGE_FAULT:
            faults += 1
        elif event.kind is Kind.RESET_DONE:
            resets[event.address] = resets.get(event.address, 0) + 1
        elif _counts(event, gpus, uptime):
            groups.setdefault((event.address, event.kind), []).append(event)
    for address, kind in list(groups):
        if kind is Kind.RESET_FAILED:
            groups.pop((address, Kind.RESET_BEGUN), None)
    findings = [made for group in groups.values() for made in _findings(group, resets, uptime, booted_at)]
    facts = {"amd_gpu_resets": resets, "page_faults_of_programs": faults}
    return EventJudgement(
        tuple(sorted(findings, key=lambda made: made.severity is not Severity.CRITICAL)),
        {name: value for name, value in facts.items() if value},
    )


def _counts(event: AmdgpuEvent, gpus: Collection[str], uptime: float) -> bool:
    if event.kind in _OF_OTHER_PROBES:
        return False
    if event.kind is Kind.RESET_BEGUN:
        is_over = event.seconds is None or uptime - event.seconds >= RESET_SECONDS
        return not event.closed_by and is_over and event.address in gpus
    return not event.address or event.address in gpus or event.kind is Kind.LOST


def _findings(
    group: Sequence[AmdgpuEvent], resets: dict[str, int], uptime: float, booted_at: float | None
) -> Iterator[Finding]:
    still_open = [event for event in group if not event.closed_by]
    if still_open:
        severity = Severity.CRITICAL if group[0].kind in _CRITICAL else Severity.WARNING
        yield _finding(still_open, "", severity, uptime, booted_at)
    elif group[-1].closed_by == "the GPU was reset":
        yield _finding(
            group, "; it was reset since, and what ran on it lost its memory", Severity.WARNING, uptime, booted_at
        )


def _finding(
    group: Sequence[AmdgpuEvent], then: str, severity: Severity, uptime: float, booted_at: float | None
) -> Finding:
    last = group[-1]
    ago = None if last.seconds is None else max(0, round(uptime - last.seconds))
    when = "" if ago is None else f", {_ago(ago)} ago"
    times = "" if len(group) == 1 else f", {len(group)} times"
    ecc = last.kind in (Kind.UNCORRECTABLE, Kind.FATAL, Kind.POISON, Kind.DEFERRED, Kind.XGMI, Kind.XGMI_PCS)
    return finding(
        "GPU_XID",
        f"GPU {last.address}" if last.address else "an AMD GPU",
        f"{last.kind.value}{times}{when}{then}",
        evidence={
            "kind": last.kind.name.lower(),
            "count": len(group),
            "last_seconds_ago": ago,
            **last_at(last.seconds, booted_at),
            "last": last.text,
            **({"closed_by": last.closed_by} if last.closed_by else {}),
        },
        fix=_CRITICAL.get(last.kind, REPLACE.replace("Take", "If it comes back, take") if ecc else RESET),
        commands=("dmesg -T | grep amdgpu", "amd-smi metric --ecc-blocks"),
        severity=severity,
    )


def _ago(seconds: int) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds // 60} min"
