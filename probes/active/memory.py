"""GPU_MEMORY_SLOW and GPU_WRONG_RESULT: a GPU that copies within its memory too slowly, or with errors.

Each word holds its own index, so that a word that is lost, changed or misplaced is found. It is no memory test: it uses
the memory that it is given, and once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.active.measuring.devices import ComputeDevice, check_rates, move_words
from laggard.probes.active.measuring.rates import ActiveThresholds, Measurement, RateTest
from laggard.probes.host.host import Host
from laggard.probes.probe import ACTIVE, Fact, Probe, Ratio

WORDS: Final = {True: 1 << 28, False: 1 << 24}  # of 4 bytes: 1 GiB on a GPU, beyond any cache; 64 MiB on a CPU

RATE_TEST = RateTest(
    "GPU_MEMORY_SLOW",
    "copies within its memory at",
    "B/s",
    "Look for a lowered memory clock and for pending row remaps (GPU_ROW_REMAP_PENDING). Reset the GPU, and replace it "
    "if it stays slow.",
    ("nvidia-smi -q -d CLOCK,ROW_REMAPPER,ECC,TEMPERATURE",),
)


class MemoryThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in bytes, each counted twice: read and written. The memory rates of GPUs of one model
    differ by a percent or two, much less than those of their cores."""

    slow_ratio: Ratio = 0.9


def check(host: Host, thresholds: MemoryThresholds) -> Iterator[Finding | Fact]:
    return check_rates(
        host, thresholds, RATE_TEST, lambda torch, device: copy_in_memory(torch, device, thresholds.seconds)
    )


def copy_in_memory(
    torch: Any, device: ComputeDevice, seconds: float, move: Callable[[Any, Any], Any] | None = None
) -> Measurement:
    """`move` as move_words() takes it."""
    source = torch.arange(WORDS[device.on_gpu], dtype=torch.int32, device=device.torch_name)
    return move_words(torch, device, seconds, (source, torch.zeros_like(source)), move)


PROBE: Final = Probe("active_memory", check, MemoryThresholds(), group=ACTIVE)
