"""DISK_FAILED, MACHINE_CHECK, KERNEL_FAULT, HOST_MEMORY_LOW: what the kernel says of disks, memory and itself.

A state is proof by itself: a dead controller, an array without its data, a file system that is read-only against
/etc/fstab, memory errors that EDAC counted. A line of the kernel's log is critical where something confirms it that is
true now, and a warning elsewhere; what came before a repair accuses nobody.

Sources: Linux, kernel/watchdog.c, kernel/hung_task.c, kernel/panic.c (TAINT_DIE), drivers/edac/edac_mc_sysfs.c,
mm/memory-failure.c, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.kernel_rules import disks
from laggard.kernel_rules import host as kernel
from laggard.kernel_rules.judge import Hit, RuleJudge
from laggard.kernel_rules.rule import LIVE_BEGINNINGS, Rule
from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.host.host import Host
from laggard.probes.host.kernel_log import age_text, begins_with_users_text, last_at, messages_of
from laggard.probes.host.mount_table import printable_path
from laggard.probes.host.virtualization import read_uptime
from laggard.probes.probe import GPU, NotNegative, Probe, Thresholds, finding
from laggard.probes.system.model.storage import Storage, controller_state, is_remote, read_arrays

_RULES: Final = (*kernel.LIVE_RULES, *disks.LIVE_RULES)
_MEMORY: Final = "/sys/devices/system/edac/mc"
_LOCKED_SECONDS: Final = 300.0
"""The time within which a CPU that hangs is reported again: a soft lockup each 20 s, a stall of RCU after three times
its limit of 21 to 60 s (Documentation/RCU/stallwarn.rst)."""
_RESET_SECONDS: Final = 120.0
"""Twice the time that a command to an NVMe controller may take (admin_timeout of drivers/nvme/host/core.c)."""
_ERRORS: Final = 3
_ERROR_SECONDS: Final = 3600.0
"""Three errors within the hour are a disk that fails now. One may be a sector, which the disk replaces when it is
written again."""
_BOOT_SECONDS: Final = 60.0
"""The time in which machine checks of before the boot are told: of the processors' banks, and by the firmware."""
_TAINT_DIE: Final = 1 << 7
_RAN: Final = lazy_pattern(r"se\.exec_start\s*:\s*(\d+)\.")
_TICKS: Final = 100  # a second, of all architectures that GPUs are in (USER_HZ)
_SAME_NAME: Final = 8
"""So many letters of a process's name agree: the log has another end of a kworker's than /proc."""


class KernelFaultThresholds(Thresholds, frozen=True):
    look_back_seconds: NotNegative = 86400.0
    """The time for which a line of the log counts that nothing confirms."""


class _Told(NamedTuple):
    """What a rule found in the log, on the machine as it is."""

    rule: Rule
    hit: Hit
    host: Host
    storage: Storage
    uptime: float
    errors: int = 0
    """Those of the same file system within the last hour."""

    @property
    def device(self) -> str:
        return self.hit.groups.get("device") or self.hit.groups.get("on", "")

    @property
    def age(self) -> float:
        """In seconds; 0 where the log has no times."""
        return 0.0 if self.hit.seconds is None else max(0.0, self.uptime - self.hit.seconds)

    @property
    def subject(self) -> str:
        """What several rules, and a state, say something of: a finding is made of one of them."""
        if self.rule.code == "DISK_FAILED":
            mount = self.storage.mount_of(self.device)
            return mount.source if mount else self.device
        return self.rule.named.format(device=self.device)


def check(host: Host, thresholds: KernelFaultThresholds) -> Iterator[Finding]:
    storage = Storage(host)
    now: dict[tuple[str, str], Finding] = {}
    for subject, found in (*_memory(host), *_controllers(host, storage), *_arrays(host), *_mounts(storage)):
        now.setdefault((found.code, subject), found)
    yield from now.values()
    uptime = read_uptime(host)
    told: dict[tuple[str, str], Finding] = {}
    for each in _of_log(host, storage, uptime):
        key = each.rule.code, each.subject
        confirmed = _WITNESSES[each.rule.witness](each)
        if key in now or confirmed is None or (not confirmed and each.age > thresholds.look_back_seconds):
            continue
        if key not in told or (confirmed and told[key].severity is not Severity.CRITICAL):
            told[key] = _finding(each, confirmed)
    yield from told.values()


def _of_log(host: Host, storage: Storage, uptime: float) -> list[_Told]:
    """Returns what the log says and did not take back: a repair closes all that was said before. A name of a user in the middle of its message, as that of a
    process that hangs, is at most 15 characters: too short for another message."""
    judge = RuleJudge(_RULES)
    for message in messages_of(host.kernel_log()):
        text = message.text
        if text.startswith(LIVE_BEGINNINGS):
            is_kernels = text.endswith(" seconds.") if text.startswith("INFO: task ") else None
            if is_kernels or (is_kernels is None and not begins_with_users_text(text)):
                judge.take(text, message.seconds)
    told = [_Told(_RULES[number], hit, host, storage, uptime) for (number, _), hit in judge.hits.items()]
    repaired: dict[str, int] = {}
    for each in told:
        is_writable = each.rule is disks.READ_ONLY and _of_file_system(each) is None
        repaired[each.subject] = max(repaired.get(each.subject, 0), each.hit.place if is_writable else each.hit.closed)
    told = [each for each in told if each.hit.place > repaired[each.subject]]
    errors = Counter[str]()
    for each in told:
        errors[each.subject] += sum(at is None or uptime - at <= _ERROR_SECONDS for at in each.hit.latest)
    return [each._replace(errors=errors[each.subject]) for each in told]


def _finding(told: _Told, confirmed: str) -> Finding:
    rule, hit = told.rule, told.hit
    groups = {**hit.groups, "device": told.device, "on": ""}
    times = f", {hit.times} lines of the log" if hit.times > 1 else ""
    when = "" if hit.seconds is None else f", {age_text(int(told.age))} ago"
    booted_at = told.host.boot_time(told.uptime)
    return finding(
        rule.code,
        rule.named.format_map(groups).strip(),
        f"{rule.summary.format_map(groups).strip(' :')}{times}{when}, and {confirmed or 'only the log says so'}",
        evidence={
            "count": hit.times,
            "last": hit.last[:200],
            **(last_at(hit.seconds, booted_at) if rule.witness in _BY_LOG or not confirmed else {}),
            **({"now": confirmed} if confirmed else {}),
        },
        fix=rule.fix,
        commands=tuple(command.replace("{device}", told.device) for command in rule.commands),
        severity=Severity.CRITICAL if confirmed else Severity.WARNING,
    )


# The states that are proof by themselves: each with its subject.


def _proof(like: Rule, device: str, summary: str, critical: bool, **evidence: object) -> Finding:
    """`like`: a rule of the same fault, for what to do."""
    severity = Severity.CRITICAL if critical else Severity.WARNING
    commands = tuple(command.replace("{device}", device) for command in like.commands)
    return finding(like.code, device, summary, evidence=evidence, fix=like.fix, commands=commands, severity=severity)


def _memory(host: Host) -> Iterator[tuple[str, Finding]]:
    for name in host.names(_MEMORY):
        count = host.text(f"{_MEMORY}/{name}/ue_count")
        if count.isdecimal() and count.strip("0"):
            summary = f"counted {count} memory errors since boot that could not be corrected (EDAC)"
            yield kernel.UNCORRECTED.named, _proof(kernel.UNCORRECTED, f"memory controller {name}", summary, True)


def _controllers(host: Host, storage: Storage) -> Iterator[tuple[str, Finding]]:
    for name in host.names("/sys/class/nvme"):
        if controller_state(host, name) == "dead":
            mount = storage.mount_of(name)
            found = _proof(disks.CONTROLLER, name, "is dead: its controller is given up", not is_remote(host, name))
            yield mount.source if mount else name, found


def _arrays(host: Host) -> Iterator[tuple[str, Finding]]:
    for array in read_arrays(host):
        critical = array.failed and not array.rebuilds
        state = "is being rebuilt" if array.rebuilds else "has failed" if critical else "runs without a disk"
        summary = f"{state} ({array.level} [{array.members}])"
        yield f"/dev/{array.name}", _proof(disks.ARRAY, array.name, summary, critical, members=array.members)


def _mounts(storage: Storage) -> Iterator[tuple[str, Finding]]:
    for mount, why in storage.broken():
        summary = f"{why} ({mount.fstype}, {printable_path(mount.source)})"
        yield mount.source, _proof(disks.READ_ONLY, printable_path(mount.point), summary, storage.is_for_jobs(mount))


# What confirms a line of the log: in words; empty where nothing does; None where it is refuted.


def _of_controller(told: _Told) -> str | None:
    state, mount = controller_state(told.host, told.device), told.storage.mount_of(told.device)
    if is_remote(told.host, told.device):
        return ""
    if told.rule is not disks.CONTROLLER:  # it may come back
        return f"it is {state} now" if state not in ("", "live") and told.age >= _RESET_SECONDS else ""
    if state not in ("", "live"):
        return f"it is {state} now"
    was_removed = not state or " after " in told.hit.last  # its disks with it, also where it was found anew
    return f"{printable_path(mount.point)} is mounted from it as before" if mount and was_removed else ""


def _of_file_system(told: _Told) -> str | None:
    mount = told.storage.mount_of(told.device)
    if mount is None or not told.storage.is_for_jobs(mount):
        return ""
    if told.storage.is_read_only(mount):
        return f"{printable_path(mount.point)} is read-only now"
    return None if told.rule is disks.READ_ONLY else _of_disk(told)


def _of_shutdown(told: _Told) -> str | None:
    mount = told.storage.mount_of(told.device)
    if mount is None or not told.storage.is_for_jobs(mount):
        return ""
    return f"{printable_path(mount.point)} was not unmounted since, which alone would end that"


def _of_disk(told: _Told) -> str | None:
    mount = told.storage.mount_of(told.device)
    if mount is None:
        return None if told.storage.is_gone(told.device) or told.storage.is_removable(told.device) else ""
    if told.errors < _ERRORS or not told.storage.is_for_jobs(mount):
        return ""
    return f"{printable_path(mount.point)} is on it: {told.errors} errors or more within the hour"


def _of_cpu(told: _Told) -> str | None:
    *_, before, last = (None, *told.hit.latest)
    repeated = before is not None and last is not None and last - before <= _LOCKED_SECONDS
    return "it goes on" if repeated and told.age <= _LOCKED_SECONDS else ""


def _of_process(told: _Told) -> str | None:
    """Refuted where the process is another one, ran since, or waits no more."""
    folder = f"/proc/{told.hit.groups['pid']}"
    status = dict(line.partition(":\t")[::2] for line in told.host.text(f"{folder}/status").splitlines())
    name = status.get("Name", "")[:_SAME_NAME]
    if not status.get("State", "").startswith("D") or name != told.device[:_SAME_NAME]:
        return None
    started = told.host.text(f"{folder}/stat").rpartition(")")[2].split()
    ran = _RAN.search(told.host.text(f"{folder}/sched"))
    at = told.hit.seconds
    if at is not None and (
        (ran and int(ran[1]) / 1000 > at) or (len(started) > 19 and int(started[19]) / _TICKS > at)
    ):
        return None
    return "it waits still (state D)"


def _of_crash(told: _Told) -> str | None:
    """A kernel that crashed in a process goes on, with what that process held; it remembers that until the boot."""
    taint = told.host.text("/proc/sys/kernel/tainted")
    is_of_before = taint.isdecimal() and not int(taint) & _TAINT_DIE
    return None if is_of_before else "the node runs on without a restart"


def _of_memory(told: _Told) -> str | None:
    if told.hit.seconds is not None and told.hit.seconds < _BOOT_SECONDS:
        return None
    fields = (line.split() for line in told.host.text("/proc/meminfo").splitlines())
    lost = next((words[1] for words in fields if words[:1] == ["HardwareCorrupted:"]), "0")
    return f"{lost} kB of memory are out of use for that (HardwareCorrupted)" if lost.strip("0") else ""


_WITNESSES: Final[Mapping[str, Callable[[_Told], str | None]]] = {
    "controller": _of_controller,
    "file system": _of_file_system,
    "shutdown": _of_shutdown,
    "disk": _of_disk,
    "CPU": _of_cpu,
    "process": _of_process,
    "crash": _of_crash,
    "memory": _of_memory,
    "told": lambda told: "",
}
_BY_LOG: Final = ("disk", "CPU")
"""The witnesses that are lines of the log themselves, which may end."""

PROBE: Final = Probe("kernel_faults", check, KernelFaultThresholds(), group=GPU)
"""In the group of gpu_xid, which reads the same log."""
