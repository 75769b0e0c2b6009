"""GPU_CLOCKS_LOW: a GPU that is set to be slower than its peers, or than its own default.

Somebody locked application clocks, or lowered the power limit, and the setting stayed. (Locked clocks, `nvidia-smi
-lgc`, are not told by NVML; they show as lower speed under load.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.model import Finding, Severity
from laggard.probes.gpu.model.readings import ask_gpus, read_field
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.majority import majority
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import Fact, Probe, Thresholds, finding

_FIX: Final = "Give the setting back to the driver, or set the same for all GPUs of the fleet, in the boot scripts too."


class _Setting(NamedTuple):
    field: str
    default: str  # the field with the board's own value
    what: str
    unit: str
    command: str


_SETTINGS: Final = (
    _Setting("max_sm_mhz", "", "highest SM clock", "MHz", "nvidia-smi --reset-gpu-clocks -i {}"),
    _Setting("max_memory_mhz", "", "highest memory clock", "MHz", "nvidia-smi --reset-memory-clocks -i {}"),
    _Setting("application_sm_mhz", "default_sm_mhz", "application clock", "MHz", "nvidia-smi -rac -i {}"),
    _Setting(
        "power_limit_watts", "default_power_limit_watts", "power limit", "W", "nvidia-smi -i {} -pl DEFAULT_WATTS"
    ),
)


class ClocksThresholds(Thresholds, frozen=True):
    tolerance_ratio: float = 0.02
    """How much lower than the peers is still the same: boards of one kind differ by a clock step (15 MHz) at most."""


def check(host: Host, thresholds: ClocksThresholds) -> Iterator[Finding | Fact]:
    gpus = ask_gpus(host)
    reading = read_field(gpus, "max_sm_mhz", "clocks")
    for setting in _SETTINGS:
        for name in sorted({gpu.name or "" for gpu in gpus}):
            alike = [gpu for gpu in gpus if (gpu.name or "") == name and getattr(gpu, setting.field)]
            yield from _judge(alike, setting, 1 - thresholds.tolerance_ratio)
    reading.conclude()


def _judge(gpus: Sequence[Gpu], setting: _Setting, least: float) -> Iterator[Finding]:
    """Against the majority of the same model here, where there is one; else against the board's own default. Lower
    than the peers makes a straggler; all of them lower may be meant."""
    peers = majority((getattr(gpu, setting.field) for gpu in gpus), fewest=3)
    for gpu in gpus:
        value = getattr(gpu, setting.field)
        default = getattr(gpu, setting.default) if setting.default else None
        if peers and value < peers * least:
            yield _finding(gpu, setting, value, peers, "its peers have", Severity.CRITICAL)
        elif default and value < default * least:
            yield _finding(gpu, setting, value, default, "the default is", Severity.WARNING)


def _finding(gpu: Gpu, setting: _Setting, value: float, expected: float, whose: str, severity: Severity) -> Finding:
    return finding(
        "GPU_CLOCKS_LOW",
        gpu.device,
        f"{setting.what} {value:g} {setting.unit} where {whose} {expected:g} {setting.unit}",
        evidence={"setting": setting.field, "value": value, "expected": expected, "expected_from": whose},
        fix=_FIX,
        commands=(f"nvidia-smi -q -d CLOCK,POWER -i {gpu.index}", setting.command.format(gpu.index)),
        severity=severity,
    )


PROBE: Final = Probe("gpu_clocks", check, ClocksThresholds(), group=GPU)
