"""`attach(engine)`, `attach(model, optimizer)`: from here on the rank is recorded. Nothing in here may ever stop or
change the training."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from laggard.environment import ENV_OFF
from laggard.trainer_hooks.session import Session

log = logging.getLogger("laggard")

_active: Session | None = None


def is_off() -> bool:
    """Whether the user has switched laggard off for this process."""
    return os.environ.get(ENV_OFF, "") not in ("", "0")


def attach(*trained: Any) -> None:
    """Records what is trained: a DeepSpeed engine, or a module (DDP, FSDP, any other) and the optimizer whose updates
    are its steps. Without an argument: whatever torch trains in this process. Does nothing where LAGGARD_OFF is set;
    never raises."""
    if is_off():
        return
    try:
        here = session()
        here.steps.train_here()
        for each in trained:
            _watch(here, each)
        here.open()
    except Exception as error:  # whatever it is, the training goes on without us
        log.warning("laggard: not attached, the training goes on without it: %s: %s", type(error).__name__, error)


def session() -> Session:
    """This process's one session; the first call makes it, and puts the hooks into torch."""
    import torch  # noqa: F401 - before the question: where hooks went in early, its import makes the session

    global _active
    if _active is None:
        made = Session()
        made.hook()
        _active = made
    return _active


def _watch(here: Session, each: Any) -> None:
    import torch

    if "deepspeed" in sys.modules and hasattr(each, "global_steps") and hasattr(each, "backward"):
        from laggard.trainer_hooks.engines import deepspeed as deepspeed_engine

        deepspeed_engine.hook(each, here)
    elif isinstance(each, torch.nn.parallel.DistributedDataParallel):
        here.watch_ddp(each)
    elif isinstance(each, torch.nn.Module):
        here.watch_module(each)
    elif hasattr(each, "step"):
        optimizer = getattr(each, "optimizer", each)  # a wrapper's own, such as Accelerate's
        here.steps.boundary.set_leader(here.steps.key(optimizer))
