"""`attach(engine)` and `attach(model, optimizer)` record this rank from now on. Nothing here may ever stop or change
the training."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from laggard.environment import ENV_OFF
from laggard.trainer_hooks.pytorch.training import hooked_optimizer
from laggard.trainer_hooks.session import Session

log = logging.getLogger("laggard")

_active: Session | None = None


def is_disabled() -> bool:
    """Whether LAGGARD_OFF disables laggard in this process."""
    return os.environ.get(ENV_OFF, "") not in ("", "0")


def attach(*trained: Any) -> None:
    """Records the training of `trained`: a DeepSpeed engine, or a module (DDP, FSDP, any other) and the optimizer whose
    updates end the steps. Without an argument: of whatever torch trains in this process. Does nothing where LAGGARD_OFF
    is set. Never raises."""
    if is_disabled():
        return
    try:
        current = session()
        current.steps.claim_training_thread()
        for each in trained:
            _watch(current, each)
        current.open()
    except Exception as error:  # whatever it is, the training goes on without laggard
        log.warning("laggard: not attached, the training goes on without it: %s: %s", type(error).__name__, error)


def session() -> Session:
    """The session of this process. The first call creates it and hooks torch."""
    import torch  # noqa: F401 - must come first: with auto_attach's import hooks, this import creates the session

    global _active
    if _active is None:
        created = Session()
        created.hook()
        _active = created
    return _active


def _watch(current: Session, each: Any) -> None:
    import torch

    if "deepspeed" in sys.modules and hasattr(each, "global_steps") and hasattr(each, "backward"):
        from laggard.trainer_hooks.engines import deepspeed as deepspeed_engine

        deepspeed_engine.hook(each, current)
    elif isinstance(each, torch.nn.parallel.DistributedDataParallel):
        current.watch_ddp(each)
    elif isinstance(each, torch.nn.Module):
        current.watch_module(each)
    elif hasattr(each, "step"):
        current.steps.boundary.set_leader(current.steps.optimizer_key(hooked_optimizer(each)))
