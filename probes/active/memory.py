"""GPU_MEMORY_SLOW and GPU_WRONG_RESULT: how fast each GPU copies within its memory, and whether every word arrives.

Each word holds its own place, so that a word that is lost, changed or put elsewhere is seen. Not a memory test: it
touches the memory that it is given, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from laggard.model import Finding
from laggard.probes.active.measuring.devices import Device, Round, count_wrong_places, time_rounds
from laggard.probes.active.measuring.measure import look
from laggard.probes.active.measuring.rules import ActiveThresholds, Measured, Subject
from laggard.probes.groups import ACTIVE
from laggard.probes.host.host import Host
from laggard.probes.probe import Fact, Probe

WORDS: Final = {True: 1 << 28, False: 1 << 24}  # of 4 bytes: 1 GiB on a GPU, beyond any cache; 64 MiB on a CPU

SUBJECT = Subject(
    "GPU_MEMORY_SLOW",
    "copies within its memory at",
    "B/s",
    "Look for a memory clock that is held down and for pending row remaps (GPU_ROW_REMAP_PENDING). Reset the GPU, and "
    "exchange it if it stays slow.",
    ("nvidia-smi -q -d CLOCK,ROW_REMAPPER,ECC,TEMPERATURE",),
)


class MemoryThresholds(ActiveThresholds, frozen=True):
    """`expected_per_second` in bytes, each counted twice: read and written. Memory has no lottery of power as the cores
    do: GPUs of one model differ by a percent or two."""

    slow_ratio: float = 0.9


def check(host: Host, thresholds: MemoryThresholds) -> Iterator[Finding | Fact]:
    return look(host, thresholds, SUBJECT, lambda torch, device: copy(torch, device, thresholds.seconds))


def copy(torch: Any, device: Device, seconds: float, move: Callable[[Any, Any], Any] | None = None) -> Measured:
    """`move(to, from)`: torch's copy_ unless a test puts a faulty one in."""
    words = WORDS[device.on_gpu]
    source = torch.arange(words, dtype=torch.int32, device=device.place)
    target = torch.zeros_like(source)

    def work() -> None:
        (move or torch.Tensor.copy_)(target, source)

    def wrong() -> int:
        """Then what arrived is wiped, so that a copy that did nothing is seen the next time."""
        count = count_wrong_places(torch, target)
        target.zero_()
        return count

    rate, wrongs, rounds = time_rounds(torch, device, seconds, Round(work, wrong), 2.0 * 4 * words)
    return Measured(device.name, device.kind, rate, rounds * words, wrongs)


PROBE: Final = Probe("active_memory", check, MemoryThresholds(), group=ACTIVE)
