"""What keeps a part of a GPU, or a core, busy: units of fixed work, launched one behind another.

No unit is measured in cycles of the GPU's clock. A kernel that spins until the clock has moved on (torch.cuda._sleep)
ends as early where the GPU runs another process's kernels meanwhile; a multiplication does not.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

KINDS = ("sm", "memory", "pcie", "cpu")

MATRIX = 4096  # float16: 0.2 ms on an H100, 3 ms on a T4
COPIED = 256 << 20  # bytes, beyond any L2 cache
SENT = 32 << 20  # bytes over PCIe
LOOPS = 5_000  # of Python: some tenth of a millisecond of a core
WARM_UP_SECONDS = 1.5  # a GPU that idles has a sixth of its clock rate
MEASURED_UNITS, MEASUREMENTS = 20, 5
NEVER_CYCLES = 1 << 62  # 70 years at 2 GHz


class Loads(Protocol):
    """Where a job's work is done. `device`: the device of its tensors, a torch.device."""

    device: Any

    def unit(self, kind: str) -> Callable[[], None]:
        """What launches a unit of one of KINDS; each but cpu returns at once. Its buffers are made here."""

    def stamp(self) -> Any:
        """An event at the end of the current stream, of which the hooks know nothing."""

    def between(self, earlier: Any, later: Any) -> float:
        """Milliseconds from one stamp to another, both of which have come."""

    def wait(self, stamp: Any) -> None:
        """The host waits until `stamp` has come."""

    def synchronize(self) -> None:
        """The host waits for the device, as a user would have it wait."""

    def never_ends(self) -> None:
        """Launches a kernel that never ends."""

    def freeze(self) -> None:
        """Where collectives do not wait for the device, what stands in its place stands still from now on."""


def find_loads() -> Loads:
    """Those of this rank's GPU; of a rehearsal those of the tests' lazy device."""
    if os.environ.get("GPU_CHECK_REHEARSAL") != "1":
        return CudaLoads()
    sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))
    lazy: Loads = importlib.import_module("support.lazy_gpu").LazyLoads()
    return lazy


class CudaLoads:
    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(self.device)

    def unit(self, kind: str) -> Callable[[], None]:
        torch, device = self._torch, self.device
        if kind == "sm":
            one, other, product = (torch.ones(MATRIX, MATRIX, dtype=torch.float16, device=device) for _ in range(3))
            return lambda: torch.mm(one, other, out=product)
        if kind == "memory":
            here, there = (torch.zeros(COPIED, dtype=torch.uint8, device=device) for _ in range(2))
            return lambda: there.copy_(here)
        if kind == "pcie":
            pinned = torch.zeros(SENT, dtype=torch.uint8).pin_memory()
            received = torch.zeros(SENT, dtype=torch.uint8, device=device)
            return lambda: received.copy_(pinned, non_blocking=True)
        return loop

    def stamp(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later))

    def wait(self, stamp: Any) -> None:
        stamp.synchronize()

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def never_ends(self) -> None:
        self._torch.cuda._sleep(NEVER_CYCLES)

    def freeze(self) -> None: ...


def loop() -> None:
    """A unit of a core's work."""
    sum(range(LOOPS))


def unit_ms(loads: Loads, unit: Callable[[], None], warm_up: float = WARM_UP_SECONDS) -> float:
    """How long a unit takes on a device that is awake: the median over some measurements."""
    until = time.perf_counter() + warm_up
    while time.perf_counter() < until:
        _measure(loads, unit)
    return statistics.median(_measure(loads, unit) for _ in range(MEASUREMENTS))


def _measure(loads: Loads, unit: Callable[[], None]) -> float:
    before = loads.stamp()
    for _ in range(MEASURED_UNITS):
        unit()
    after = loads.stamp()
    loads.synchronize()
    return loads.between(before, after) / MEASURED_UNITS
