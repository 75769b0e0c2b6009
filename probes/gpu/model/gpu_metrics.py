"""The table `gpu_metrics` that amdgpu gives of a GPU: its layout depends on a version, which its first bytes name.

Layouts: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h, struct gpu_metrics_v1_3 to gpu_metrics_v1_8. MI200 has
1.3, MI300 has had 1.4 to 1.8. Only what is judged is read, at a few offsets; a value whose bits are all set is one that
the firmware does not give (smu_cmn_init_soft_gpu_metrics). A draft of 1.6 that stood in a kernel's sources had another
order, so that the size tells it from the real one. Pure; the bytes may be anything.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from laggard.probes.errors import Unknown

MAX_BYTES: Final = 8192
"""The largest table that is read; that of 1.8 has less than 4 KiB."""

_HEADER: Final = struct.Struct("<HBB")  # structure_size, format_revision, content_revision
_SIZE_OF_1_6: Final = 1664
_LINKS: Final = 8
"""NUM_XGMI_LINKS of kgd_pp_interface.h."""

RESIDENCIES: Final = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
"""The reasons for which the firmware counts how long clocks were lowered, in the order of the table."""


class GpuMetrics(NamedTuple):
    """`version`: as 1.7. Temperatures are in Celsius; None: the table has no such value, or the firmware gives none."""

    version: str
    hotspot_celsius: int | None = None
    memory_celsius: int | None = None
    accumulation_counter: int | None = None
    """The number of the firmware's cycles; a residency counts those of them in which its reason held."""
    residencies: Mapping[str, int] = {}
    throttle_bits: int | None = None
    """SMU_THROTTLER_* bits of drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h, which are the same for all GPUs."""
    xgmi_links: tuple[int | None, ...] = ()
    """1 for a link that is up and 0 for one that is not; None for one that this board does not have."""


class _Layout(NamedTuple):
    """Offsets in bytes. `counter`: of the cycles, with the residencies after it. -1: the table has no such value."""

    hotspot: int
    memory: int
    counter: int = -1
    throttle: int = -1
    links: int = -1

    @property
    def end(self) -> int:
        """The bytes that the table must have."""
        ends = (self.counter + 24 if self.counter >= 0 else 0, self.throttle + 8, self.links + 2 * _LINKS)
        return max(self.memory + 2, *ends)


_LAYOUTS: Final = {
    3: _Layout(6, 8, throttle=112),
    4: _Layout(4, 6),  # its throttle_status is 0 always: "not reported through metrics now" (smu_v13_0_6_ppt.c)
    5: _Layout(4, 6),
    6: _Layout(4, 6, counter=32),
    7: _Layout(4, 6, counter=40, links=264),
    8: _Layout(4, 6, counter=40, links=264),
}
"""The places by the second number of the version."""


def parse_gpu_metrics(data: bytes) -> GpuMetrics:
    """Raises Unknown where the bytes are no table of a version that is read."""
    if len(data) < _HEADER.size:
        raise Unknown("gpu_metrics is empty")
    size, major, minor = _HEADER.unpack_from(data)
    version = f"{major}.{minor}"
    layout = _LAYOUTS.get(minor) if major == 1 else None
    if layout is None or (minor == 6 and size != _SIZE_OF_1_6):
        raise Unknown(f"gpu_metrics has version {version} with {size} bytes, which is not read")
    if not layout.end <= size <= len(data) <= MAX_BYTES:
        raise Unknown(f"gpu_metrics {version} has {len(data)} bytes and says {size}")
    counter, residencies = _residencies(data, layout)
    return GpuMetrics(
        version,
        _unsigned(data, layout.hotspot, "H"),
        _unsigned(data, layout.memory, "H"),
        counter,
        residencies,
        None if layout.throttle < 0 else _unsigned(data, layout.throttle, "Q"),
        () if layout.links < 0 else tuple(_link(data, layout.links + 2 * number) for number in range(_LINKS)),
    )


def _residencies(data: bytes, layout: _Layout) -> tuple[int | None, dict[str, int]]:
    if layout.counter < 0:
        return None, {}
    counter = _unsigned(data, layout.counter, "I")
    values = {name: _unsigned(data, layout.counter + 4 * place, "I") for place, name in enumerate(RESIDENCIES, 1)}
    return counter, {name: value for name, value in values.items() if value is not None}


def _link(data: bytes, offset: int) -> int | None:
    state = _unsigned(data, offset, "H")
    return state if state in (0, 1) else None


def _unsigned(data: bytes, offset: int, kind: str) -> int | None:
    """A little-endian number; None where all its bits are set."""
    shape = struct.Struct(f"<{kind}")
    value: int = shape.unpack_from(data, offset)[0]
    return None if value == (1 << 8 * shape.size) - 1 else value
