"""DISK_FAILED, MACHINE_CHECK, KERNEL_FAULT, HOST_MEMORY_LOW: what the kernel says of disks, memory and itself.

A state is proof by itself: a dead controller, an array without its data, a file system that is shut down or has lost
its disk, memory errors that EDAC counted. A line of the kernel's log is critical where something confirms it that is
true now, and a warning elsewhere; what came before a repair accuses nobody. What comes again and again for hours, up to
now, is true now: a link that is lost, a controller that is reset.

Sources: Linux, kernel/watchdog.c, kernel/hung_task.c, kernel/panic.c (TAINT_DIE), drivers/edac/edac_mc_sysfs.c,
drivers/nvme/host/sysfs.c (nvme_sysfs_show_state), fs/proc_namespace.c, mm/memory-failure.c,
Documentation/ABI/stable/sysfs-block, Documentation/filesystems/proc.rst; fstab(5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from laggard.kernel_rules.disks import incomplete_arrays
from laggard.kernel_rules.rule import LIVE_BEGINNINGS, Hit, Rule, live_rules, rules
from laggard.kit.majority import grouped
from laggard.kit.words import compiled, lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.errors import or_none
from laggard.probes.host import mount_table
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import status_words
from laggard.probes.host.kernel_log import age_text, goes_on, judge_log, last_at, messages_of
from laggard.probes.host.mount_table import Mount, printable_path
from laggard.probes.host.virtualization import read_memory_sizes, read_uptime
from laggard.probes.probe import GPU, NotNegative, Probe, Thresholds, finding, matches_any
from laggard.probes.rows import SLOWER, Item, Row, Told, judge

# The local mounts and the disks below them, as /proc and /sys show them now.

_BLOCKS: Final = "/sys/class/block"
_DISK: Final = lazy_pattern(r"/dev/((?:nvme\d+n\d+|(?:[hsv]|xv)d[a-z]+|md\d+)(?:p?\d+)?)")
_PART: Final = lazy_pattern(r"(?:n\d+)?(?:p\d+)?")
_PARTITION: Final = lazy_pattern(r"(?<=\d)p\d+$|(?<=[a-z])\d+$")
_NO_JOBS: Final = ("/boot", "/boot/*", "/efi", "/media/*", "/recovery", "/recovery/*", "/run/media/*")
"""The mount points that no job uses: what boots the machine, and sticks."""


class Storage:
    """The mounts, each with what it lies on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._mounts = mount_table.read_mounts(host)
        self._blocks = frozenset(host.names(_BLOCKS))

    def broken(self) -> Iterator[tuple[Mount, str]]:
        """Yields the mounts that cannot be used, and why. What fstab wants writable is told by the probe `expected`."""
        for mount in self._mounts:
            disk = _DISK.fullmatch(mount.source)
            if mount.local and mount.shut_down:
                yield mount, "is shut down after an error: writes to it fail"
            elif disk and self._blocks and not self._blocks & {disk[1], _PARTITION.sub("", disk[1])}:
                yield mount, f"has lost its disk: {disk[1]} is gone from {_BLOCKS}"

    def is_read_only(self, mount: Mount) -> bool:
        """Whether the file system is, and not this mount of it alone."""
        same = (other for other in self._mounts if other.source == mount.source and mount.source.startswith("/"))
        if mount.writable or any(other.writable for other in same):
            return False
        return mount.point not in mount_table.read_writable_superblocks(self._host)

    def mount_of(self, device: str) -> Mount | None:
        """The mount whose file system lies on a disk, a partition or an NVMe controller by the kernel's name, or on one
        of its partitions and volumes. An array or several paths do without a disk: what is mounted of these is none."""
        volumes = self._volumes(device)
        for mount in self._mounts:
            if mount.local and (mount.source in volumes or _is_on(mount.source.removeprefix("/dev/"), device)):
                return mount
        if volumes or not device.startswith("dm-"):
            return None
        mapped = [mount for mount in self._mounts if mount.source.startswith("/dev/mapper/")]  # names are not recorded
        return next(filter(self.is_read_only, mapped), mapped[0] if len(mapped) == 1 else None)

    def _volumes(self, device: str) -> list[str]:
        """The paths of the volumes of device mapper on a block device, or of the one that it is."""
        host = self._host
        parts = [name for name in self._blocks if _is_on(name, device)]
        over = [name for part in parts for name in host.names(f"{_BLOCKS}/{part}/holders") if name.startswith("dm-")]
        volumes = [device] if device.startswith("dm-") else over
        single = [name for name in volumes if not host.text(f"{_BLOCKS}/{name}/dm/uuid").startswith("mpath-")]
        return [f"/dev/mapper/{text}" for name in single if (text := host.text(f"{_BLOCKS}/{name}/dm/name"))]

    def is_for_jobs(self, mount: Mount) -> bool:
        removable = self._is_removable(_PARTITION.sub("", mount.source.rpartition("/")[2]))
        return not removable and not matches_any(mount.point, _NO_JOBS)

    def is_gone(self, device: str) -> bool:
        """Whether a disk was taken out, or is a stick."""
        is_away = bool(self._blocks) and not any(_is_on(name, device) for name in self._blocks)
        return is_away or self._is_removable(device)

    def _is_removable(self, disk: str) -> bool:
        place = or_none(self._host.real_path, f"/sys/block/{disk}") or ""
        return self._host.text(f"/sys/block/{disk}/removable") == "1" or "/usb" in place


def _is_on(name: str, device: str) -> bool:
    """Whether a block device is the disk, partition or NVMe controller `device`, or on it: `nvme1n1p2`, `nvme1`."""
    rest = name[len(device) :] if name.startswith(device) else "?"
    return not rest or bool(_PART.fullmatch(rest) if device[-1:].isdigit() else rest.isdecimal())


_MEMORY: Final = "/sys/devices/system/edac/mc"
_DAY: Final = 86400.0
_STORM: Final = 1000.0
"""Corrected errors a day: a hundred times as many as those from which mcelog reports a module (mcelog.conf, [dimm],
ce-trigger), and an interrupt for each."""
_NVME: Final = "/sys/class/nvme"
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
_PSTORE: Final = "/sys/fs/pstore"
"""What the kernel wrote down as it died, in memory that a boot leaves alone (admin-guide/pstore-blk.rst)."""
_MAX_DUMPS: Final = 16
_TAINT_DIE: Final = 1 << 7
_AGAIN: Final = ("again", "controller")
_OF_LOG: Final = ("again", "CPU", "crash", "disk", "memory")
"""The kinds whose witness does not end with the fault: who resumes the node by hand knows of it."""
_RAN: Final = lazy_pattern(r"se\.exec_start\s*:\s*(\d+)\.")


class KernelFaultThresholds(Thresholds, frozen=True):
    look_back_seconds: NotNegative = 86400.0
    """The time for which a line of the log counts that nothing confirms."""


class _Told(NamedTuple):
    """What a rule found in the log of one device, which may be that of a mount. `age`: in seconds; 0 where the log has
    no times. `errors`: those of the same mount or device within the last hour."""

    rule: Rule
    hit: Hit
    device: str
    mount: Mount | None
    age: float
    errors: int = 0
    again: str = ""
    """How it comes again and again, up to now; empty: it does not."""

    @property
    def subject(self) -> str:
        """What several rules, and a state, may tell of: a finding is made of one of them."""
        return self.mount.source if self.mount else self.rule.named.format(device=self.device, on="")


def check(host: Host, thresholds: KernelFaultThresholds) -> Told:
    storage = Storage(host)
    now: dict[tuple[str, str], Finding] = {}
    uptime = read_uptime(host)
    corrected = {name: host.number(f"{_MEMORY}/{name}/ce_count") or 0 for name in host.names(_MEMORY)}
    yield SaveCounters({name: count for name, count in corrected.items() if count})
    for subject, found in _states(host, storage, corrected, uptime):
        now.setdefault((found.code, subject), found)
    yield from now.values()
    told: dict[tuple[str, str], Finding] = {}
    for each in _of_log(host, storage, uptime):
        key = each.rule.code, each.subject
        confirmed = _WITNESSES[each.rule.witness](each, host, storage)
        if key in now or confirmed is None or (not confirmed and each.age > thresholds.look_back_seconds):
            continue
        if key not in told or (confirmed and told[key].severity is not Severity.CRITICAL):
            told[key] = _of_line(each, confirmed, host.boot_time(uptime))
    yield from told.values()
    yield from judge(host, _SPEEDS)


_CAME_UP: Final = lazy_pattern(
    r"[a-z0-9_]{2,12} [0-9a-f]{4}:[0-9a-f:.]{7} ([\w.-]{1,15}): .{0,24}?[Ll]ink is [Uu]p[ ,-]*(\d{1,6}) ?([MG])bps"
)


def _speeds(host: Host, asked: Collection[str]) -> Iterator[Item]:
    """The speed of each network device whose link is up, in Mb/s, and the best with which it has come up since boot. A
    damaged pair of wires, or a bad transceiver, makes both ends agree on less."""
    found = [it for _, text in messages_of(host.kernel_log()) if "bps" in text and (it := _CAME_UP.match(text))]
    for name, ups in grouped(found, lambda it: it[1]).items():
        now = host.number(f"/sys/class/net/{name}/speed") or 0
        best = max(int(up[2]) * (1000 if up[3] == "G" else 1) for up in ups)
        if now > 0 and host.text(f"/sys/class/net/{name}/operstate") == "up":
            yield Item(name, now, best, share=SLOWER)


_SPEEDS: Final = Row("link_speeds", _speeds)


def _states(host: Host, storage: Storage, corrected: Mapping[str, int], uptime: float) -> Iterator[tuple[str, Finding]]:
    """Yields what is proof by itself, each with its subject. `corrected`: errors of memory, by controller."""
    uncorrected, of_disks = rules("host")["uncorrected"], rules("disks")
    for name in host.names(_MEMORY):
        if count := host.number(f"{_MEMORY}/{name}/ue_count"):
            summary = f"counted {count} memory errors since boot that could not be corrected (EDAC)"
            found = _made(uncorrected, f"memory controller {name}", summary, True, count=count)
            yield uncorrected.named, found
    for name, count in corrected.items():
        new, since = host.counter_history.recent(name, count, _DAY)
        a_day = new * _DAY / max(uptime, _DAY) if new == count else new
        if a_day >= _STORM:
            summary = f"counted {new} memory errors {since}, all corrected (EDAC): a module is about to fail"
            yield name, _made(uncorrected, f"memory controller {name}", summary, False, count=new)
    for name in host.names(_NVME):
        if host.text(f"{_NVME}/{name}/state") == "dead":
            mount = storage.mount_of(name)
            controller = of_disks["controller"]
            yield mount.source if mount else name, _made(controller, name, controller.summary, True)
    for array in incomplete_arrays(host.read_if_present("/proc/mdstat")):
        summary = f"{'is being rebuilt' if array.rebuilds else 'lacks disks'}: {array.level} [{array.members}]"
        found = _made(of_disks["array"], array.name, summary, array.failed and not array.rebuilds)
        yield f"/dev/{array.name}", found
    for mount, why in storage.broken():
        summary = f"{why} ({mount.fstype}, {printable_path(mount.source)})"
        found = _made(of_disks["read_only"], printable_path(mount.point), summary, storage.is_for_jobs(mount))
        yield mount.source, found


def _of_log(host: Host, storage: Storage, uptime: float) -> list[_Told]:
    """Returns what the log says and did not take back: a repair closes all that was said before it."""
    told: list[_Told] = []
    repaired, errors = Counter[str](), Counter[str]()
    for (number, _), hit in judge_log(host.kernel_log(), live_rules(), LIVE_BEGINNINGS).hits.items():
        rule, device = live_rules()[number], hit.groups.get("device") or hit.groups.get("on", "")
        mount = storage.mount_of(device) if rule.code == "DISK_FAILED" else None
        age = 0.0 if hit.seconds is None else max(0.0, uptime - hit.seconds)
        again = goes_on(hit.latest, uptime) if rule.witness in _AGAIN else ""
        each = _Told(rule, hit, device, mount, age, again=again)
        is_writable = rule is rules("disks")["read_only"] and mount is not None and not storage.is_read_only(mount)
        repaired[each.subject] = max(repaired[each.subject], hit.place if is_writable else hit.closed)
        told.append(each)
    told = [each for each in told if each.again or each.hit.place > repaired[each.subject]]
    for each in told:
        errors[each.subject] += sum(at is None or uptime - at <= _ERROR_SECONDS for at in each.hit.latest)
    return [each._replace(errors=errors[each.subject]) for each in told]


def _of_line(told: _Told, confirmed: str, booted_at: float | None) -> Finding:
    hit, groups = told.hit, {**told.hit.groups, "device": told.device, "on": ""}
    times = f", {hit.times} lines of the log" if hit.times > 1 else ""
    when = "" if hit.seconds is None else f", {age_text(int(told.age))} ago"
    why = confirmed or "only the log says so"
    summary = f"{told.rule.summary.format_map(groups).strip(' :')}{times}{when}, and {why}"
    at = last_at(hit.seconds, booted_at) if not confirmed or told.rule.witness in _OF_LOG else {}
    device = told.rule.named.format_map(groups).strip()
    return _made(told.rule, device, summary, bool(confirmed), told.device, count=hit.times, last=hit.last[:200], **at)


def _made(like: Rule, device: str, summary: str, critical: bool, disk: str = "", **evidence: object) -> Finding:
    """`like`: a rule of the same fault, for what to do."""
    severity = Severity.CRITICAL if critical else Severity.WARNING
    commands = like.commands_for(disk or device)
    return finding(like.code, device, summary, evidence=evidence, fix=like.fix, commands=commands, severity=severity)


# What confirms a line of the log: in words; empty where nothing does; None where it is refuted.


def _of_controller(told: _Told, host: Host, storage: Storage) -> str | None:
    state, is_gone = host.text(f"{_NVME}/{told.device}/state"), told.rule is rules("disks")["controller"]
    if state not in ("", "live") and (is_gone or told.age >= _RESET_SECONDS):
        return f"it is {state} now"
    if told.again and told.mount and storage.is_for_jobs(told.mount):
        return f"again and again: {told.again}"
    if told.mount is None or not is_gone or (state and " after " not in told.hit.last):
        return ""
    return f"{printable_path(told.mount.point)} is mounted from it as before"  # whose disks went with the controller


def _of_disk(told: _Told, host: Host, storage: Storage) -> str | None:
    """A disk, or the file system on it."""
    if told.mount is None:
        return None if storage.is_gone(told.device) else ""
    if not storage.is_for_jobs(told.mount):
        return ""
    point = printable_path(told.mount.point)
    if told.rule.witness == "shutdown":
        return f"{point} was not unmounted since, which alone would end that"
    if told.rule.witness == "file system" and storage.is_read_only(told.mount):
        return f"{point} is read-only now"
    return f"{point} is on it: {told.errors} errors or more within the hour" if told.errors >= _ERRORS else ""


def _of_cpu(told: _Told, host: Host, storage: Storage) -> str | None:
    *_, before, last = (None, *told.hit.latest)
    repeated = before is not None and last is not None and last - before <= _LOCKED_SECONDS
    return "it goes on" if repeated and told.age <= _LOCKED_SECONDS else ""


def _of_process(told: _Told, host: Host, storage: Storage) -> str | None:
    """Refuted where the process is another one, ran since, or waits no more. Eight letters of its name agree: the log
    has another end of a kworker's than /proc."""
    pid = told.hit.groups["pid"]
    folder, (state, name) = f"/proc/{pid}", (" ".join(status_words(host.text, pid, it)) for it in ("State", "Name"))
    if not state.startswith("D") or name[:8] != told.device[:8]:
        return None
    started = host.text(f"{folder}/stat").rpartition(")")[2].split()[19:20]  # the 22nd field of all
    ran = _RAN.search(host.text(f"{folder}/sched"))
    times = [*(int(ticks) / 100 for ticks in started), *([int(ran[1]) / 1000] if ran else [])]  # USER_HZ, and ms
    return None if any(told.hit.seconds is not None and at > told.hit.seconds for at in times) else "it waits still"


def _of_crash(told: _Told, host: Host, storage: Storage) -> str | None:
    """A kernel that crashed in a process goes on, without what that process held; it remembers that until the boot."""
    taint = host.text("/proc/sys/kernel/tainted")
    return None if taint.isdecimal() and not int(taint) & _TAINT_DIE else "the node was not restarted since"


def _of_memory(told: _Told, host: Host, storage: Storage) -> str | None:
    if told.hit.seconds is not None and told.hit.seconds < _BOOT_SECONDS:
        dumps = (host.text(f"{_PSTORE}/{name}") for name in host.names(_PSTORE)[:_MAX_DUMPS])
        pattern = compiled(rules("host")["uncorrected"].pattern)
        died = any(pattern.search(line) for text in dumps for line in text.splitlines())
        return "the boot before ended with one (pstore)" if died else ""
    lost = (or_none(read_memory_sizes, host) or {}).get("HardwareCorrupted", 0)
    return f"{lost >> 10} kB of memory are out of use for that (HardwareCorrupted)" if lost else ""


def _of_repetition(told: _Told, host: Host, storage: Storage) -> str | None:
    """Of links of network devices, those of RDMA ports are another probe's, and a bond does without one of its own."""
    folder = f"/sys/class/net/{told.device}"
    if not told.again or host.names(f"{folder}/device/infiniband"):
        return None
    spare = told.rule.severity is Severity.WARNING or host.names(f"{folder}/master")
    return "" if spare else f"again and again: {told.again}"


_WITNESSES: Final[Mapping[str, Callable[[_Told, Host, Storage], str | None]]] = {
    "controller": _of_controller,
    **dict.fromkeys(("disk", "file system", "shutdown"), _of_disk),
    "CPU": _of_cpu,
    "process": _of_process,
    "crash": _of_crash,
    "memory": _of_memory,
    "again": _of_repetition,
    "told": lambda told, host, storage: "",
}

# In the group of gpu_xid, which reads the same log.
PROBE: Final = Probe("kernel_faults", check, KernelFaultThresholds(), group=GPU)
