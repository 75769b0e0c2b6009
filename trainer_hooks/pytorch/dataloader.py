"""Hooks torch's DataLoader, for the time that the training thread waits for its next batch."""

from __future__ import annotations

import functools
from threading import get_ident
from typing import Any

from laggard.trainer_hooks.pytorch.forward import TorchForward
from laggard.trainer_hooks.record.recorder import EVALUATION, INPUT


def hook(forward: TorchForward) -> None:
    """Records next() of every DataLoader iterator of this process as input, or as evaluation while the model is in that
    mode; a second call changes nothing."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__
    if getattr(original, "_laggard_hooked", False):
        return
    recorder, steps = forward.recorder, forward.steps

    @functools.wraps(original)
    def recorded(iterator: Any) -> Any:
        if get_ident() != steps.thread:  # one that reads ahead: the training does not wait for it here
            return original(iterator)
        recorder.enter(EVALUATION if forward.evaluated is not None and forward.evaluates() else INPUT)
        try:
            return original(iterator)
        finally:
            recorder.leave()

    recorded._laggard_hooked = True  # type: ignore[attr-defined]
    _BaseDataLoaderIter.__next__ = recorded  # type: ignore[method-assign,assignment]
