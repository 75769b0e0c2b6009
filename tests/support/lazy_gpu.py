"""A lazy device in the place of the GPU of gpu-check's jobs (scripts/gpu_check/jobs/loads.py).

Where the hooks are in this process, they time this device.
"""

import os
import sys
from typing import Any

import torch

from support.lazy_device import LazyDevice, Place


class LazyLoads:
    """As jobs/loads.py's Loads."""

    def __init__(self) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device("cpu")
        self.lazy = LazyDevice(clock_offset=rank * 10**12, drift=rank * 2e-5)
        hooked = any(name.startswith("laggard.trainer_hooks.") for name in sys.modules)
        self._marked = _time_by(self.lazy) if hooked else None

    def stamp(self) -> Place:
        return self.lazy.place()

    def between(self, earlier: Place, later: Place) -> float:
        return (later.time - earlier.time) / 1e6

    def synchronize(self) -> None:
        self.lazy.synchronize()
        if self._marked is not None:
            self._marked.check()


def _time_by(lazy: LazyDevice) -> Any:
    """Has the hooks time the device. Returns what they mark it by."""
    from laggard.trainer_hooks.attach import session
    from laggard.trainer_hooks.device.collectives import DeviceCollectives
    from support.lazy_cuda_device import LazyCudaDevice

    recorder, marked = session().recorder, LazyCudaDevice(lazy, takes_all=True)
    recorder.live.device = DeviceCollectives(marked, recorder)
    return marked
