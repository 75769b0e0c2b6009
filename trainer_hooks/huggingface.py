"""The callback for Hugging Face's Trainer: `Trainer(..., callbacks=[LaggardCallback()])`.

Trainer calls its callbacks' methods by name, so this one needs no base class and imports no transformers. Those that
report to W&B and MLflow come before the user's own: at this one's turn their runs are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laggard.trainer_hooks.attach import attach, install_import_hooks
from laggard.trainer_hooks.culprit import running_tools, tell_culprit


class LaggardCallback:
    """Records a Trainer's training. Create it before the Trainer creates what it trains (a DDP or FSDP module, a
    DeepSpeed engine), because that is hooked when it is created. `tell`: further tools that are told the job's culprit,
    as tell_culprit() takes them: a SummaryWriter, which a Trainer shows to nobody."""

    def __init__(self, tell: Sequence[Any] = ()) -> None:
        install_import_hooks()
        self._tell = tuple(tell)
        self._tells = False

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        """Attaches to `model`, the user's own module."""
        if model is not None:
            attach(model)
        if getattr(state, "is_world_process_zero", False) and not self._tells:
            self._tells = tell_culprit(*running_tools(), *self._tell)

    def __getattr__(self, name: str) -> Any:
        """A method that does nothing, for every other event."""
        if name.startswith("on_"):
            return _ignore_event
        raise AttributeError(name)


def _ignore_event(*args: Any, **kwargs: Any) -> None:
    return None
