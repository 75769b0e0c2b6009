"""CLOCK_SKEW and CLOCK_SOURCE_SLOW: a kernel clock that no time daemon disciplines, or that is or may be too far off;
one that programs read by a call into the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding
from laggard.probes.host.host import Host
from laggard.probes.host.kernel import KernelClock
from laggard.probes.probe import KERNEL, Fact, NotNegative, Probe, Thresholds, say

_UNSYNC = 0x0040  # STA_UNSYNC of <sys/timex.h>
_TIME_ERROR = 5
_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_SLOW_SOURCES: Final = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
"""Those that programs cannot read without the kernel (no vclock_mode): devices beside the processor, and its ticks."""


class ClockThresholds(Thresholds, frozen=True):
    """Limits in seconds. A finding is a warning: a host without network time may be kept right by its hypervisor."""

    offset_seconds: NotNegative = 0.05
    """The correction that is left to make; the node-exporter mixin's NodeClockSkewDetected has the same limit."""

    maximum_error_seconds: NotNegative = 3.0
    """chronyd's `maxdistance`: chronyd uses no source whose own error may be larger."""


def check(host: Host, thresholds: ClockThresholds) -> Iterator[Finding | Fact]:
    clock, source = host.clock(), host.text(_SOURCE)
    evidence = {
        "state": clock.state,
        "status": f"{clock.status:#06x}",
        "offset_seconds": clock.offset_seconds,
        "maximum_error_seconds": clock.maximum_error_seconds,
        "estimated_error_seconds": clock.estimated_error_seconds,
        "clock_source": source or None,  # kvm-clock and hyperv_* mean a virtual machine
    }
    yield Fact("clock", evidence)
    fault = _fault(clock, thresholds)
    if fault:
        yield say("system", "clock", "clock", evidence, told=fault)
    if source in _SLOW_SOURCES:
        yield say("system", "clock_source", "clock", {"clock_source": source}, source=source)


def _fault(clock: KernelClock, thresholds: ClockThresholds) -> str | None:
    """Returns the most severe fault: the offset and error of a clock that is not synchronised mean nothing."""
    if clock.status & _UNSYNC or clock.state == _TIME_ERROR:
        return "not synchronised: no time daemon sets the kernel's clock"
    if abs(clock.offset_seconds) > thresholds.offset_seconds:
        return f"off by {abs(clock.offset_seconds):.3g} s"
    if clock.maximum_error_seconds > thresholds.maximum_error_seconds:
        return f"may be off by up to {clock.maximum_error_seconds:.3g} s"
    return None


PROBE: Final = Probe("clock", check, ClockThresholds(), group=KERNEL)
