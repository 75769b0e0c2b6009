"""Attaches without a line in the script: hooks torch once it is imported, and whatever creates what is trained."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any, Final

from laggard.trainer_hooks.attach import attach, expect_training, have_end_told, is_disabled, session
from laggard.trainer_hooks.output.transport_watch import WATCH
from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.wrapping import call_after

_HOOKED: Final = "_laggard_hooked"

_installed = False


def hook_process() -> None:
    """Hooks this process, which may become a rank: whatever it imports, and its NCCL's log. A second call
    changes nothing, and neither does one where LAGGARD_OFF is set."""
    if not is_disabled() and not WATCH.is_prepared:
        expect_training()
        install_import_hooks()
        have_end_told()
        WATCH.prepare()
        atexit.register(WATCH.close)


def install_import_hooks() -> None:
    """Hooks torch, FSDP and DeepSpeed as soon as the script imports them. A second call changes nothing, and neither
    does one where LAGGARD_OFF is set."""
    global _installed
    if not is_disabled() and not _installed:
        _installed = True
        after_import("torch", _hook_torch)
        after_import("torch.distributed.fsdp", _hook_fsdp)
        after_import("deepspeed", _hook_deepspeed)


def _hook_torch(torch: Any) -> None:
    session().witness_start()


def _hook_fsdp(fsdp: Any) -> None:
    """Watches the modules that fully_shard(module) and the older class FullyShardedDataParallel shard."""
    _call_after_once(fsdp, "fully_shard", lambda _, module, *__, **___: session().watch_module(module))
    wrapper = getattr(fsdp, "FullyShardedDataParallel", None)
    _call_after_once(wrapper, "__init__", lambda _, self, /, *__, **___: session().watch_module(self))


def _hook_deepspeed(deepspeed: Any) -> None:
    """Attaches to the engine that deepspeed.initialize() returns."""
    _call_after_once(deepspeed, "initialize", lambda result, *_, **__: attach(result[0]))


def _call_after_once(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Calls as call_after() does. A module that is reloaded has some functions anew, and keeps others, with their
    hooks; what a test puts in the place of a module may have neither."""
    if hasattr(owner, name) and not hasattr(getattr(owner, name), _HOOKED):
        call_after(owner, name, act)
        setattr(getattr(owner, name), _HOOKED, True)
