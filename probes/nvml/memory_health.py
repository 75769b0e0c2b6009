"""Reads the states of a GPU's memories for which NVIDIA repairs or replaces it.

The structure of the SRAM's errors is laggard's own, after nvml.h: nvidia-ml-py asks for a pointer to one, and only some
of its versions have it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from laggard.probes.nvml.model import Repair

_COUNTS: Final = (
    "aggregate_parity",
    "aggregate_secded",
    "aggregate_corrected",
    "volatile_parity",
    "volatile_secded",
    "volatile_corrected",
    "aggregate_l2",
    "aggregate_sm",
    "aggregate_pcie",
    "aggregate_microcontroller",
    "aggregate_other",
)


class _SramErrors(ctypes.Structure):  # nvmlEccSramErrorStatus_v1_t
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in _COUNTS),
        ("threshold_exceeded", ctypes.c_uint),
    ]


def read_sram_threshold_exceeded(nvml: Any, handle: Any) -> bool:
    """Whether the SRAM has had more uncorrected errors than NVIDIA's field diagnostics let pass. Raises what pynvml
    raises."""
    errors = _SramErrors()
    errors.version = ctypes.sizeof(errors) | 1 << 24  # NVML_STRUCT_VERSION
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(errors))
    return bool(errors.threshold_exceeded)


def read_repair(nvml: Any, handle: Any) -> Repair:
    """The repairs that wait for a reset (driver 580 and newer). Raises what pynvml raises."""
    channel, tpc = nvml.nvmlDeviceGetRepairStatus(handle)
    return Repair(channel=bool(channel), tpc=bool(tpc))


def read_unrepairable_memory(nvml: Any, handle: Any) -> bool:
    """Whether a part of the memory cannot be repaired (driver 590 and newer). Raises what pynvml raises."""
    return bool(nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle))
