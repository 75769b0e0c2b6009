"""What the hooks' timing is tested on where there is no CUDA: the hooks' own device/cuda.py on a lazy device.

It is GPU 1 of two. GPU 0 stays the current one, as in a script that never calls torch.cuda.set_device(), and nobody has
used it: a context that the hooks make there fails the test (stray_contexts.py).
"""

import threading
from typing import Any

from laggard.trainer_hooks.device.cuda import CudaDevice, CudaMark
from laggard.trainer_hooks.device.gpu import GraphCaptures
from support.lazy_device import LazyDevice
from support.lazy_torch import lazy_torch

INDEX = 1


class LazyCudaDevice(CudaDevice):
    """An api.AsyncDevice. `takes_all`: collectives on tensors of the host run on it, too: those of gloo, which stand in
    for NCCL's. `offenses`: what marks must not suffer."""

    def __init__(self, device: LazyDevice, takes_all: bool = False) -> None:
        # The build whose guards go back at once: there every call that lacks one meets GPU 0. Those of torch 2.8 and
        # newer are for ROCm.
        torch = lazy_torch(LazyDevice(), device, cuda=11)
        self.offenses: list[str] = []
        self._takes_all = takes_all
        self.lazy: Any = torch.lazy_cuda
        self.lazy.put_tensor(INDEX)
        self._home = threading.get_ident()
        super().__init__(torch, INDEX, GraphCaptures())

    @property
    def made(self) -> int:
        """The events that were made."""
        return int(self.lazy.timing_events)

    def record(self) -> CudaMark | None:
        self._check_thread("record")
        return super().record()

    def done(self, mark: CudaMark) -> bool:
        self._check_thread("query")
        return super().done(mark)

    def nanoseconds_between(self, earlier: CudaMark, later: CudaMark) -> int:
        self._check_thread("elapsed_time")
        return super().nanoseconds_between(earlier, later)

    def release(self, mark: CudaMark) -> None:
        if mark in self._free:
            self.offenses.append("released twice")
        super().release(mark)

    def carries(self, tensors: Any, group: Any) -> bool:
        return self._takes_all or super().carries(tensors, group)

    def _check_thread(self, what: str) -> None:
        if threading.get_ident() not in (self._home, self.lazy.autograd):
            self.offenses.append(f"{what} on another thread")

    def check(self) -> None:
        """Fails where a mark or a device suffered."""
        assert (self.offenses, self.lazy.runtime.strays()) == ([], [])
