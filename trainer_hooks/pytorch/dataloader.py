"""Hooks torch's DataLoader, for the time that the training thread waits for its next batch."""

from __future__ import annotations

import functools
from typing import Any

from laggard.trainer_hooks.record.recorder import INPUT, Recorder


def hook(recorder: Recorder) -> None:
    """Records next() of every DataLoader iterator of this process as input; a second call changes nothing."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__
    if getattr(original, "_laggard_hooked", False):
        return

    @functools.wraps(original)
    def recorded(iterator: Any) -> Any:
        recorder.enter(INPUT)
        try:
            return original(iterator)
        finally:
            recorder.leave()

    recorded._laggard_hooked = True  # type: ignore[attr-defined]
    _BaseDataLoaderIter.__next__ = recorded  # type: ignore[method-assign,assignment]
