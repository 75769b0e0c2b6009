"""Reads a GPU's registration with the NVLink fabric.

The structures are laggard's own, after nvml.h: nvidia-ml-py's have 80 bytes for the 16 of the cluster's UUID before
12.570, so that all that follows is read from the wrong place; the form with a health summary came with 13.
"""

from __future__ import annotations

import ctypes
from typing import Any

from laggard.probes.nvml.failure import first_known
from laggard.probes.nvml.model import GpuFabricInfo

_BODY: Any = [
    ("cluster_uuid", ctypes.c_ubyte * 16),
    ("status", ctypes.c_int),
    ("clique", ctypes.c_uint),
    ("state", ctypes.c_ubyte),
]


class _Info(ctypes.Structure):  # nvmlGpuFabricInfo_t
    _fields_ = _BODY


class _InfoV2(ctypes.Structure):  # nvmlGpuFabricInfo_v2_t
    _fields_ = [("version", ctypes.c_uint), *_BODY, ("health_mask", ctypes.c_uint)]


class _InfoV3(ctypes.Structure):  # nvmlGpuFabricInfo_v3_t
    _fields_ = [*_InfoV2._fields_, ("health_summary", ctypes.c_ubyte)]


def read_fabric(nvml: Any, handle: Any) -> GpuFabricInfo:
    """The fabric's state by the newest form that driver and nvidia-ml-py know: with a health summary (driver 580 and
    newer), with a health mask (550), or without. Raises what pynvml raises."""
    return first_known(
        lambda: _read_version(nvml, handle, _InfoV3(), 3),
        lambda: _read_version(nvml, handle, _InfoV2(), 2),
        lambda: _read_old(nvml, handle),
    )


def _read_version(nvml: Any, handle: Any, info: Any, version: int) -> GpuFabricInfo:
    info.version = ctypes.sizeof(info) | version << 24  # NVML_STRUCT_VERSION
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return _value(info)


def _read_old(nvml: Any, handle: Any) -> GpuFabricInfo:
    info = _Info()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return _value(info)


def _value(info: Any) -> GpuFabricInfo:
    uuid = bytes(info.cluster_uuid).hex()
    return GpuFabricInfo(
        state=info.state,
        status=info.status,
        health_mask=getattr(info, "health_mask", None),
        health_summary=getattr(info, "health_summary", None),
        cluster_uuid=uuid if uuid.strip("0") else "",
        clique=info.clique,
    )
