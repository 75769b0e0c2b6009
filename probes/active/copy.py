"""PCIE_LINK_DEGRADED, GPU_MEMORY_SLOW and GPU_WRONG_RESULT: a GPU to which data is copied too slowly, or comes back
changed.

The probe pcie_links reads from registers how fast the link should be; this probe measures it. Where the machine allows
it, the process runs on the CPUs near the GPU while it allocates and copies, so that the distance to another CPU socket
is not blamed on the link.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.active.measuring.devices import ComputeDevice, check_rates, move_words
from laggard.probes.active.measuring.rates import ActiveThresholds, Measurement, RateTest
from laggard.probes.errors import Unknown
from laggard.probes.host.host import Host
from laggard.probes.host.virtualization import parse_cpu_list
from laggard.probes.probe import ACTIVE, Fact, Probe, Ratio

WORDS: Final = {True: 1 << 26, False: 1 << 24}  # of 4 bytes; 256 MiB of pinned memory for a GPU, 64 MiB else

RATE_TEST = RateTest("slow_copy", "copies from and to the host at", "B/s")


class CopyThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in bytes, to the device and back, each counted once."""

    slow_ratio: Ratio = 0.65
    """A link that lost half of its lanes, or one generation of speed, has half the rate. Healthy links differ by a
    quarter and more, between CPU sockets and with busy memory controllers."""

    critical_ratio: Ratio = 0.0
    """Never critical: the probe pcie_links, which reads the registers, decides that."""


def check(host: Host, thresholds: CopyThresholds) -> Iterator[Finding | Fact]:
    def measure(torch: Any, device: ComputeDevice) -> Measurement:
        with pinned_near(host, device.bus_id):
            return copy_there_and_back(torch, device, thresholds.seconds)

    return check_rates(host, thresholds, RATE_TEST, measure)


def copy_there_and_back(
    torch: Any, device: ComputeDevice, seconds: float, move: Callable[[Any, Any], Any] | None = None
) -> Measurement:
    """`move` as move_words() takes it. What comes back is counted on the host."""
    words = WORDS[device.on_gpu]
    source = torch.arange(words, dtype=torch.int32, pin_memory=device.on_gpu)
    there = torch.zeros(words, dtype=torch.int32, device=device.torch_name)
    back = torch.zeros(words, dtype=torch.int32, pin_memory=device.on_gpu)
    return move_words(torch, device, seconds, (source, there, back), move)


@contextmanager
def pinned_near(host: Host, bus_id: str) -> Iterator[None]:
    """Keeps this process on the CPUs of the device's NUMA node, where those are known and allowed."""
    before = os.sched_getaffinity(0)
    path = f"/sys/bus/pci/devices/{bus_id}/local_cpulist"
    with suppress(Unknown, OSError):
        os.sched_setaffinity(0, before & parse_cpu_list(host.read(path), path) or before)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


# GPU_MEMORY_SLOW and GPU_WRONG_RESULT: a GPU that copies within its memory too slowly, or with errors.
#
# Each word holds its own index, so that a word that is lost, changed or misplaced is found. It is no memory test: it
# uses the memory that it is given, and once.

MEMORY_WORDS: Final = {True: 1 << 28, False: 1 << 24}  # of 4 bytes: 1 GiB on a GPU, beyond any cache; 64 MiB on a CPU

MEMORY_TEST = RateTest("slow_memory", "copies within its memory at", "B/s")


class MemoryThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in bytes, each counted twice: read and written. The memory rates of GPUs of one model
    differ by a percent or two, much less than those of their cores."""

    slow_ratio: Ratio = 0.9


def check_memory(host: Host, thresholds: MemoryThresholds) -> Iterator[Finding | Fact]:
    return check_rates(
        host, thresholds, MEMORY_TEST, lambda torch, device: copy_in_memory(torch, device, thresholds.seconds)
    )


def copy_in_memory(
    torch: Any, device: ComputeDevice, seconds: float, move: Callable[[Any, Any], Any] | None = None
) -> Measurement:
    """`move` as move_words() takes it."""
    source = torch.arange(MEMORY_WORDS[device.on_gpu], dtype=torch.int32, device=device.torch_name)
    return move_words(torch, device, seconds, (source, torch.zeros_like(source)), move)


PROBES: Final = (
    Probe("active_memory", check_memory, MemoryThresholds(), group=ACTIVE),
    Probe("active_copy", check, CopyThresholds(), group=ACTIVE),
)
