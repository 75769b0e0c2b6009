"""The callback for Lightning: `Trainer(..., callbacks=[LaggardCallback()])`. Importing this imports Lightning."""

from __future__ import annotations

from typing import Any

from laggard.trainer_hooks.attach import attach
from laggard.trainer_hooks.auto_attach import install_import_hooks


def _base() -> Any:
    """Lightning's class of callbacks: Lightning takes no others. The package has two names."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    return Callback


class LaggardCallback(_base()):  # type: ignore[misc]
    """Records a Trainer's training. Create it before the Trainer creates what it trains (a DDP or FSDP module, a
    DeepSpeed engine), because that is hooked when it is created."""

    def __init__(self) -> None:
        super().__init__()
        install_import_hooks()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attaches to what the strategy trains: a DDP or FSDP module, or a DeepSpeed engine; else the user's module."""
        attach(trainer.strategy.model or pl_module)
