"""GPU_TOO_HOT: a temperature at one of the limits that the device itself reports.

Boards up to A10G and RTX 3090 report limits as temperatures. Newer ones (L40S, H100, H200, B200, GB200, GB300: real
nvidia-smi -q of drivers 550 to 595) report margins alone, to a limit that depends on the board: there a margin that is
used up counts while heat lowers the clocks, and heat of the memory shows in these clocks alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from laggard.model import Finding, Severity
from laggard.probes.gpu.model.amd_gpus import AmdGpu, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, facts, say

_THERMAL_REASONS: Final = 0x20 | 0x40  # nvmlClocksEventReasonSwThermalSlowdown and ...HwThermalSlowdown
_NEAR_CELSIUS: Final = 5
"""The degrees by which a GPU whose margin is used up is near to one of its limits: margin and thermometer need not mean
the same spot of the board."""


class _Limit(msgspec.Struct, frozen=True):
    """`now` and `most` are fields of Gpu. Margins are those at which operation and slowdown begin: 0 and below."""

    now: str
    most: str
    summary: str
    severity: Severity

    @property
    def is_margin(self) -> bool:
        return self.now == "margin_celsius"


_SLOWDOWN, _OPERATION = "at its slowdown temperature", "hotter than it may run"
_LIMITS: Final = (
    _Limit("temperature_celsius", "slowdown_celsius", _SLOWDOWN, Severity.CRITICAL),
    _Limit("margin_celsius", "slowdown_margin_celsius", _SLOWDOWN, Severity.CRITICAL),
    _Limit("temperature_celsius", "gpu_max_celsius", _OPERATION, Severity.WARNING),
    _Limit("margin_celsius", "gpu_max_margin_celsius", _OPERATION, Severity.WARNING),
    _Limit("memory_temperature_celsius", "memory_max_celsius", f"its memory is {_OPERATION}", Severity.WARNING),
)
"""The most severe ones first."""


def _check_amd(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    gpus = started_amd_gpus(host)
    yield Fact(
        "celsius",
        {gpu.device: {label: sensor.now for label, sensor in gpu.temperatures.items()} for gpu in gpus},
    )
    for gpu in gpus:
        yield from _judge_sensors(gpu)
    raise_if_unread(gpus, "temperatures", "a thermometer")


def _check_nvidia(host: Host, thresholds: Thresholds) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "temperature_celsius", "a thermometer")
    yield Fact("celsius", {gpu.device: value for gpu, value in reading.values})
    spent = [gpu for gpu in gpus if any(_is_reached(gpu, limit) for limit in _LIMITS if limit.is_margin)]
    unconfirmed = {gpu.device: gpu.margin_celsius for gpu in spent if not _confirms_margin(gpu)}
    yield from facts(margins_not_confirmed_by_a_temperature=unconfirmed)
    for gpu in gpus:
        counted = [limit for limit in _LIMITS if not limit.is_margin or _confirms_margin(gpu)]
        worst = next((limit for limit in counted if _is_reached(gpu, limit)), None)
        if worst:
            names = dict.fromkeys(name for limit in _LIMITS for name in (limit.now, limit.most))
            evidence = {name: value for name in names if (value := getattr(gpu, name)) is not None}
            command = f"nvidia-smi -q -d TEMPERATURE -i {gpu.index}"
            yield _finding(gpu, f"{worst.summary}: {_degrees(gpu)}", evidence, command, worst.severity)
    reading.raise_if_incomplete()


def _judge_sensors(gpu: AmdGpu) -> Iterator[Finding]:
    """The `crit` of hwmon is where the GPU slows itself down, `emergency` where it switches itself off: amd-smi calls
    them SLOWDOWN and SHUTDOWN. The worst sensor counts."""
    over = {
        label: sensor.now - sensor.critical
        for label, sensor in gpu.temperatures.items()
        if sensor.critical is not None and 0 < sensor.critical <= sensor.now
    }
    if over:
        worst = max(over, key=lambda label: over[label])
        sensor = gpu.temperatures[worst]
        summary = f"at its slowdown temperature: {worst} {sensor.now:.0f} C of {sensor.critical:.0f}"
        evidence = {label: sensor._asdict() for label, sensor in gpu.temperatures.items()}
        yield _finding(gpu, summary, evidence, "amd-smi metric --temperature", Severity.CRITICAL)


def _finding(
    gpu: Gpu | AmdGpu, summary: str, evidence: Mapping[str, object], command: str, severity: Severity
) -> Finding:
    return say("gpu", "hot", gpu.device, evidence, severity, told=summary, command=command)


def _is_reached(gpu: Gpu, limit: _Limit, near: int = 0) -> bool:
    """Returns whether a temperature is at its limit, or within `near` degrees of it, or a margin is used up. Margins
    count down to the limit, and 0 is a limit like any other."""
    now, most = getattr(gpu, limit.now), getattr(gpu, limit.most)
    if now is None or most is None:
        return False
    return bool(now <= most if limit.is_margin else most and now >= most - near)


def _confirms_margin(gpu: Gpu) -> bool:
    """Returns whether anything else shows that the GPU is hot: a temperature near a limit, or clocks that heat lowers
    now. Healthy GPUs, H100 among them, report margins of 0 and -5 (leptonai/gpud, commit 035de368)."""
    if (gpu.clocks_event_reasons or 0) & _THERMAL_REASONS:
        return True
    return any(_is_reached(gpu, limit, _NEAR_CELSIUS) for limit in _LIMITS if not limit.is_margin)


def _degrees(gpu: Gpu) -> str:
    parts = {"GPU": gpu.temperature_celsius, "memory": gpu.memory_temperature_celsius, "margin": gpu.margin_celsius}
    return ", ".join(f"{name} {value} C" for name, value in parts.items() if value is not None)


PROBE: Final = Probe("gpu_temperature", of_each_maker(_check_nvidia, _check_amd), Thresholds(), group=GPU)
