"""The findings about AMD's GPUs: what amdgpu shows of a GPU, judged. Pure.

No number of errors is AMD's public limit, so that none is judged by its size: an error counts that could not be
corrected, a page that could not be taken out of use, a limit that the driver or the GPU itself names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.gpu.model.amd_gpus import AmdGpu, BadPages
from laggard.probes.gpu.model.amdgpu_log import AmdgpuEvent, Kind
from laggard.probes.host.kernel_log import age_text, last_at
from laggard.probes.probe import finding

RESET: Final = (
    "Drain the node and reset the GPU (`amd-smi reset -G`); with XGMI all GPUs of the node are reset together."
)
REPLACE: Final = "Take the node out of service and have the GPU replaced (AMD's Service Action Guide)."
POWER: Final = "Drain the node and power it off and on; a GPU that does it again has to be replaced."
_KEEPS_WORKING: Final = (
    "The driver has ended the program that met the error, or reset the GPU, and keeps the page out of use: the GPU "
    "takes new work. If errors come back, have it replaced."
)
_HEAT: Final = "Check inlet temperature, fans or coolant flow, heat-sink seating and dust; compare with the other GPUs."
_PLATFORM: Final = (
    "Check the power supplies, their redundancy and the rack's power cap; PROCHOT is pulled from outside."
)
_UNUSABLE: Final = {
    Kind.RESET_FAILED: "the driver could not reset it",
    Kind.RESET_BEGUN: "the driver's reset of it has not ended",
    Kind.LOST: "it was lost from the bus",
    Kind.THRESHOLD: "it has more bad pages than its driver allows",
}
"""The kinds of open events after which a GPU takes no new work."""

_REGULATORS: Final = "heat of its voltage regulators"
_PROCHOT: Final = "the platform (PROCHOT)"
_SMU_BITS: Final = {
    **dict.fromkeys((32, 33, 35, 36, 37), "heat"),
    34: "heat of its memory",
    **dict.fromkeys((38, 39, 40, 41, 44, 45), _REGULATORS),
    **dict.fromkeys((42, 43), "heat of its coolant"),
    **dict.fromkeys((46, 47), _PROCHOT),
}
"""The bits of indep_throttle_status for heat and for the platform (SMU_THROTTLER_*_BIT, amdgpu_smu.h). The limits of
power and current below them (PPT, TDC, EDC) are those that a busy GPU runs at."""

_RESIDENCY_WORDS: Final = {
    "prochot": _PROCHOT,
    "socket_thm": "heat",
    "vr_thm": _REGULATORS,
    "hbm_thm": "heat of its memory",
}
"""The words for residencies. The limit of power, ppt, is not among them: a busy GPU runs at its limit."""


class Recent(NamedTuple):
    """Uncorrectable errors of a GPU by block, and the words for the time that they are of."""

    by_block: Mapping[str, int]
    since: str


def why_unusable(kinds: Collection[Kind]) -> str:
    """Returns why a GPU with these open events takes no new work; empty where nothing shows that."""
    return next((words for kind, words in _UNUSABLE.items() if kind in kinds), "")


def judge_errors(gpu: AmdGpu, recent: Recent, kinds: Collection[Kind]) -> Iterator[Finding]:
    """`kinds`: of the GPU's events in the kernel's log that nothing closed."""
    blocks = {block: count for block, count in recent.by_block.items() if count > 0}
    if not blocks:
        return
    total, unusable = sum(blocks.values()), why_unusable(kinds)
    where = ", ".join(sorted(blocks))
    yield finding(
        "GPU_ECC_UNCORRECTED",
        gpu.device,
        f"{total} {'error' if total == 1 else 'errors'} not correctable (RAS, {where}), {recent.since}"
        + (f"; {unusable}" if unusable else ""),
        evidence={
            "uncorrected": total,
            "by_block": blocks,
            "since": recent.since,
            "uncorrected_since_driver_load": {block: count.uncorrectable for block, count in gpu.ras.items()},
        },
        fix=RESET if unusable else _KEEPS_WORKING,
        commands=("amd-smi metric --ecc-blocks", "amd-smi bad-pages", "dmesg -T | grep amdgpu"),
        severity=Severity.CRITICAL if unusable else Severity.WARNING,
    )


def judge_bad_pages(gpu: AmdGpu, threshold: int | None, kinds: Collection[Kind]) -> Iterator[Finding]:
    """`threshold`: the administrator's, None for none; `kinds`: of the GPU's events in the log since boot."""
    pages = gpu.bad_pages or BadPages(0, 0, 0)
    bad = sum(pages)
    if Kind.THRESHOLD in kinds:
        yield _pages(
            gpu, "has more bad pages of memory than its driver allows: it says so in the kernel's log", threshold
        )
    elif threshold is not None and bad > threshold:
        yield _pages(gpu, f"has {bad} bad pages of memory, and {threshold} are allowed (bad_page_threshold)", threshold)
    elif pages.failed:
        yield _pages(
            gpu, f"could not take {_counted(pages.failed)} of memory out of use, where programs may use it", threshold
        )
    if pages.pending:
        yield finding(
            "GPU_ROW_REMAP_PENDING",
            gpu.device,
            f"has {_counted(pages.pending)} of memory that a program still uses, out of use when it ends",
            evidence=pages._asdict(),
            fix="Let the job end; then reset the GPU, or load the driver anew.",
            commands=("amd-smi bad-pages",),
        )


def _counted(pages: int) -> str:
    return f"{pages} bad page{'' if pages == 1 else 's'}"


def _pages(gpu: AmdGpu, summary: str, threshold: int | None) -> Finding:
    evidence = {**(gpu.bad_pages._asdict() if gpu.bad_pages else {}), "bad_page_threshold": threshold}
    return finding(
        "GPU_ROW_REMAP_FAILED",
        gpu.device,
        summary,
        evidence=evidence,
        fix=REPLACE,
        commands=("amd-smi bad-pages", "dmesg -T | grep -i 'bad page\\|threshold'"),
    )


def judge_bus(gpu: AmdGpu) -> Iterator[Finding]:
    if gpu.on_the_bus is False:
        yield finding(
            "GPU_LOST",
            gpu.device,
            "no longer answers on the bus: its configuration space reads as ones",
            evidence={"driver": "amdgpu" if gpu.started else None},
            fix=POWER,
            commands=(f"lspci -vv -s {gpu.address}", "dmesg -T | grep amdgpu"),
        )


def judge_temperatures(gpu: AmdGpu) -> Iterator[Finding]:
    """The `crit` of hwmon is where the GPU slows itself down, `emergency` where it switches itself off: amd-smi calls
    them SLOWDOWN and SHUTDOWN. The worst sensor counts."""
    reached = {
        label: sensor
        for label, sensor in gpu.temperatures.items()
        if sensor.critical is not None and 0 < sensor.critical <= sensor.now
    }
    if not reached:
        return
    worst = max(reached, key=lambda label: reached[label].now - (reached[label].critical or 0))
    yield finding(
        "GPU_TOO_HOT",
        gpu.device,
        f"at its slowdown temperature: {worst} {reached[worst].now:.0f} C of {reached[worst].critical:.0f}",
        evidence={label: sensor._asdict() for label, sensor in gpu.temperatures.items()},
        fix=_HEAT,
        commands=("amd-smi metric --temperature",),
    )


def throttled_shares(cycles: int, residencies: Mapping[str, int]) -> dict[str, float]:
    """Returns by reason the share of the firmware's cycles in which clocks were lowered for it; the limit of power is
    left out. `cycles` and `residencies`: their increases in the same time (amd-smi computes its `violation activity`
    so: amdsmi, amd_smi.cc, amdsmi_get_violation_status)."""
    if cycles <= 0:
        return {}
    return {name: min(count / cycles, 1.0) for name, count in residencies.items() if name in _RESIDENCY_WORDS}


def judge_throttling(
    gpu: AmdGpu, shares: Mapping[str, float], seconds: float, warning: float, critical: float
) -> Iterator[Finding]:
    if not shares:
        yield from _throttled_now(gpu)
        return
    worst = max(shares, key=lambda name: shares[name])
    share = shares[worst]
    if share >= warning:
        severity = Severity.CRITICAL if share >= critical else Severity.WARNING
        when = f"{share:.0%} of the last {seconds:.0f} s"
        evidence = {
            "share_of_time": {name: round(value, 4) for name, value in shares.items()},
            "seconds": round(seconds),
        }
        yield _throttled(gpu, _RESIDENCY_WORDS[worst], when, severity, evidence)


def _throttled_now(gpu: AmdGpu) -> Iterator[Finding]:
    bits = gpu.metrics.throttle_bits if gpu.metrics else None
    words = [word for bit, word in _SMU_BITS.items() if bits is not None and bits >> bit & 1]
    if words:
        evidence = {"indep_throttle_status": f"{bits:#x}", "reasons_now": sorted(set(words))}
        yield _throttled(gpu, words[0], "at this moment", Severity.WARNING, evidence)


def _throttled(gpu: AmdGpu, reason: str, when: str, severity: Severity, evidence: Mapping[str, object]) -> Finding:
    return finding(
        "GPU_THROTTLED",
        gpu.device,
        f"slowed down by {reason}, {when}",
        evidence={**evidence, "celsius": {label: sensor.now for label, sensor in gpu.temperatures.items()}},
        fix=_PLATFORM if reason == _PROCHOT else _HEAT,
        commands=("amd-smi metric --throttle --temperature --power",),
        severity=severity,
    )


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
    when = "" if ago is None else f", {age_text(ago)} ago"
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
