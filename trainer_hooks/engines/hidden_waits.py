"""Tells of libraries whose kernels exchange data with other ranks by themselves: the wait for a slow rank is inside of
a kernel, where no hook sees it, and passes for the rank's own work on its GPU.

One line a call that says that the library is in use: many of them are imported wherever they are installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from laggard.rankfile.fact_names import HIDDEN_WAITS
from laggard.trainer_hooks.pytorch.import_hook import after_import
from laggard.trainer_hooks.record.facts import FACTS
from laggard.trainer_hooks.wrapping import wrap_once

HIDING_CALLS: Final[tuple[tuple[str, str, str], ...]] = (
    # module, function or method, the library's name
    ("deep_ep", "Buffer.__init__", "DeepEP"),
    ("deep_ep", "ElasticBuffer.__init__", "DeepEP"),
    ("deep_ep", "HybridEPBuffer.__init__", "DeepEP"),
    ("uccl.ep", "Buffer.__init__", "UCCL"),
    ("pplx_kernels.all_to_all", "AllToAll.__init__", "pplx-kernels"),
    ("nvshmem.core", "init", "NVSHMEM"),
    ("mscclpp", "CommGroup.__init__", "MSCCL++"),
    ("transformer_engine.pytorch.module.base", "initialize_ub", "Transformer Engine's user buffers"),
    ("torch.distributed._symmetric_memory", "rendezvous", "torch's symmetric memory"),
    ("torch.distributed._symmetric_memory", "get_symm_mem_workspace", "torch's symmetric memory"),
)


def hook_hiding_calls() -> None:
    """Has the rank say which of these libraries it uses, wherever their modules are imported."""
    for module, name, library in HIDING_CALLS:
        after_import(module, functools.partial(wrap_once, name=name, wrap=functools.partial(_told, library)))


def _told(library: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        FACTS.set(HIDDEN_WAITS, sorted({*(FACTS.get(HIDDEN_WAITS) or ()), library}))
        return original(*args, **kwargs)

    return told
