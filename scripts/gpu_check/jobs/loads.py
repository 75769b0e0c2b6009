"""Where a job works: the GPU of its rank, or in a rehearsal what the tests have in its place."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Protocol


class Loads(Protocol):
    """Where a job's work is done. `device`: the device of its tensors, a torch.device."""

    device: Any

    def stamp(self) -> Any:
        """An event at the end of the current stream, of which the hooks know nothing."""

    def between(self, earlier: Any, later: Any) -> float:
        """Milliseconds from one stamp to another, both of which have come."""

    def synchronize(self) -> None:
        """The host waits for the device, as a user would have it wait."""


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

    def stamp(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later))

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()
