"""Attaches without a line in the script: hooks torch once it is imported, and whatever creates what is trained."""

from __future__ import annotations

import atexit
import functools
from typing import Any

from laggard.trainer_hooks.attach import attach, expect_training, is_disabled, session
from laggard.trainer_hooks.output.transport_watch import WATCH
from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.wrapping import call_after, suppress_errors

_installed = False


def hook_process() -> None:
    """Hooks this process, which may become a rank: whatever it imports, and its NCCL's log. A second call
    changes nothing, and neither does one where LAGGARD_OFF is set."""
    if not is_disabled() and not WATCH.is_prepared:
        expect_training()
        install_import_hooks()
        WATCH.prepare()
        atexit.register(WATCH.close)


def install_import_hooks() -> None:
    """Hooks torch, FSDP and DeepSpeed as soon as the script imports them. A second call changes nothing, and neither
    does one where LAGGARD_OFF is set."""
    global _installed
    if not is_disabled() and not _installed:
        _installed = True
        after_import("torch", functools.partial(suppress_errors, _hook_torch))
        after_import("torch.distributed.fsdp", functools.partial(suppress_errors, _hook_fsdp))
        after_import("deepspeed", functools.partial(suppress_errors, _hook_deepspeed))


def _hook_torch(torch: Any) -> None:
    session()


def _hook_fsdp(fsdp: Any) -> None:
    """Watches the modules that fully_shard(module) and the older class FullyShardedDataParallel shard."""
    if hasattr(fsdp, "fully_shard"):
        call_after(fsdp, "fully_shard", lambda _, module, *__, **___: session().watch_module(module))
    wrapper = fsdp.FullyShardedDataParallel
    call_after(wrapper, "__init__", lambda _, self, /, *__, **___: session().watch_module(self))


def _hook_deepspeed(deepspeed: Any) -> None:
    """Attaches to the engine that deepspeed.initialize() returns."""
    call_after(deepspeed, "initialize", lambda result, *_, **__: attach(result[0]))
