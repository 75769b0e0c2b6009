"""GPU_THROTTLED: clocks lowered by heat, by the hardware's own protection or by the power supply.

The driver counts, by reason, for how long clocks were lowered; the increase since the last snapshot is a share of time.
A power cap alone is no fault: a busy GPU runs at its limit. A power brake of all GPUs at once is the site's, a warning.
Without a snapshot, a reason that holds now is a warning.
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
_WARNING_ONLY: Final = frozenset({"sw_thermal", "board_limit"})
"""Slower, but as designed; and what older drivers count as limits of the board, ordinary power capping perhaps among
it: NVIDIA does not say."""
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
    shares_of = {gpu.key: _shares(host.counter_history, gpu) for gpu in gpus}
    braked = all(_share(shares_of[gpu.key], "hw_power_brake") >= thresholds.warning_ratio for gpu in gpus)
    for gpu in gpus:
        shares = shares_of[gpu.key]
        active = _active(gpu.clocks_event_reasons or 0)
        if shares:
            yield from _judge_shares(gpu, shares, active, thresholds, braked)
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


def _share(shares: dict[str, tuple[float, float]], name: str) -> float:
    return shares.get(name, (0.0, 0.0))[0]


def _judge_shares(
    gpu: Gpu, shares: dict[str, tuple[float, float]], active: list[str], thresholds: ThrottleThresholds, braked: bool
) -> Iterator[Finding]:
    """Yields a finding of the worst reason: a critical one before others, then by its share. `braked`: the power brake
    is pulled for all GPUs, as a site does whose power is short. It is no GPU's fault."""
    severities = {
        name: Severity.CRITICAL
        if share >= thresholds.critical_ratio
        and name not in _WARNING_ONLY
        and not (name == "hw_power_brake" and braked)
        else Severity.WARNING
        for name, (share, _) in shares.items()
        if share >= thresholds.warning_ratio
    }
    if not severities:
        return
    worst = max(severities, key=lambda name: (severities[name] is Severity.CRITICAL, shares[name][0]))
    ratio, seconds = shares[worst]
    evidence = {
        "share_of_time": {name: round(min(share, 1.0), 4) for name, (share, _) in shares.items()},
        "seconds": round(seconds),
        "reasons_now": active,
        "celsius": gpu.temperature_celsius,
    }
    everywhere = ", as of all GPUs of this node" if worst == "hw_power_brake" and braked else ""
    when = f"{min(ratio, 1.0):.0%} of the last {seconds:.0f} s{everywhere}"
    yield _finding(gpu, worst, when, severities[worst], evidence)


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
