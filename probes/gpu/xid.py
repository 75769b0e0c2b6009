"""GPU_XID: errors that the driver wrote to the kernel's log, since boot and within a look-back.

A line alone is a warning: critical is an error that something confirms which is true now, or which came again and again
(see rules/xid_rules.py).

amdgpu numbers no errors: its messages are told by their words, and those count that no reset of the GPU has closed
since. A GPU that its driver reset for an error of its own is a warning: what ran on it lost its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.amd_gpus import POWER_OFF, REPLACE, RESET
from laggard.probes.gpu.model.amdgpu_log import AmdgpuEvent, Kind, find_amdgpu_events
from laggard.probes.gpu.model.driver_log import RECOVERY_ACTION, TAKEN_BACK, WAS_RESET, XidLine, find_xids
from laggard.probes.gpu.model.pci_devices import find_nvidia_devices, why_confined
from laggard.probes.gpu.model.readings import query_nvml
from laggard.probes.gpu.rules.xid_rules import (
    TABLE_VERSION,
    Action,
    Devices,
    Witnesses,
    Xid,
    explain_sxid,
    explain_xid,
    find_witnesses,
)
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import age_text, last_at
from laggard.probes.host.virtualization import read_uptime, require_log
from laggard.probes.nvml.model import Nvml
from laggard.probes.probe import GPU, Fact, NotNegative, Probe, Thresholds, say

_DRIVERS_GPUS: Final = ("/proc/driver/nvidia/gpus", "/sys/bus/pci/drivers/nvidia")
_BUSES: Final = "/sys/class/pci_bus"
_GRAVE: Final = frozenset({Action.RESET, Action.REBOOT, Action.REPAIR})


class XidThresholds(Thresholds, frozen=True):
    look_back_seconds: NotNegative = 86400.0
    """The time for which an Xid counts. The other probes find whether the GPU is still at fault."""


_RESET_SECONDS: Final = 300.0
"""The time after which a reset that was begun and did not end has failed: the driver waits for seconds, and for the
GPUs that are connected by XGMI to a minute."""

_LASTING: Final = frozenset(
    {Kind.RESET_FAILED, Kind.RESET_BEGUN, Kind.LOST, Kind.NOT_STARTED, Kind.BOOT, Kind.XGMI_TRAINING}
)
"""The kinds after which a GPU cannot be used, or not with its peers: critical for as long as nothing closes them,
however long ago they were logged. All others are warnings: the log alone says so, and gpu_ecc and nvlink_errors judge
the counters."""

_ECC: Final = (Kind.UNCORRECTABLE, Kind.FATAL, Kind.POISON, Kind.DEFERRED, Kind.XGMI, Kind.XGMI_PCS)
_NO_FINDINGS: Final = (Kind.THRESHOLD, Kind.NEAR_THRESHOLD, Kind.RESET_DONE, Kind.PAGE_FAULT)
"""The kinds that gpu_rows judges, and those that are only counted."""


class LogJudgement(NamedTuple):
    """The findings, critical ones first; and what is none, for the facts."""

    findings: tuple[Finding, ...]
    facts: dict[str, Any]


def _judgement(findings: Iterable[Finding], facts: Mapping[str, Any]) -> LogJudgement:
    critical_first = sorted(findings, key=lambda found: found.severity is not Severity.CRITICAL)
    return LogJudgement(tuple(critical_first), {name: value for name, value in facts.items() if value})


def _told(judged: LogJudgement) -> Iterator[Finding | Fact]:
    yield from (Fact(name, value) for name, value in judged.facts.items())
    yield from judged.findings


def check(host: Host, thresholds: XidThresholds) -> Iterator[Finding | Fact]:
    pci = find_nvidia_devices(host)
    if pci.shown and not (pci.gpus or pci.amd_gpus or pci.unreadable):
        raise NotApplicable(f"no NVIDIA GPU among {pci.total} PCI devices")
    log = host.kernel_log()
    uptime = read_uptime(host)
    since = uptime - thresholds.look_back_seconds
    if pci.amd_gpus:
        events = _amdgpu_events(log, since)
        yield from _told(judge_amdgpu_events(events, pci.amd_gpus, uptime, host.boot_time(uptime)))
    lines = [line for line in find_xids(log) if line.seconds is None or line.seconds >= since]
    if pci.gpus or not pci.amd_gpus:
        yield Fact("table", TABLE_VERSION)
    begins = host.kernel_log_since(log)
    if begins is not None:
        yield Fact("log_reaches_back_seconds", round(uptime - begins))
    yield from _told(judge_xids(lines, uptime, _witnesses(host, lines), host.boot_time(uptime)))
    require_log(host, log, since, uptime)


def _amdgpu_events(log: str, since: float) -> list[AmdgpuEvent]:
    return [
        event
        for event in find_amdgpu_events(log)
        if event.seconds is None or event.seconds >= since or (event.kind in _LASTING and not event.closed_by)
    ]


def _witnesses(host: Host, lines: Iterable[XidLine]) -> Witnesses:
    """Asks the driver, only where that decides something: the call may hang, and what this probe found is lost with
    it."""
    grave = [line for line in _without_superseded(lines) if not line.closed_by and _explain(line).action in _GRAVE]
    if not grave:
        return Witnesses({}, frozenset())
    try:
        nvml = query_nvml(host)
    except (NotApplicable, Unknown) as error:
        nvml = Nvml(error=str(error))
    pci = find_nvidia_devices(host)
    devices = Devices(pci.gpus, pci.passed_through, bool(why_confined(host)))
    known = {gpu.bus_id for gpu in nvml.gpus} | {*pci.gpus, *pci.passed_through, *pci.nvswitches, *pci.unreadable}
    return find_witnesses([line for line in grave if _has_a_device(host, line, known)], nvml, devices)


def _has_a_device(host: Host, line: XidLine, known: Collection[str | None]) -> bool:
    """Returns whether the line names a device of this machine: one that is there, or that the driver had, or the bus
    that a device which is gone was on, and which stays with its bridge."""
    address = f"{line.bus_id}.0"
    if address in known:
        return True
    return any(address in host.names(folder) for folder in _DRIVERS_GPUS) or line.bus_id[:7] in host.names(_BUSES)


def judge_xids(
    lines: Iterable[XidLine],
    uptime: float | None = None,
    witnesses: Witnesses | None = None,
    booted_at: float | None = None,
) -> LogJudgement:
    """Makes one finding for each device and error. No findings are the errors of applications, what a reset has put
    right since, and what NVSwitches recovered from: their numbers are facts. `uptime`: now, in seconds after boot;
    None: not known, and findings have no age. `witnesses`: what confirms the errors; those that nothing confirms are
    warnings. None: there is the log alone, and its errors count by their numbers. `booted_at`: Unix time, for the time
    of an error's last line; None: not known."""
    groups: dict[tuple[str, int, Action], list[XidLine]] = {}
    facts: dict[str, dict[str, int]] = {}
    for line in _without_superseded(lines):
        action = _explain(line).action
        if line.closed_by:
            _count(facts, "xids_taken_back" if line.closed_by == TAKEN_BACK else "errors_before_a_reset", line)
        elif action is Action.APPLICATION and line.code != RECOVERY_ACTION:
            _count(facts, "xids_of_applications" if line.source == "Xid" else "sxids_not_fatal", line)
        elif action is not Action.APPLICATION:
            groups.setdefault((line.device, line.code, action), []).append(line)
    return _judgement((_xid_finding(group, uptime, witnesses, booted_at) for group in groups.values()), facts)


def _without_superseded(lines: Iterable[XidLine]) -> list[XidLine]:
    """Returns the lines without all but the last Xid 154 of each GPU: it reports a state, and the last one holds."""
    listed = list(lines)
    last = {line.bus_id: place for place, line in enumerate(listed) if line.code == RECOVERY_ACTION}
    return [line for place, line in enumerate(listed) if line.code != RECOVERY_ACTION or last[line.bus_id] == place]


def _count(facts: dict[str, dict[str, int]], name: str, line: XidLine) -> None:
    counts = facts.setdefault(name, {})
    key = str(line.code) if line.source == "Xid" or name == "sxids_not_fatal" else f"SXid {line.code}"
    counts[key] = counts.get(key, 0) + 1


def _explain(line: XidLine) -> Xid:
    return explain_xid(line.code, line.text) if line.source == "Xid" else explain_sxid(line.code, line.text)


def _xid_finding(
    lines: Sequence[XidLine], uptime: float | None, witnesses: Witnesses | None, booted_at: float | None
) -> Finding:
    last = lines[-1]
    xid = _explain(last)
    severity = Severity.CRITICAL if xid.action in _GRAVE else Severity.WARNING
    asked = ""
    if witnesses is not None and severity is Severity.CRITICAL:
        asked = witnesses.confirmed.get((last.device, last.code), "")
        severity = Severity.CRITICAL if asked else Severity.WARNING
        nothing = last.device in witnesses.asks_for_nothing
        asked = asked or ("the driver asks for nothing now" if nothing else "only the log says so")
    name = f"{last.source} {last.code}"
    times, counted = _how_often(lines, uptime, booted_at)
    now = {"now": asked} if asked else {}
    evidence = {last.source.lower(): last.code, **counted, "action": xid.action.value, **now}
    told = {"name": name, "told": f"{xid.meaning}{times}" + (f", and {asked}" if asked else "")}
    advice = {"advice": xid.action.value, "bus_id": last.bus_id}
    return say("gpu", last.source.lower(), last.device, evidence, severity, **told, **advice)


def _how_often(
    group: Sequence[XidLine | AmdgpuEvent], uptime: float | None, booted_at: float | None
) -> tuple[str, Mapping[str, object]]:
    """Returns the words for how often an error was logged, and when last; and the same as evidence."""
    last = group[-1]
    ago = None if uptime is None or last.seconds is None else max(0, round(uptime - last.seconds))
    times = "" if len(group) == 1 else f", {len(group)} times"
    when = "" if ago is None else f", {age_text(ago)} ago"
    counted: dict[str, object] = {"count": len(group), "last_seconds_ago": ago}
    return times + when, {**counted, **last_at(last.seconds, booted_at), "last": last.text[:200]}


def judge_amdgpu_events(
    events: Sequence[AmdgpuEvent], gpus: Collection[str], uptime: float, booted_at: float | None
) -> LogJudgement:
    """Makes one finding for each GPU and kind of error. `gpus`: the addresses of the machine's; what names another is
    of a GPU that is gone, and counts only where it says so. `uptime`: now, in seconds after boot. `booted_at`: Unix
    time, None for not known."""
    groups: dict[tuple[str, Kind], list[AmdgpuEvent]] = {}
    for event in events:
        if _counts(event, gpus, uptime):
            groups.setdefault((event.address, event.kind), []).append(event)
    findings = [
        made
        for (address, kind), group in groups.items()
        if not (kind is Kind.RESET_BEGUN and (address, Kind.RESET_FAILED) in groups)
        for made in _amdgpu_findings(group, uptime, booted_at)
    ]
    resets = Counter(event.address for event in events if event.kind is Kind.RESET_DONE)
    faults = sum(event.kind is Kind.PAGE_FAULT for event in events)
    return _judgement(findings, {"amd_gpu_resets": dict(resets), "page_faults_of_programs": faults})


def _counts(event: AmdgpuEvent, gpus: Collection[str], uptime: float) -> bool:
    if event.kind in _NO_FINDINGS:
        return False
    if event.kind is Kind.RESET_BEGUN:
        is_over = event.seconds is None or uptime - event.seconds >= _RESET_SECONDS
        return not event.closed_by and is_over and event.address in gpus
    return not event.address or event.address in gpus or event.kind is Kind.LOST


def _amdgpu_findings(group: Sequence[AmdgpuEvent], uptime: float, booted_at: float | None) -> Iterator[Finding]:
    """Yields a finding of the events that are open; without any, of those after which the GPU was reset."""
    still_open = [event for event in group if not event.closed_by]
    last = (still_open or group)[-1]
    if last.closed_by not in ("", WAS_RESET):
        return
    then = "; it was reset since, and what ran on it lost its memory" if last.closed_by else ""
    times, counted = _how_often(still_open or group, uptime, booted_at)
    fix = REPLACE.replace("Take", "If it comes back, take") if last.kind in _ECC else RESET
    device = f"GPU {last.address}" if last.address else "an AMD GPU"
    evidence = {"kind": last.kind.name.lower(), **counted}
    severity = Severity.CRITICAL if last.kind in _LASTING and not last.closed_by else Severity.WARNING
    fix = POWER_OFF if last.kind in _LASTING else fix
    yield say("gpu", "xid_amd", device, evidence, severity, told=f"{last.kind.value}{times}{then}", fix=fix)


PROBE: Final = Probe("gpu_xid", check, XidThresholds(), group=GPU)
