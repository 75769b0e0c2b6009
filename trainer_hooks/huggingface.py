"""The callback for Hugging Face's Trainer: `Trainer(..., callbacks=[LaggardCallback()])`.

Trainer calls its callbacks by name; this one has the names that it needs, and no base class to import.
"""

from __future__ import annotations

from typing import Any

from laggard.trainer_hooks.attach import attach
from laggard.trainer_hooks.auto_attach import hook_early


class LaggardCallback:
    """To be made before Trainer makes what it trains: a DDP or FSDP module, a DeepSpeed engine. It is hooked then."""

    def __init__(self) -> None:
        hook_early()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        """`model` is the user's own."""
        if model is not None:
            attach(model)

    def __getattr__(self, name: str) -> Any:
        """The events that it has no use for."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
