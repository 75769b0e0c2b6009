"""Functions of a library that get a call of ours before or after them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

log = logging.getLogger("laggard")

_WRAPPED: Final = "_laggard_wrapped"


def call_after(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Has each call of owner.name, a function or a class's method, followed by act(result, arguments...). What act
    raises is logged and goes no further."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        suppress_errors(functools.partial(act, result, *args, **kwargs))
        return result

    setattr(owner, name, function)


def wrap_once(module: ModuleType, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts wrap(original) in the place of a function or method of the module, `function` or `Class.method`. Does
    nothing where this version of the module has none, or where that was done already."""
    path, _, last = name.rpartition(".")
    owner: Any = getattr(module, path, None) if path else module
    original = getattr(owner, last, None)
    if not callable(original) or hasattr(original, _WRAPPED):
        return
    wrapped = functools.update_wrapper(wrap(original), original)
    setattr(wrapped, _WRAPPED, True)
    setattr(owner, last, wrapped)


def suppress_errors(act: Callable[..., None], *args: Any) -> None:
    """Calls act(...); an exception is logged in one line, and the training goes on."""
    try:
        act(*args)
    except Exception as error:
        log.warning("laggard: not hooked, the training goes on without it: %s: %s", type(error).__name__, error)
