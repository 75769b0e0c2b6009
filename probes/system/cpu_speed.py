"""CPU_SLOW and CPU_BUSY: processors that the board holds far below their base frequency, or that processes of no job
use.

An idle processor may be slow rightly. So slowness counts where the kernel shows that processors are throttled, or where
most are busy: scaling_cur_freq is measured while a core runs (APERF and MPERF, cpufreq.rst).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from laggard.kit.majority import grouped
from laggard.kit.words import lazy_pattern
from laggard.model import Finding
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.host.jobs import living_jobs
from laggard.probes.host.virtualization import parse_cpu_list
from laggard.probes.probe import KERNEL, Fact, Probe, Thresholds, finding

_CPU: Final = "/sys/devices/system/cpu"
_LOAD: Final = lazy_pattern(r"(\d{1,9}\.\d+) \S+ \S+ (\d{1,9})/.*")
_BASE_KHZ: Final = 2_000_000
# Is taken where the driver does not tell the base frequency. That of server processors is 1.5 to 3.5 GHz.
_SLOW: Final = 0.5
# The share of the base frequency below which all cores of a processor are slow. PROCHOT takes them to their lowest
# state, 800 MHz or less; no governor keeps a busy one there.
_BUSY: Final = 0.5
# The share of the processors that are busy, now and over the last minute, where a node is in use.
_MOST_DOMAINS: Final = 32
# Kernels before 5.18 measure an idle core for 10 ms when it is read (arch/x86/kernel/cpu/aperfmperf.c).


def check(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact | SaveCounters]:
    cpus = len(parse_cpu_list(host.read(f"{_CPU}/online"), f"{_CPU}/online"))
    found = _LOAD.fullmatch(host.read_if_present("/proc/loadavg"))
    load, running = (float(found[1]), int(found[2])) if found else (0.0, 0)
    busy = min(load, running) >= _BUSY * cpus
    asked = host.text(f"{_CPU}/cpufreq/policy0/scaling_governor") == "performance"
    for package, policies in _packages(host).items():
        fastest = _fastest(host, policies)
        counts = (host.text(f"{_CPU}/cpu{name}/thermal_throttle/package_throttle_count") for name in policies)
        events = sum(int(count) for count in counts if count.isdecimal())
        counter = f"throttled {package}"
        yield SaveCounters({counter: events})
        since = host.counter_history.increase(counter, events)
        if fastest and (busy or (since.count if since else asked and events)):
            fix = "Look for PROCHOT, a failed power supply or fan, and a power cap in the BMC's log; then power it off."
            evidence = {"fastest_khz": fastest, "throttle_events": events, "load": load}
            summary, commands = f"runs at {fastest // 1000} MHz at most", ("turbostat -n 1", "ipmitool sel list")
            yield finding("CPU_SLOW", f"cpu{package}", summary, evidence=evidence, fix=fix, commands=commands)
    jobs = living_jobs(host) if busy else None
    if jobs and jobs.scheduled and jobs.all_seen and not jobs.jobs:
        fix = "Find whose they are, and end them; pam_slurm_adopt keeps users without a job away."
        evidence = {"load": load, "running": running, "processors": cpus}
        summary = f"is kept busy by processes of no job: {running} run on {cpus} processors"
        commands = ("uptime", "ps -eo user,pid,pcpu,lstart,cmd --sort=-pcpu | head -n 20")
        yield finding("CPU_BUSY", "cpu", summary, evidence=evidence, fix=fix, commands=commands)


def _packages(host: Host) -> Mapping[str, Sequence[str]]:
    """The frequency policies of each processor that sits in a socket of its own, which throttles by itself. The key is
    empty where the machine has one, or does not tell them apart."""
    names = [name.removeprefix("policy") for name in host.names(f"{_CPU}/cpufreq") if name.startswith("policy")]
    found = grouped(names, lambda name: host.text(f"{_CPU}/cpu{name}/topology/physical_package_id"))
    return found if len(found) > 1 else dict.fromkeys(("",), names) if names else {}


def _fastest(host: Host, policies: Sequence[str]) -> int:
    """Returns the highest frequency now, in kHz, where all processors that are looked at are slow; else 0."""
    fastest = 0
    for name in policies[:: 1 + len(policies) // _MOST_DOMAINS]:
        folder = f"{_CPU}/cpufreq/policy{name}"
        now, base = (host.text(f"{folder}/{each}") for each in ("scaling_cur_freq", "base_frequency"))
        fastest = max(fastest, int(now) if now.isdecimal() else 0)
        if fastest >= _SLOW * (int(base) if base.isdecimal() else _BASE_KHZ):
            return 0
    return fastest


PROBE: Final = Probe("cpu_speed", check, Thresholds(), group=KERNEL)
