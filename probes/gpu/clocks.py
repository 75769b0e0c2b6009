"""GPU_CLOCKS_LOW: a GPU that is set to be slower than its peers, or than its own default.

Such a setting is what somebody left behind who locked application clocks or lowered the power limit. (NVML does not
report clocks locked with `nvidia-smi -lgc`; those show as lower speed under load.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from laggard.majority import majority
from laggard.model import Finding, Severity
from laggard.probes.gpu.model.readings import query_gpus, read_field
from laggard.probes.groups import GPU
from laggard.probes.host.host import Host
from laggard.probes.nvml.model import Gpu
from laggard.probes.probe import Fact, Probe, Ratio, Thresholds, finding

_FIX: Final = "Give the setting back to the driver, or set the same for all GPUs of the fleet, in the boot scripts too."


class _Setting(NamedTuple):
    field: str
    default: str  # the field with the board's own value
    description: str
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
    tolerance_ratio: Ratio = 0.02
    """The share by which a clock may be lower than the peers' and still count as the same: boards of one kind differ by
    a clock step (15 MHz) at most."""


def check(host: Host, thresholds: ClocksThresholds) -> Iterator[Finding | Fact]:
    gpus = query_gpus(host)
    reading = read_field(gpus, "max_sm_mhz", "clocks")
    for setting in _SETTINGS:
        for name in sorted({gpu.name or "" for gpu in gpus}):
            same_model = [gpu for gpu in gpus if (gpu.name or "") == name and getattr(gpu, setting.field)]
            yield from _judge(same_model, setting, 1 - thresholds.tolerance_ratio)
    reading.raise_if_incomplete()


def _judge(gpus: Sequence[Gpu], setting: _Setting, least: float) -> Iterator[Finding]:
    """Compares GPUs of one model with their majority where there is one, else with the board's own default; less than
    `least` times that is low. A GPU below its peers is a straggler (critical); if all are lower it may be intended."""
    peers = majority((getattr(gpu, setting.field) for gpu in gpus), fewest=3)
    for gpu in gpus:
        value = getattr(gpu, setting.field)
        default = getattr(gpu, setting.default) if setting.default else None
        if peers and value < peers * least:
            yield _finding(gpu, setting, value, peers, "its peers have", Severity.CRITICAL)
        elif default and value < default * least:
            yield _finding(gpu, setting, value, default, "the default is", Severity.WARNING)


def _finding(gpu: Gpu, setting: _Setting, value: float, expected: float, source: str, severity: Severity) -> Finding:
    return finding(
        "GPU_CLOCKS_LOW",
        gpu.device,
        f"{setting.description} {value:g} {setting.unit} where {source} {expected:g} {setting.unit}",
        evidence={"setting": setting.field, "value": value, "expected": expected, "expected_from": source},
        fix=_FIX,
        commands=(f"nvidia-smi -q -d CLOCK,POWER -i {gpu.index}", setting.command.format(gpu.index)),
        severity=severity,
    )


PROBE: Final = Probe("gpu_clocks", check, ClocksThresholds(), group=GPU)
