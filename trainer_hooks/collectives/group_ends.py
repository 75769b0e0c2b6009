"""Says when a process group is about to end, by whatever name a script calls what ends it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("laggard")


def hook_ends(distributed: Any, act: Callable[[Any], None]) -> None:
    """Has act(group) precede the end of each process group of torch's. What it raises is logged and goes no further.

    Every way to destroy a group or to abort it leads to the group's own shutdown() or abort(); before torch had these
    methods, to one function of distributed_c10d. Those are hooked: the functions that scripts call may have been
    imported before."""
    for name in ("shutdown", "abort"):
        if hasattr(distributed.ProcessGroup, name):
            setattr(distributed.ProcessGroup, name, _before(getattr(distributed.ProcessGroup, name), name, act))
    module = distributed.distributed_c10d
    if hasattr(module, "_shutdown_backend"):
        module._shutdown_backend = _before(module._shutdown_backend, "_shutdown_backend", act)


def _before(original: Callable[..., Any], name: str, act: Callable[[Any], None]) -> Callable[..., Any]:
    def ending(self: Any, *args: Any, **named: Any) -> Any:
        try:
            act(self)
        except Exception as error:
            log.warning("laggard: the end of a process group is not recorded: %s: %s", type(error).__name__, error)
        return original(self, *args, **named)

    # pybind11 takes a Python method of a C++ class's subclass for an override, unless a frame of that name called it
    ending.__code__ = ending.__code__.replace(co_name=name)
    functools.update_wrapper(ending, original, assigned=("__doc__",), updated=())
    ending.__name__ = name
    return ending
