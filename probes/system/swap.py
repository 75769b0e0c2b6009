"""HUGE_SWAP: much of the swap on disk is in use, or pages are being swapped: memory is or was short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from laggard.model import Finding
from laggard.probes.errors import Unknown
from laggard.probes.host.counter_history import SaveCounters
from laggard.probes.host.host import Host
from laggard.probes.probe import KERNEL, Count, Fact, Probe, Ratio, Thresholds, say

_SWAPS, _VMSTAT, _SWAPPINESS = "/proc/swaps", "/proc/vmstat", "/proc/sys/vm/swappiness"
_PAGE_BYTES = 4096


class SwapThresholds(Thresholds, frozen=True):
    used_ratio: Ratio = 0.5
    """Share of the swap on disks. Cold pages of daemons fill a small part over months; half of it means a shortage."""

    used_least_bytes: Count = 1 << 30

    active_bytes_per_second: Count = 1 << 20
    """The bytes in and out together, since a snapshot of at least a minute ago. To read one page takes a disk 0.1 to 10
    ms."""


class SwapArea(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int
    used_bytes: int


def check(host: Host, thresholds: SwapThresholds) -> Iterator[Finding | Fact | SaveCounters]:
    swaps = parse_swaps(host.read(_SWAPS))
    disks = [swap for swap in swaps if not swap.name.startswith(("/dev/zram", "/zram"))]
    yield Fact("swap_bytes", {swap.name: swap.size_bytes for swap in swaps})
    if not disks:  # none, or compressed memory
        return
    size, used = sum(swap.size_bytes for swap in disks), sum(swap.used_bytes for swap in disks)
    pages = _pages(host)
    yield SaveCounters({"swapped_pages": pages})
    increase = host.counter_history.increase("swapped_pages", pages) if len(disks) == len(swaps) else None
    rate = increase.count * _PAGE_BYTES / increase.seconds if increase else 0.0
    reasons = []
    if used >= thresholds.used_least_bytes and used >= thresholds.used_ratio * size:
        reasons.append(f"{used / 2**30:.1f} of {size / 2**30:.1f} GiB of swap on disk in use")
    if rate >= thresholds.active_bytes_per_second:
        reasons.append(f"{rate / 2**20:.1f} MiB/s swapped in and out")
    if reasons:
        evidence = {"used_bytes": used, "swappiness": host.read_if_present(_SWAPPINESS) or None}
        yield say("system", "swap", "swap", evidence, told="; ".join(reasons))


def parse_swaps(text: str) -> tuple[SwapArea, ...]:
    """Parses /proc/swaps: a headline, then name, type, KiB, KiB used and priority. Raises Unknown for anything else."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Filename"):
        raise Unknown(f"{_SWAPS} does not begin with its headline")
    return tuple(_swap(line.split()) for line in lines[1:] if line.strip())


def _swap(words: list[str]) -> SwapArea:
    if len(words) < 4 or not (words[-3].isdecimal() and words[-2].isdecimal()):
        raise Unknown(f"{_SWAPS} holds a line that is no swap")
    return SwapArea(words[0], int(words[-3]) * 1024, int(words[-2]) * 1024)


def _pages(host: Host) -> int:
    counts = dict(line.split()[:2] for line in host.read(_VMSTAT).splitlines() if len(line.split()) == 2)
    try:
        return int(counts["pswpin"]) + int(counts["pswpout"])
    except (KeyError, ValueError):
        raise Unknown(f"{_VMSTAT} has no counts pswpin and pswpout") from None


PROBE: Final = Probe("swap", check, SwapThresholds(), group=KERNEL)
