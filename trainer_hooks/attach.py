"""`attach(engine)` and `attach(model, optimizer)` record this rank from now on. Nothing here may ever stop or change
the training."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.util
import logging
import os
import sys
from typing import Any

from laggard.environment import ENV_OFF
from laggard.trainer_hooks.engines.catchers import hook_catchers
from laggard.trainer_hooks.engines.hidden_waits import hook_hiding_calls
from laggard.trainer_hooks.engines.known_loaders import hook_known_loaders
from laggard.trainer_hooks.engines.phased_calls import hook_phased_calls
from laggard.trainer_hooks.output.witness import WITNESS
from laggard.trainer_hooks.pytorch.training import hooked_optimizer
from laggard.trainer_hooks.session import Session
from laggard.trainer_hooks.wrapping import suppress_errors

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
        have_end_told()
        current = session() if trained or _has_torch() else _torchless_session()
        current.steps.claim_training_thread()
        for each in trained:
            _watch(current, each)
        current.open()
    except Exception as error:  # whatever it is, the training goes on without laggard
        log.warning("laggard: not attached, the training goes on without it: %s: %s", type(error).__name__, error)


def expect_training() -> None:
    """Has this process recorded as soon as it trains, also where that is a loop of its own."""
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
        try:
            created.hook()
            hook_phased_calls(created)
            hook_known_loaders(created)
            hook_catchers()
            hook_hiding_calls()
        except Exception as error:
            created.abandon()
            _watch_without_hooks(error)
            raise
        _active = created
    return _active


@functools.cache
def have_end_told() -> None:
    """Makes the process say at its end where it was not seen. What is registered before the outputs' end comes after
    it."""
    atexit.register(_witness_end)


def _witness_end() -> None:
    """The process ends: where it trained and was not seen, it says so in one line."""
    if _active is not None:
        _active.witness_end()
    elif not is_disabled():
        suppress_errors(_witness_end_without_hooks)
        suppress_errors(_witness_end_of_jax)


_failure = ""  # why there are no hooks
_updated = False  # whether an optimizer of torch has stepped, where there are none


def _watch_without_hooks(error: Exception) -> None:
    """The hooks did not get into torch, or not all of them. That the process trains is noticed nevertheless."""
    global _failure
    if not _failure:
        _failure = f"the hooks did not get into torch: {type(error).__name__}: {error}"
        suppress_errors(_hook_updates_alone)


def _hook_updates_alone() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_note_update)


def _note_update(*_: Any) -> None:
    global _updated
    if not _updated:
        _updated = True
        WITNESS.unseen(_failure)


def _witness_end_without_hooks() -> None:
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if _updated or initialized or (torch is not None and not _failure and _has_optimizer(torch)):
        why = _failure or "torch was imported in a way that the hooks did not notice"
        did = "trained" if _updated or not initialized else "initialized torch.distributed"
        WITNESS.end(why, "call laggard.trainer_hooks.attach(model, optimizer), and report this as a defect", did)


def _witness_end_of_jax() -> None:
    """JAX waits for other processes within its compiled steps: only the loop can say where these end."""
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if (getattr(state, "num_processes", None) or 0) > 1:
        what = "put laggard.trainer_hooks.step() around each step of the loop"
        WITNESS.end("no hook sees into JAX", what, "initialized jax.distributed")


def _has_optimizer(torch: Any) -> bool:
    """Whether there is an optimizer, or was one that is not gone yet."""
    kind = getattr(getattr(torch, "optim", None), "Optimizer", None)
    return isinstance(kind, type) and any(issubclass(type(each), kind) for each in gc.get_objects())


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
