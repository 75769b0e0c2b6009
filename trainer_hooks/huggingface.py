"""The callback for Hugging Face's Trainer: `Trainer(..., callbacks=[LaggardCallback()])`.

Trainer calls its callbacks' methods by name, so this one needs no base class and imports no transformers.
"""

from __future__ import annotations

from typing import Any

from laggard.trainer_hooks.attach import attach
from laggard.trainer_hooks.auto_attach import install_import_hooks


class LaggardCallback:
    """Records a Trainer's training. Create it before the Trainer creates what it trains (a DDP or FSDP module, a
    DeepSpeed engine), because that is hooked when it is created."""

    def __init__(self) -> None:
        install_import_hooks()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        """Attaches to `model`, the user's own module."""
        if model is not None:
            attach(model)

    def __getattr__(self, name: str) -> Any:
        """A method that does nothing, for every other event."""
        if name.startswith("on_"):
            return _ignore_event
        raise AttributeError(name)


def _ignore_event(*args: Any, **kwargs: Any) -> None:
    return None
