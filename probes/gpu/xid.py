"""GPU_XID: errors that the driver wrote to the kernel's log, since boot and within a look-back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.gpu.model.pci_devices import find_nvidia_devices
from laggard.probes.gpu.rules.xid_table import TABLE_VERSION, Action, explain_xid
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import parse_messages
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d{1,5})\b[,:]?\s*(.*)"
)
_SEVERITY: Final = {
    Action.RESET: Severity.CRITICAL,
    Action.REBOOT: Severity.CRITICAL,
    Action.REPAIR: Severity.CRITICAL,
    Action.WATCH: Severity.WARNING,
}


class XidThresholds(Thresholds, frozen=True):
    look_back_seconds: float = 86400.0
    """How long an Xid counts. Whether the GPU is still at fault is for the other probes to find."""


class XidLine(NamedTuple):
    seconds: float | None  # after boot
    bus_id: str  # 0000:9b:00
    code: int
    text: str


def check(host: Host, thresholds: XidThresholds) -> Iterator[Finding | Fact]:
    pci = find_nvidia_devices(host)
    if not pci.gpus and not pci.unreadable:
        raise NotApplicable(f"no NVIDIA GPU among {pci.total} PCI devices")
    log = host.kernel_log()
    uptime = _uptime(host)
    since = uptime - thresholds.look_back_seconds
    lines = [line for line in find_xids(log) if line.seconds is None or line.seconds >= since]
    yield Fact("table", TABLE_VERSION)
    oldest = next((message.seconds for message in parse_messages(log) if message.seconds is not None), None)
    if oldest is not None:
        yield Fact("log_reaches_back_seconds", round(uptime - oldest))
    yield from _judge(lines, uptime)


def find_xids(log: str) -> Iterator[XidLine]:
    """Finds the driver's Xids in a kernel log of any form that host/kernel_log.py reads. PCI domains longer than four
    digits are shortened as in sysfs."""
    for message in parse_messages(log):
        if found := _XID.search(message.text):
            domain, _, rest = found[1].lower().partition(":")
            yield XidLine(message.seconds, f"{domain[-4:]}:{rest}", int(found[2]), found[3].strip())


def judge_xids(lines: list[XidLine], uptime: float | None = None) -> tuple[list[Finding], dict[str, int]]:
    """Returns findings, one for each GPU and Xid, critical ones first; and the number of errors of applications by Xid,
    which are no findings. `uptime`: now, in seconds after boot; None: not known, and findings have no age."""
    groups: dict[tuple[str, int, Action], list[XidLine]] = {}
    applications: dict[str, int] = {}
    for line in lines:
        action = explain_xid(line.code, line.text).action
        if action is Action.APPLICATION:
            applications[str(line.code)] = applications.get(str(line.code), 0) + 1
        else:
            groups.setdefault((line.bus_id, line.code, action), []).append(line)
    findings = [_finding(group, uptime) for group in groups.values()]
    return sorted(findings, key=lambda found: found.severity is not Severity.CRITICAL), applications


def _judge(lines: list[XidLine], uptime: float) -> Iterator[Finding | Fact]:
    findings, applications = judge_xids(lines, uptime)
    if applications:
        yield Fact("xids_of_applications", applications)
    yield from findings


def _finding(lines: list[XidLine], uptime: float | None) -> Finding:
    last = lines[-1]
    xid = explain_xid(last.code, last.text)
    ago = None if uptime is None or last.seconds is None else max(0, round(uptime - last.seconds))
    evidence: Mapping[str, object] = {
        "xid": last.code,
        "count": len(lines),
        "last_seconds_ago": ago,
        "last": last.text[:200],
        "action": xid.action.value,
    }
    when = "" if ago is None else f", {_ago(ago)} ago"
    times = "" if len(lines) == 1 else f", {len(lines)} times"
    return finding(
        "GPU_XID",
        f"GPU {last.bus_id}.0",
        f"Xid {last.code}: {xid.meaning}{times}{when}",
        evidence=evidence,
        fix=f"NVIDIA's advice for Xid {last.code}: {xid.action.value}.",
        commands=("dmesg -T | grep -E 'NVRM|Xid'", f"nvidia-smi -q -i {last.bus_id}.0"),
        severity=_SEVERITY[xid.action],
    )


def _ago(seconds: int) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds // 60} min"


def _uptime(host: Host) -> float:
    text = host.read("/proc/uptime").split()
    try:
        return float(text[0])
    except (IndexError, ValueError):
        raise Unknown("/proc/uptime holds no number of seconds") from None


PROBE: Final = Probe("gpu_xid", check, XidThresholds(), group=GPU)
