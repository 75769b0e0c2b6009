"""CPU_GOVERNOR, CPU_AFFINITY, CPU_SLOW and CPU_BUSY: how the processors are set, which of them a job has, and whether
the board holds them far below their base frequency, or processes of no job use them.

Below half of its base frequency a processor costs a job half of its pace. It is critical where the processor itself
counts that it is throttled. So it is where a machine is busy all over, and another socket runs faster. All sockets of a
busy machine may be capped by the site: a warning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Final

from laggard.kit.majority import grouped
from laggard.kit.words import lazy_pattern
from laggard.model import Finding, Severity
from laggard.probes.errors import NotApplicable, Unknown, if_present, or_none
from laggard.probes.gpu.model.pci_devices import PciGpu, read_pci_gpus
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import living_jobs
from laggard.probes.host.virtualization import format_cpu_list, is_virtual_machine, parse_cpu_list, read_status
from laggard.probes.probe import KERNEL, Count, Fact, Probe, Ratio, Thresholds, say

_CPU, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"

# CPU_GOVERNOR: processors whose frequency governor saves power. It slows NCCL's proxy threads and kernel launches.

_ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Drivers with which the processor itself picks its frequency. The governor `powersave` then only allows it to, and the
energy preference decides (Documentation/admin-guide/pm/intel_pstate.rst)."""


class GovernorThresholds(Thresholds, frozen=True):
    governors: tuple[str, ...] = ("performance",)
    preferences: tuple[str, ...] = ("performance", "0")
    """Energy preferences that count as performance where the processor picks its frequency itself."""


def check_governor(host: Host, thresholds: GovernorThresholds) -> Iterator[Finding | Fact]:
    policies = _policies(host)
    settings = Counter(_setting(host, policy, thresholds) for policy in policies)
    named = {" ".join(filter(None, setting)): count for setting, count in settings.items()}
    yield Fact("governors", named)
    slow = {
        (driver, governor, preference): count
        for (driver, governor, preference), count in settings.items()
        if governor not in thresholds.governors and preference not in thresholds.preferences
    }
    if slow:
        (driver, governor, preference), _ = max(slow.items(), key=lambda item: item[1])
        mode = f"{governor} (preference {preference})" if preference else governor
        evidence = {"driver": driver, "domains": named}
        slow_domains = sum(slow.values())
        yield say("system", "governor", "cpu", evidence, mode=mode, slow=slow_domains, all=len(policies))


def _policies(host: Host) -> tuple[str, ...]:
    """Returns the names of the cpufreq policies, one for each frequency domain. Raises NotApplicable where there is
    none: without a driver there are no governors."""
    folders = host.entries(f"{_CPU}/cpufreq") if "cpufreq" in host.entries(_CPU) else ()
    policies = tuple(name for name in folders if name.startswith("policy"))
    if not policies:  # the host sets a guest's frequency, or the firmware keeps control
        who = "a virtual machine does not set" if is_virtual_machine(host) else "no driver sets"
        raise NotApplicable(f"{who} the frequency of its processors: {_CPU}/cpufreq has no policy")
    return policies


def _setting(host: Host, policy: str, thresholds: GovernorThresholds) -> tuple[str, str, str]:
    """Returns driver, governor and energy preference. Of a domain whose governor is right only the governor is read,
    since a large machine has hundreds of domains."""
    folder = f"{_CPU}/cpufreq/{policy}"
    governor = host.read(f"{folder}/scaling_governor").strip()
    if not governor:
        raise Unknown(f"{folder}/scaling_governor is empty")
    if governor in thresholds.governors:
        return "", governor, ""
    driver = host.read(f"{folder}/scaling_driver").strip()
    if driver not in _ACTIVE_DRIVERS:
        return driver, governor, ""
    # A processor without hardware-managed states has no preference.
    return driver, governor, host.read_if_present(f"{folder}/energy_performance_preference")


# CPU_AFFINITY: a NUMA node with GPUs of which a job may use no processors, or too few.


class AffinityThresholds(Thresholds, frozen=True):
    least_cpus_per_gpu: Count = 1
    """Usable processors on a NUMA node for each GPU there; fewer are a warning."""


def check_affinity(host: Host, thresholds: AffinityThresholds) -> Iterator[Finding | Fact]:
    gpus = read_pci_gpus(host)
    if not gpus:
        raise NotApplicable("no NVIDIA GPU in the PCI tree")
    online = _list(host, f"{_CPU}/online")
    allowed = parse_cpu_list(read_status(host, "Cpus_allowed_list"), "/proc/self/status")
    isolated = if_present(_list, host, f"{_CPU}/isolated") or frozenset()
    lists = {"allowed": allowed, "isolated": isolated, "offline": _list(host, f"{_CPU}/present") - online}
    cpu_lists = {name: format_cpu_list(cpus) for name, cpus in lists.items()}
    yield from starmap(Fact, cpu_lists.items())
    nodes = _nodes(host, gpus, online)
    usable = (allowed & online) - isolated
    counts = Counter(gpu.numa_node for gpu in gpus)
    least = {node: max(1, thresholds.least_cpus_per_gpu * counts[node]) for node in nodes}
    short = {node: cpus for node, cpus in nodes.items() if len(cpus & usable) < least[node]}
    if not short or (len(short) < len(nodes) and _job_has_part_of_the_machine(host, len(gpus))):
        return  # a job with some of the GPUs rightly has some of the processors
    for node, cpus in short.items():
        evidence = {"node_cpus": format_cpu_list(cpus), **cpu_lists}
        told = {"gpus": counts[node], "cpus": len(cpus), "usable": len(cpus & usable)}
        yield say("system", "affinity", f"node{node}", evidence, **told)


def _nodes(host: Host, gpus: tuple[PciGpu, ...], online: frozenset[int]) -> dict[int, frozenset[int]]:
    """Returns the online processors of each NUMA node that has a GPU. Raises NotApplicable where the firmware reports
    no node (-1) for any GPU and the machine has one, Unknown where it reports none and the machine has several."""
    known = sorted({gpu.numa_node for gpu in gpus})
    if known == [-1] and len(_list(host, f"{_NODE}/online")) <= 1:
        raise NotApplicable("the machine has one NUMA node")
    if -1 in known:
        raise Unknown("the firmware does not say which NUMA node the GPUs are on")
    return {node: _list(host, f"{_NODE}/node{node}/cpulist") & online for node in known}


def _list(host: Host, path: str) -> frozenset[int]:
    return parse_cpu_list(host.read(path), path)


def _job_has_part_of_the_machine(host: Host, gpus: int) -> bool:
    """Returns whether this process runs in a job with fewer than all GPUs, according to the variables of SLURM or the
    container runtime. False where that is not known."""
    environ = or_none(host.environ) or {}
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if "SLURM_JOB_ID" in environ and not count:
        return True  # a job without GPUs, or one of an older SLURM that does not set it
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    held = int(count) if count.isdecimal() else len(visible.split(",")) if visible else gpus
    return held < gpus


# CPU_SLOW and CPU_BUSY. An idle processor may be slow rightly. So slowness counts where the kernel shows that
# processors are throttled, or where most are busy: scaling_cur_freq is measured while a core runs (APERF and MPERF,
# cpufreq.rst).

_LOAD: Final = lazy_pattern(r"(\d{1,9}\.\d+) \S+ \S+ (\d{1,9})/.*")
_BASE_KHZ: Final = 2_000_000
# Is taken where the driver does not tell the base frequency. That of server processors is 1.5 to 3.5 GHz.
_BUSY: Final = 0.5
# The share of the processors that are busy, now and over the last minute, where a node is in use.
_ALL_OVER: Final = 0.75
# The same where half of each of two sockets are.
_ALL_IDLE: Final = 1e-3
# The chance that all processors that are looked at are idle, up to which their clocks tell something. Our choice.
_MOST_DOMAINS: Final = 32
# Kernels before 5.18 measure an idle core for 10 ms when it is read (arch/x86/kernel/cpu/aperfmperf.c).


class SpeedThresholds(Thresholds, frozen=True):
    slow_ratio: Ratio = 0.5
    """The share of the base frequency below which all cores of a processor are slow. PROCHOT takes them to their lowest
    state, 800 MHz or less; no governor keeps a busy one there. 0: nothing is slow."""


def check_speed(host: Host, thresholds: SpeedThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    cpus = len(parse_cpu_list(host.read(f"{_CPU}/online"), f"{_CPU}/online"))
    found = _LOAD.fullmatch(host.read_if_present("/proc/loadavg"))
    load, running = (float(found[1]), int(found[2])) if found else (0.0, 0)
    used = min(load, running) / cpus
    busy = used >= _BUSY
    asked = host.text(f"{_CPU}/cpufreq/policy0/scaling_governor") == "performance"
    packages = _packages(host)
    slow = {package: _fastest(host, policies, thresholds.slow_ratio) for package, policies in packages.items()}
    for package, policies in packages.items():
        fastest = slow[package]
        counts = (host.text(f"{_CPU}/cpu{name}/thermal_throttle/package_throttle_count") for name in policies)
        events = sum(int(count) for count in counts if count.isdecimal())
        counter = f"throttled {package}"
        yield SaveCounters({counter: events})
        since = host.counter_history.increase(counter, events)
        throttled = since.count if since else asked and events
        some_run = (1 - min(used, 1)) ** len(_some(policies)) <= _ALL_IDLE
        if fastest and (busy or throttled or some_run):
            evidence = {"fastest_khz": fastest, "throttle_events": events, "load": load}
            alone = used >= _ALL_OVER and not all(slow.values())
            severity = Severity.CRITICAL if (throttled and (asked or busy)) or alone else Severity.WARNING
            yield say("system", "cpu_slow", f"cpu{package}", evidence, severity, mhz=fastest // 1000)
    jobs = living_jobs(host) if busy else None
    if jobs and jobs.scheduled and jobs.all_seen and not jobs.jobs:
        evidence = {"load": load, "running": running, "processors": cpus}
        yield say("system", "cpu_busy", "cpu", evidence, running=running, processors=cpus)


def _packages(host: Host) -> Mapping[str, Sequence[str]]:
    """The frequency policies of each processor that sits in a socket of its own, which throttles by itself. The key is
    empty where the machine has one, or does not tell them apart."""
    names = [name.removeprefix("policy") for name in host.names(f"{_CPU}/cpufreq") if name.startswith("policy")]
    found = grouped(names, lambda name: host.text(f"{_CPU}/cpu{name}/topology/physical_package_id"))
    return found if len(found) > 1 else dict.fromkeys(("",), names) if names else {}


def _some(policies: Sequence[str]) -> Sequence[str]:
    return policies[:: 1 + len(policies) // _MOST_DOMAINS]


def _fastest(host: Host, policies: Sequence[str], slow: float) -> int:
    """Returns the highest frequency now, in kHz, where all processors that are looked at are slow; else 0."""
    fastest = 0
    for name in _some(policies):
        folder = f"{_CPU}/cpufreq/policy{name}"
        now, base = (host.text(f"{folder}/{each}") for each in ("scaling_cur_freq", "base_frequency"))
        fastest = max(fastest, int(now) if now.isdecimal() else 0)
        if fastest >= slow * (int(base) if base.isdecimal() else _BASE_KHZ):
            return 0
    return fastest


PROBES: Final = (
    Probe("governor", check_governor, GovernorThresholds(), group=KERNEL),
    Probe("affinity", check_affinity, AffinityThresholds(), group=KERNEL),
    Probe("cpu_speed", check_speed, SpeedThresholds(), group=KERNEL),
)
