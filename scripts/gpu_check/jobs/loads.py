"""Where a job works: the GPU of its rank, or in a rehearsal what the tests have in its place."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Protocol

MATRIX = 4096  # float16: 0.2 ms on an H100, 3 ms on a T4
NEVER_CYCLES = 1 << 62  # 70 years at 2 GHz


class Loads(Protocol):
    """Where a job's work is done. `device`: the device of its tensors, a torch.device."""

    device: Any

    def work(self) -> None:
        """Launches some work."""

    def stamp(self) -> Any:
        """An event at the end of the current stream, of which the hooks know nothing."""

    def between(self, earlier: Any, later: Any) -> float:
        """Milliseconds from one stamp to another, both of which have come."""

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

    def work(self) -> None:
        one = self._torch.ones(MATRIX, MATRIX, dtype=self._torch.float16, device=self.device)
        self._torch.mm(one, one)

    def stamp(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later))

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def never_ends(self) -> None:
        self._torch.cuda._sleep(NEVER_CYCLES)

    def freeze(self) -> None: ...
