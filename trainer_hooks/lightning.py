"""The callback for Lightning: `Trainer(..., callbacks=[LaggardCallback()])`. Importing this imports Lightning."""

from __future__ import annotations

from typing import Any

from laggard.trainer_hooks.attach import attach
from laggard.trainer_hooks.auto_attach import hook_early


def _base() -> Any:
    """Lightning takes only its own class's subclasses; it goes by two names."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    return Callback


class LaggardCallback(_base()):  # type: ignore[misc]
    """To be made before Trainer makes what it trains: a DDP or FSDP module, a DeepSpeed engine. It is hooked then."""

    def __init__(self) -> None:
        super().__init__()
        hook_early()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The strategy holds what is trained: the DDP or FSDP module, or the DeepSpeed engine, where there is one."""
        attach(trainer.strategy.model or pl_module)
