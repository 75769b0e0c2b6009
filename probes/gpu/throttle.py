"""GPU_THROTTLED: clocks lowered by heat, by the hardware's own protection or by the power supply.

The driver counts, by reason, for how long clocks were lowered; the increase since the last snapshot is a share of time.
A power cap alone is no fault: a busy GPU runs at its limit. Without a snapshot, a reason that holds now is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.groups import GPU
from laggard.probes.host.counter_history import CounterHistory, SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import Fact, Probe, Ratio, Thresholds, finding

_NAMES: Final = {
    "sw_thermal": "heat (the driver's limit)",
    "hw_thermal": "heat (the hardware's limit)",
    "hw_power_brake": "the power supply (power brake)",
    "hw_slowdown": "the hardware's protection",
    "thermal": "heat",
    "board_limit": "the board's limits",
}
_BITS: Final = {"hw_slowdown": 0x08, "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80}
"""The bits of nvmlClocksEventReason*. 0x08 is set along with the two that are more precise; SwPowerCap (0x04) is not
judged."""
_WARNING_ONLY: Final = frozenset({"sw_thermal"})  # slower, but as designed
_FIX: Final = {
    "heat": "Check inlet temperature, fans or coolant flow, heat-sink seating and dust; compare with the other GPUs.",
    "power": "Check the power supplies, their redundancy and the rack's power cap; the brake is pulled from outside.",
}


class ThrottleThresholds(Thresholds, frozen=True):
    """Shares of the time since the last snapshot. A job runs at its slowest GPU's pace for all of that time."""

    warning_ratio: Ratio = 0.02
    critical_ratio: Ratio = 0.2

    def __post_init__(self) -> None:
        if self.warning_ratio > self.critical_ratio:
            raise ValueError("warning_ratio is above critical_ratio: a warning comes first")


def check(host: Host, thresholds: ThrottleThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    gpus = query_gpus(host)
    counted = read_field(gpus, "throttled_nanoseconds", "counters of lowered clocks")
    now = read_field(gpus, "clocks_event_reasons", "reasons for lowered clocks")
    yield SaveCounters({f"{gpu.key} {name}": value for gpu, values in counted.values for name, value in values.items()})
    for gpu in gpus:
        shares = _shares(host.counter_history, gpu)
        active = _active(gpu.clocks_event_reasons or 0)
        if shares:
            yield from _judge_shares(gpu, shares, active, thresholds)
        elif active:
            yield _finding(gpu, active[0], "at this moment", Severity.WARNING, {"reasons_now": active})
    now.raise_if_incomplete()


def _shares(history: CounterHistory, gpu: Gpu) -> dict[str, tuple[float, float]]:
    """Returns by reason the share of time, and the seconds that it is a share of."""
    shares: dict[str, tuple[float, float]] = {}
    for name, value in (gpu.throttled_nanoseconds or {}).items():
        increase = history.increase(f"{gpu.key} {name}", value)
        if increase is not None:
            shares[name] = (increase.count / 1e9 / increase.seconds, increase.seconds)
    return shares


def _judge_shares(
    gpu: Gpu, shares: dict[str, tuple[float, float]], active: list[str], thresholds: ThrottleThresholds
) -> Iterator[Finding]:
    worst = max(shares, key=lambda name: (name not in _WARNING_ONLY and shares[name][0] > 0, shares[name][0]))
    ratio, seconds = shares[worst]
    if ratio < thresholds.warning_ratio:
        return
    critical = ratio >= thresholds.critical_ratio and worst not in _WARNING_ONLY
    evidence = {
        "share_of_time": {name: round(min(share, 1.0), 4) for name, (share, _) in shares.items()},
        "seconds": round(seconds),
        "reasons_now": active,
        "celsius": gpu.temperature_celsius,
    }
    severity = Severity.CRITICAL if critical else Severity.WARNING
    yield _finding(gpu, worst, f"{min(ratio, 1.0):.0%} of the last {seconds:.0f} s", severity, evidence)


def _active(reasons: int) -> list[str]:
    """Returns the reasons whose bits are set; hw_slowdown, the general one, only where no bit is more precise."""
    names = [name for name, bit in _BITS.items() if reasons & bit]
    return [name for name in names if name != "hw_slowdown"] or names


def _finding(gpu: Gpu, reason: str, when: str, severity: Severity, evidence: dict[str, object]) -> Finding:
    return finding(
        "GPU_THROTTLED",
        gpu.device,
        f"slowed down by {_NAMES[reason]}, {when}",
        evidence=evidence,
        fix=_FIX["power" if reason in ("hw_power_brake", "board_limit") else "heat"],
        commands=(f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.index}",),
        severity=severity,
    )


PROBE: Final = Probe("gpu_throttle", check, ThrottleThresholds(), group=GPU)
