"""CPU_GOVERNOR: processors whose frequency governor saves power. It slows NCCL's proxy threads and kernel launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.errors import NotApplicable, Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import is_virtual_machine
from laggard.probes.probe import KERNEL, Fact, Probe, Thresholds, finding

_CPU = "/sys/devices/system/cpu"
_ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Drivers with which the processor itself picks its frequency. The governor `powersave` then only allows it to, and the
energy preference decides (Documentation/admin-guide/pm/intel_pstate.rst)."""
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
    slow = {
        (driver, governor, preference): count
        for (driver, governor, preference), count in settings.items()
        if governor not in thresholds.governors and preference not in thresholds.preferences
    }
    if slow:
        (driver, governor, preference), _ = max(slow.items(), key=lambda item: item[1])
        mode = f"{governor} (preference {preference})" if preference else governor
        yield finding(
            "CPU_GOVERNOR",
            "cpu",
            f"governor is {mode} on {sum(slow.values())} of {len(policies)} frequency domains",
            evidence={"driver": driver, "domains": named},
            fix=_FIX,
            commands=_COMMANDS,
        )


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


PROBE: Final = Probe("governor", check, GovernorThresholds(), group=KERNEL)
