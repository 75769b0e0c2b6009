"""The callback for Lightning: `Trainer(..., callbacks=[LaggardCallback()])`. Importing this imports Lightning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from laggard.trainer_hooks.attach import attach, install_import_hooks
from laggard.trainer_hooks.culprit import tell_culprit


def _base() -> Any:
    """Lightning's class of callbacks: Lightning takes no others. The package has two names."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]
    return Callback


class LaggardCallback(_base()):  # type: ignore[misc]
    """Records a Trainer's training. Create it before the Trainer creates what it trains (a DDP or FSDP module, a
    DeepSpeed engine), because that is hooked when it is created. The Trainer's loggers are told the job's culprit."""

    def __init__(self) -> None:
        super().__init__()
        install_import_hooks()
        self._tells = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attaches to what the strategy trains: a DDP or FSDP module, or a DeepSpeed engine; else the user's module."""
        attach(trainer.strategy.model or pl_module)
        if trainer.is_global_zero and not self._tells:
            self._tells = tell_culprit(*_tools(trainer.loggers))


def _tools(loggers: Iterable[Any]) -> Iterator[Any]:
    """What tell_culprit() takes of Lightning's loggers: a SummaryWriter, a run of W&B, a run of MLflow."""
    for logger in loggers:
        with contextlib.suppress(Exception):  # a logger's own fault is none of the training's
            tool, run_id = logger.experiment, getattr(logger, "run_id", None)
            yield tool.get_run(run_id) if run_id is not None and hasattr(tool, "get_run") else tool
