"""The hooks that go in before there is anything to attach to: torch's, and in what makes the trained objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from laggard.trainer_hooks.attach import attach, is_off, session
from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.session import harmless

_done = False


def hook_early() -> None:
    """Each hook goes in as soon as its library is imported, whenever that is. A second time changes nothing."""
    global _done
    if not is_off() and not _done:
        _done = True
        after_import("torch", functools.partial(harmless, _hook_torch))
        after_import("torch.distributed.fsdp", functools.partial(harmless, _hook_fsdp))
        after_import("deepspeed", functools.partial(harmless, _hook_deepspeed))


def _hook_torch(torch: Any) -> None:
    session()


def _hook_fsdp(fsdp: Any) -> None:
    """fully_shard(module), and FSDP's own class before it: the outermost module's forward pass is the script's."""
    if hasattr(fsdp, "fully_shard"):
        fsdp.fully_shard = _then(fsdp.fully_shard, lambda result, module, *_, **__: session().watch_module(module))
    initialize = fsdp.FullyShardedDataParallel.__init__
    fsdp.FullyShardedDataParallel.__init__ = _then(initialize, lambda _, self, *__, **___: session().watch_module(self))


def _hook_deepspeed(deepspeed: Any) -> None:
    """deepspeed.initialize() attaches to the engine that it returns."""
    deepspeed.initialize = _then(deepspeed.initialize, lambda result, *_, **__: attach(result[0]))


def _then(original: Callable[..., Any], act: Callable[..., None]) -> Callable[..., Any]:
    """`original`, and after it act(result, arguments...)."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        harmless(functools.partial(act, result, *args, **kwargs))
        return result

    return function
