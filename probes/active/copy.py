"""PCIE_LINK_DEGRADED and GPU_WRONG_RESULT: how fast data goes to each GPU and back, and whether it comes back the same.

What the link has been trained to is in the registers; this is what comes through. The process stays on the CPUs near
the GPU while it allocates and copies, where the machine lets it, so that the other socket's distance is not blamed on
the link.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.active.measuring.devices import Device, Round, count_wrong_places, time_rounds
from laggard.probes.active.measuring.measure import look
from laggard.probes.active.measuring.rules import ActiveThresholds, Measured, Subject
from laggard.probes.errors import Unknown
from laggard.probes.groups import ACTIVE
from laggard.probes.host.cpu_list import parse_cpu_list
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe

WORDS: Final = {True: 1 << 26, False: 1 << 24}  # of 4 bytes: 256 MiB of pinned memory on a GPU's node, 64 MiB else

SUBJECT = Subject(
    "PCIE_LINK_DEGRADED",
    "copies from and to the host at",
    "B/s",
    "Compare the link's width and speed with what the GPU and its port can do (`lspci -vv`, LnkSta, LnkCap), all the "
    "way up to the CPU. Where they are full: look for a NUMA node without memory, the IOMMU, and PCIe errors.",
    ("lspci -vv | grep -E 'LnkSta|LnkCap'", "nvidia-smi topo -m", "numactl --hardware"),
)


class CopyThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in bytes, to the device and back, each counted once."""

    slow_ratio: float = 0.65
    """A link that lost half of its lanes, or a generation, gives half. Between sockets and with busy memory controllers
    healthy links differ by a quarter and more."""

    critical_ratio: float = 0.0
    """Never critical by itself: the probe of the links, which reads the registers, is the one to say so."""


def check(host: Host, thresholds: CopyThresholds) -> Iterator[Finding | Fact]:
    def measure(torch: Any, device: Device) -> Measured:
        with near(host, device.bus_id):
            return there_and_back(torch, device, thresholds.seconds)

    return look(host, thresholds, SUBJECT, measure)


def there_and_back(
    torch: Any, device: Device, seconds: float, move: Callable[[Any, Any], Any] | None = None
) -> Measured:
    """`move(to, from)`: torch's copy_ unless a test puts a faulty one in."""
    words = WORDS[device.on_gpu]
    source = torch.arange(words, dtype=torch.int32, pin_memory=device.on_gpu)
    back = torch.zeros(words, dtype=torch.int32, pin_memory=device.on_gpu)
    there = torch.zeros(words, dtype=torch.int32, device=device.place)

    def work() -> None:
        for target, origin in ((there, source), (back, there)):
            (move or _copy)(target, origin)

    def wrong() -> int:
        """Counted on the host; then what arrived is wiped, so that a copy that did nothing is seen the next time."""
        count = count_wrong_places(torch, back)
        there.zero_()
        back.zero_()
        return count

    rate, wrongs, rounds = time_rounds(torch, device, seconds, Round(work, wrong), 2.0 * 4 * words)
    return Measured(device.name, device.kind, rate, rounds * words, wrongs)


def _copy(target: Any, origin: Any) -> None:
    target.copy_(origin, non_blocking=True)  # on one stream: one after the other


@contextmanager
def near(host: Host, bus_id: str) -> Iterator[None]:
    """This process on the CPUs of the device's NUMA node; unchanged where that is not known or not allowed."""
    before = os.sched_getaffinity(0)
    path = f"/sys/bus/pci/devices/{bus_id}/local_cpulist"
    with suppress(Unknown, OSError):
        os.sched_setaffinity(0, before & parse_cpu_list(host.read(path), path) or before)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


PROBE: Final = Probe("active_copy", check, CopyThresholds(), group=ACTIVE)
