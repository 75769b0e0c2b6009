"""The GPU of its node that this process trains on.

A script need not call torch.cuda.set_device(): with `.to(rank)` and `device_ids=[rank]` GPU 0 stays current in every
rank. So the tensors decide: those of the trained module, of the optimizer and of the collectives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


class Placement:
    """`index`: the CUDA device of the tensors that this process trains on; None as long as none was seen."""

    def __init__(self) -> None:
        self.index: int | None = None

    def saw(self, tensors: Iterable[Any]) -> None:
        """These tensors are trained. The first on a GPU decides, unless others have decided before."""
        if self.index is None:
            self.index = next((each.device.index for each in tensors if each.is_cuda), None)

    def saw_optimizer(self, optimizer: Any) -> None:
        """`optimizer`, which may be any object with a step(), has updated what it trains."""
        if self.index is None:
            groups = getattr(optimizer, "param_groups", ())
            self.saw(tensor for group in groups for tensor in group["params"])

    def find(self) -> int | None:
        """The device as far as it is known by now: before there are tensors, the only one with a CUDA context; of
        several, the current one. None: not known yet. Makes no context (pytorch, c10/cuda/CUDAFunctions.cpp: neither
        cudaGetDevice nor the question for a context makes one)."""
        torch = sys.modules.get("torch")
        if self.index is not None or torch is None or not torch.cuda.is_initialized():
            return self.index
        current: int = torch.cuda.current_device()
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        if has_context is None:
            return current
        used = [index for index in range(torch.cuda.device_count()) if has_context(index)]
        if len(used) == 1:
            return used[0]
        return current if current in used else None


def gpu_uuid(index: int | None) -> str | None:
    """The UUID of a CUDA device. None where the device or its UUID is not known, or CUDA is not initialized: this
    function must not do that."""
    torch = sys.modules.get("torch")
    if index is None or torch is None or not torch.cuda.is_initialized():
        return None
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
