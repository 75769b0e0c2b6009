"""GPU_TOO_HOT: a temperature at one of the limits that the device itself reports.

Boards up to A10G and RTX 3090 report limits as temperatures. Newer ones (L40S, H100, H200, B200, GB200, GB300: real
nvidia-smi -q of drivers 550 to 595) report margins alone, to a limit that depends on the board: there a margin that is
used up counts while heat lowers the clocks, and heat of the memory shows in these clocks alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from laggard.model import Finding, Severity
from laggard.probes.gpu.model.amd_gpus import AmdGpu, raise_if_unread, started_amd_gpus
from laggard.probes.gpu.model.pci_devices import of_each_maker
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import GPU, Fact, Probe, Thresholds, finding

_THERMAL_REASONS: Final = 0x20 | 0x40  # nvmlClocksEventReasonSwThermalSlowdown and ...HwThermalSlowdown
_NEAR_CELSIUS: Final = 5
"""The degrees by which a GPU whose margin is used up is near to one of its limits: margin and thermometer need not mean
the same spot of the board."""

COOLING: Final = (
    "Check inlet temperature, fans or coolant flow, heat-sink seating and dust; compare with the other GPUs."
)


class TemperatureThresholds(Thresholds, frozen=True):
    """Nothing to set: the limits are the device's."""


def check(host: Host, thresholds: TemperatureThresholds) -> Iterator[Finding | Fact]:
    yield from of_each_maker(host, nvidia=_check_nvidia(host), amd=_check_amd(host))


def _check_amd(host: Host) -> Iterator[Finding | Fact]:
    gpus = started_amd_gpus(host)
    yield Fact(
        "celsius",
        {gpu.device: {label: sensor.now for label, sensor in gpu.temperatures.items()} for gpu in gpus},
    )
    for gpu in gpus:
        yield from _judge_sensors(gpu)
    raise_if_unread(gpus, "temperatures", "a thermometer")


def _check_nvidia(host: Host) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "temperature_celsius", "a thermometer")
    yield Fact("celsius", {gpu.device: value for gpu, value in reading.values})
    unconfirmed = {gpu.device: gpu.margin_celsius for gpu in gpus if _has_no_margin(gpu) and not _confirms_margin(gpu)}
    if unconfirmed:
        yield Fact("margins_not_confirmed_by_a_temperature", unconfirmed)
    for gpu in gpus:
        overheating = _judge(gpu)
        if overheating:
            summary, severity = overheating
            evidence = {name: value for name, value in _evidence(gpu).items() if value is not None}
            yield _finding(gpu, summary, evidence, f"nvidia-smi -q -d TEMPERATURE -i {gpu.index}", severity)
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
    return finding(
        "GPU_TOO_HOT", gpu.device, summary, evidence=evidence, fix=COOLING, commands=(command,), severity=severity
    )


def _judge(gpu: Gpu) -> tuple[str, Severity] | None:
    """Returns the summary and severity of the most severe limit that is reached. Margins are those at which operation
    and slowdown begin: 0 and below."""
    margin = gpu.margin_celsius if _confirms_margin(gpu) else None
    slowdown, operation = "at its slowdown temperature", "hotter than it may run"
    checks = (
        (_reached(gpu.temperature_celsius, gpu.slowdown_celsius), slowdown, Severity.CRITICAL),
        (_spent(margin, gpu.slowdown_margin_celsius), slowdown, Severity.CRITICAL),
        (_reached(gpu.temperature_celsius, gpu.gpu_max_celsius), operation, Severity.WARNING),
        (_spent(margin, gpu.gpu_max_margin_celsius), operation, Severity.WARNING),
        (
            _reached(gpu.memory_temperature_celsius, gpu.memory_max_celsius),
            f"its memory is {operation}",
            Severity.WARNING,
        ),
    )
    return next(((f"{text}: {_degrees(gpu)}", severity) for holds, text, severity in checks if holds), None)


def _reached(value: int | None, limit: int | None) -> bool:
    return value is not None and bool(limit) and value >= limit  # type: ignore[operator]


def _spent(margin: int | None, limit: int | None) -> bool:
    """Returns whether the margin is used up. Margins count down to the limit, and 0 is a limit like any other."""
    return margin is not None and limit is not None and margin <= limit


def _has_no_margin(gpu: Gpu) -> bool:
    return _spent(gpu.margin_celsius, gpu.slowdown_margin_celsius) or _spent(
        gpu.margin_celsius, gpu.gpu_max_margin_celsius
    )


def _confirms_margin(gpu: Gpu) -> bool:
    """Returns whether anything else shows that the GPU is hot: a temperature near a limit, or clocks that heat lowers
    now. Healthy GPUs, H100 among them, report margins of 0 and -5 (leptonai/gpud, commit 035de368)."""
    if (gpu.clocks_event_reasons or 0) & _THERMAL_REASONS:
        return True
    limits = (
        (gpu.temperature_celsius, gpu.slowdown_celsius),
        (gpu.temperature_celsius, gpu.gpu_max_celsius),
        (gpu.memory_temperature_celsius, gpu.memory_max_celsius),
    )
    return any(_reached(value, limit - _NEAR_CELSIUS) for value, limit in limits if limit)


def _degrees(gpu: Gpu) -> str:
    parts = {"GPU": gpu.temperature_celsius, "memory": gpu.memory_temperature_celsius, "margin": gpu.margin_celsius}
    return ", ".join(f"{name} {value} C" for name, value in parts.items() if value is not None)


def _evidence(gpu: Gpu) -> dict[str, int | None]:
    return {
        "celsius": gpu.temperature_celsius,
        "memory_celsius": gpu.memory_temperature_celsius,
        "margin_celsius": gpu.margin_celsius,
        "slowdown_celsius": gpu.slowdown_celsius,
        "shutdown_celsius": gpu.shutdown_celsius,
        "most_in_operation_celsius": gpu.gpu_max_celsius,
        "memory_most_celsius": gpu.memory_max_celsius,
        "slowdown_margin_celsius": gpu.slowdown_margin_celsius,
        "operation_margin_celsius": gpu.gpu_max_margin_celsius,
    }


PROBE: Final = Probe("gpu_temperature", check, TemperatureThresholds(), group=GPU)
