"""The hooks that go in before there is anything to attach to: torch's, and in what makes the trained objects."""

from __future__ import annotations

import functools
from typing import Any

from laggard.trainer_hooks.attach import attach, is_off, session
from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.wrapping import call_after, suppress_errors

_done = False


def hook_early() -> None:
    """Each hook goes in as soon as its library is imported, whenever that is. A second time changes nothing."""
    global _done
    if not is_off() and not _done:
        _done = True
        after_import("torch", functools.partial(suppress_errors, _hook_torch))
        after_import("torch.distributed.fsdp", functools.partial(suppress_errors, _hook_fsdp))
        after_import("deepspeed", functools.partial(suppress_errors, _hook_deepspeed))


def _hook_torch(torch: Any) -> None:
    session()


def _hook_fsdp(fsdp: Any) -> None:
    """fully_shard(module), and FSDP's own class before it: the outermost module's forward pass is the script's."""
    if hasattr(fsdp, "fully_shard"):
        call_after(fsdp, "fully_shard", lambda _, module, *__, **___: session().watch_module(module))
    made = fsdp.FullyShardedDataParallel
    call_after(made, "__init__", lambda _, self, /, *__, **___: session().watch_module(self))


def _hook_deepspeed(deepspeed: Any) -> None:
    """deepspeed.initialize() attaches to the engine that it returns."""
    call_after(deepspeed, "initialize", lambda result, *_, **__: attach(result[0]))
