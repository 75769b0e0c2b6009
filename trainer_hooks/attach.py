"""`attach(engine)` and `attach(model, optimizer)` record this rank from now on. Nothing here may ever stop or change
the training."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from typing import Any

from laggard.environment import ENV_OFF
from laggard.trainer_hooks.engines.known_loaders import hook_known_loaders
from laggard.trainer_hooks.engines.phased_calls import hook_phased_calls
from laggard.trainer_hooks.pytorch.training import hooked_optimizer
from laggard.trainer_hooks.session import Session

log = logging.getLogger("laggard")

_active: Session | None = None
_expected = False  # whether this process is to be recorded once it trains: it was started so


def is_disabled() -> bool:
    """Whether LAGGARD_OFF disables laggard in this process."""
    return os.environ.get(ENV_OFF, "") not in ("", "0")


def attach(*trained: Any) -> None:
    """Records the training of `trained`: a DeepSpeed engine, or a module (DDP, FSDP, any other) and the optimizer whose
    updates end the steps. Without an argument: of whatever torch trains in this process. Does nothing where LAGGARD_OFF
    is set. Never raises."""
    if is_disabled():
        return
    expect_training()
    try:
        current = session() if trained or _has_torch() else _torchless_session()
        current.steps.claim_training_thread()
        for each in trained:
            _watch(current, each)
        current.open()
    except Exception as error:  # whatever it is, the training goes on without laggard
        log.warning("laggard: not attached, the training goes on without it: %s: %s", type(error).__name__, error)


def expect_training() -> None:
    """From here on this process is recorded as soon as it trains, also where that is a loop of its own."""
    global _expected
    _expected = True


def current_session() -> Session | None:
    """The session of this process, None where there is none by now. Imports nothing."""
    return _active


def loop_session() -> Session | None:
    """The session for a loop that says itself where its steps end. It needs no torch, and imports none. None where this
    process is not to be recorded."""
    if _active is not None or not _expected or is_disabled():
        return _active
    return session() if "torch" in sys.modules else _torchless_session()


def _has_torch() -> bool:
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


def _torchless_session() -> Session:
    global _active
    if _active is None:
        _active = Session()
    return _active


def session() -> Session:
    """The session of this process. The first call creates it and hooks torch."""
    import torch  # noqa: F401 - must come first: with auto_attach's import hooks, this import creates the session

    global _active
    if _active is None or not _active.is_hooked:
        created = _active or Session()
        created.hook()
        hook_phased_calls(created)
        hook_known_loaders(created)
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
