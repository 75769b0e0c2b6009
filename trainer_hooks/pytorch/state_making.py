"""Tells an optimizer's step() that only makes its state from one that updates. torch's distributed checkpoints
(torch.distributed.checkpoint.state_dict) call it with gradients of zero, to have the state into which they load."""

from __future__ import annotations

import sys
from typing import Any


def only_makes_state(optimizer: Any) -> bool:
    """Whether `optimizer`, a torch.optim.Optimizer, has gradients and all of them are zero on this rank. False also
    where that can't be read. A device is waited for, so this is for a process's first update alone."""
    torch = sys.modules["torch"]
    try:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # asking more would start CUDA
            return False  # a wait would break the capture
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        local = [getattr(each, "_local_tensor", each) for each in gradients]  # a DTensor's any() is a collective
        with torch.no_grad():
            return any(each.numel() for each in local) and not any(bool(each.any()) for each in local)
    except Exception:  # a subclass of Tensor, or of Optimizer, can do anything
        return False
