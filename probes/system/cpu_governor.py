"""CPU_GOVERNOR: processors whose frequency governor saves power. NCCL's proxy threads and the launches of small
kernels wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, NotFound, Unknown
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_CPU = "/sys/devices/system/cpu"
_ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""With these the processor picks its frequency; the governor `powersave` only means that it may, and the energy
preference says how (Documentation/admin-guide/pm/intel_pstate.rst)."""
_FIX = "Set the governor to performance, and make it last: `tuned-adm profile latency-performance`, or cpupower."
_COMMANDS = (
    "cpupower frequency-set -g performance",
    "tuned-adm profile latency-performance",
    "cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor | sort | uniq -c",
)


class GovernorThresholds(Thresholds, frozen=True):
    governors: tuple[str, ...] = ("performance",)
    preferences: tuple[str, ...] = ("performance", "0")
    """Energy preferences that count as performance where the processor picks its frequency itself."""


def check(host: Host, thresholds: GovernorThresholds) -> Iterator[Finding | Fact]:
    policies = _policies(host)
    settings = Counter(_setting(host, policy, thresholds) for policy in policies)
    named = {" ".join(filter(None, setting)): count for setting, count in settings.items()}
    yield Fact("governors", named)
    slow = {setting: count for setting, count in settings.items() if not _fast(setting, thresholds)}
    if slow:
        (driver, governor, preference), _ = max(slow.items(), key=lambda item: item[1])
        said = f"{governor} (preference {preference})" if preference else governor
        yield finding(
            "CPU_GOVERNOR",
            "cpu",
            f"governor is {said} on {sum(slow.values())} of {len(policies)} frequency domains",
            evidence={"driver": driver, "domains": named},
            fix=_FIX,
            commands=_COMMANDS,
        )


def _policies(host: Host) -> tuple[str, ...]:
    """One for each frequency domain. Without a driver there are none, and then no governor either."""
    if "cpufreq" not in host.entries(_CPU):
        raise NotApplicable(f"{_why(host)}: {_CPU} has no cpufreq")
    policies = tuple(name for name in host.entries(f"{_CPU}/cpufreq") if name.startswith("policy"))
    if not policies:
        raise NotApplicable(f"{_why(host)}: {_CPU}/cpufreq has no policy")
    return policies


def _why(host: Host) -> str:
    """A guest's frequency is its host's business; elsewhere the firmware keeps it to itself."""
    try:
        guest = " hypervisor" in host.read("/proc/cpuinfo")
    except Unknown:
        guest = False
    return "a virtual machine does not set its processors' frequency" if guest else "no driver sets the frequency"


def _setting(host: Host, policy: str, thresholds: GovernorThresholds) -> tuple[str, str, str]:
    """Driver, governor and energy preference; of a domain whose governor is right the governor alone, since a large
    machine has hundreds of them."""
    folder = f"{_CPU}/cpufreq/{policy}"
    governor = host.read(f"{folder}/scaling_governor").strip()
    if not governor:
        raise Unknown(f"{folder}/scaling_governor is empty")
    if governor in thresholds.governors:
        return "", governor, ""
    driver = host.read(f"{folder}/scaling_driver").strip()
    if driver not in _ACTIVE_DRIVERS:
        return driver, governor, ""
    try:
        return driver, governor, host.read(f"{folder}/energy_performance_preference").strip()
    except NotFound:  # a processor without hardware-managed states
        return driver, governor, ""


def _fast(setting: tuple[str, str, str], thresholds: GovernorThresholds) -> bool:
    _, governor, preference = setting
    return governor in thresholds.governors or preference in thresholds.preferences


PROBE: Final = Probe("governor", check, GovernorThresholds())
