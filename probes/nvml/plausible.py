"""Refuses values that no GPU can have, so that what NVML returns for a broken one is unknown and accuses nobody.

The limits are far outside of what any board reaches. They catch a value of the wrong type (a negative one read without
its sign), a sentinel (NVML_VALUE_NOT_AVAILABLE is -1), and a register of a GPU that is off the bus, which reads as all
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from laggard.probes.nvml.model import IMPLAUSIBLE, GpuFabricInfo, RemappedRows
from laggard.text.lazy_pattern import lazy_pattern

_BUS_ID = lazy_pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CELSIUS: Final = (-100, 300)
_MARGIN: Final = (-200, 200)
_MHZ: Final = (0, 20_000)
_WATTS: Final = (0, 20_000)
_COUNT: Final = (0, 1 << 62)
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "minor": (0, 1 << 20),
    "ecc_volatile": _COUNT,
    "ecc_aggregate": _COUNT,
    "recovery_action": (0, 254),  # 255 is the driver's own "not known yet" (GPU_RECOVERY_ACTION_UNKNOWN)
    "clocks_event_reasons": (0, 1 << 32),
    **dict.fromkeys(("temperature_celsius", "memory_temperature_celsius"), _CELSIUS),
    **dict.fromkeys(("shutdown_celsius", "slowdown_celsius", "gpu_max_celsius", "memory_max_celsius"), _CELSIUS),
    **dict.fromkeys(("margin_celsius", "slowdown_margin_celsius", "gpu_max_margin_celsius"), _MARGIN),
    **dict.fromkeys(("max_sm_mhz", "max_memory_mhz", "application_sm_mhz", "application_memory_mhz"), _MHZ),
    **dict.fromkeys(("default_sm_mhz", "sm_mhz"), _MHZ),
    **dict.fromkeys(("power_limit_watts", "enforced_power_limit_watts", "default_power_limit_watts"), _WATTS),
}
_MAX_ROWS: Final = 1 << 20
_FABRIC_STATES: Final = range(4)  # NVML_GPU_FABRIC_STATE_*


def drop_implausible(values: Mapping[str, Any], errors: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """`values` and `errors`, by the names of Gpu's fields, with each value that cannot be turned into an error."""
    refused = {
        name: f"{IMPLAUSIBLE} {value!r}"[:100] for name, value in values.items() if not _is_plausible(name, value)
    }
    kept = {name: value for name, value in values.items() if name not in refused}
    return kept, {**errors, **refused}


def _is_plausible(name: str, value: Any) -> bool:
    if name in _RANGES:
        least, most = _RANGES[name]
        return bool(least <= value <= most)  # False for a value that is not a number
    if name == "bus_id":
        return bool(_BUS_ID.fullmatch(value))
    if name in ("uuid", "name", "board_part", "vbios"):
        return bool(value.strip())
    if isinstance(value, RemappedRows):
        return max(value.correctable, value.uncorrectable) <= _MAX_ROWS
    if isinstance(value, GpuFabricInfo):
        return value.state in _FABRIC_STATES
    return _counts_are_plausible(value) if name in ("throttled_nanoseconds", "link_errors") else True


def _counts_are_plausible(counts: Mapping[str, int | tuple[int, ...]]) -> bool:
    numbers = [number for value in counts.values() for number in ((value,) if isinstance(value, int) else value)]
    return all(_COUNT[0] <= number <= _COUNT[1] for number in numbers)
