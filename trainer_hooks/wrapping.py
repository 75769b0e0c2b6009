"""Hooks at what libraries have: a function or method that gets a call of ours before or after it, and a module that is
looked at each time that it has been executed, whenever that is. Hooks must not import what the script does not.

A module may be looked for and never imported, found by another finder, loaded lazily, or executed by hand from a spec
that was kept. So nothing is put into a spec, a loader or a module. Python's loaders of files share one exec_module(),
and all executions of their modules come to it. What a loader with another exec_module() executes is noticed by the
imports that follow.
"""

from __future__ import annotations

import functools
import importlib.machinery
import logging
import sys
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any, Final

log = logging.getLogger("laggard")

HOOKED: Final = "_laggard_hooked"
"""The attribute by which a function or class is known to be hooked: once is enough."""

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_once(owner: Any, name: str, wrap: Wrap) -> None:
    """Puts wrap(original) in the place of a function or method of `owner`, `function` or `Class.method`, and in the
    packages that took a module's function: torch.save is torch.serialization.save. Does nothing where this version of
    the library has none, or where that was done already: a module that is reloaded keeps some functions."""
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    owners = () if owner is None else getattr(owner, "__mro__", (owner,))
    original = next((vars(each)[last] for each in owners if last in vars(each)), None)  # not a class's bound method
    if not callable(original) or hasattr(original, HOOKED):
        return
    wrapped = functools.update_wrapper(wrap(original), original)
    setattr(wrapped, HOOKED, True)
    setattr(owner, last, wrapped)
    parts = owner.__name__.split(".") if isinstance(owner, ModuleType) else ()
    for count in range(1, len(parts)):
        package = sys.modules.get(".".join(parts[:count]))
        if package is not None and vars(package).get(last) is original:
            setattr(package, last, wrapped)


def call_after(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Has each call of owner.name, a function or a class's method, followed by act(result, arguments...). What act
    raises is logged and goes no further."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            suppress_errors(functools.partial(act, result, *args, **kwargs))
            return result

        return function

    wrap_once(owner, name, wrap)


def suppress_errors(act: Callable[..., None], *args: Any) -> None:
    """Calls act(...); an exception is logged in one line, and the training goes on."""
    try:
        act(*args)
    except Exception as error:
        log.warning("laggard: not hooked, the training goes on without it: %s: %s", type(error).__name__, error)


Act = Callable[[Any], None]

_MAX_FRAMES: Final = 2000  # of the stack, looked at for the execution of a module

_acts: dict[str, list[Act]] = {}
_unseen: set[str] = set()  # names in _acts: not executed yet, as far as is known


def after_import(name: str, act: Act) -> None:
    """Calls act(module) right after each execution of the module `name`, and at once where it is imported already. A
    module whose import goes on is waited for: where torch starts the hooks, what imports torch may be half there. What
    act raises is logged and goes no further."""
    _hook_loaders()
    if _Observer not in sys.meta_path:
        sys.meta_path.insert(0, _Observer)
    module = sys.modules.get(name)
    if name in _acts and name not in _unseen and module is not None:
        suppress_errors(act, module)
    else:
        _unseen.add(name)
    _acts.setdefault(name, []).append(act)
    _look_for(name)


def _executed(name: str, module: Any) -> None:
    _unseen.discard(name)
    for act in tuple(_acts[name]):
        suppress_errors(act, module)


@functools.cache
def _hook_loaders() -> None:
    """Hooks exec_module() of the loaders of source files, of bytecode and of ZIP files: they inherit one. The name that
    our code has for its file is the original's. So Python leaves it out of tracebacks and of the levels of warnings,
    as it does with all of importlib."""
    owner: Any = next(each for each in importlib.machinery.SourceFileLoader.__mro__ if "exec_module" in vars(each))
    original = vars(owner)["exec_module"]

    def exec_module(self: Any, module: Any) -> None:
        name = module.__name__
        if name not in _acts:
            return original(self, module)  # type: ignore[no-any-return]
        was_unseen = name in _unseen
        _unseen.discard(name)
        try:
            original(self, module)
        except BaseException:
            if was_unseen:
                _unseen.add(name)  # it may be tried again
            raise
        _executed(name, module)

    exec_module.__code__ = exec_module.__code__.replace(co_filename=original.__code__.co_filename)
    owner.exec_module = functools.update_wrapper(exec_module, original)


class _Observer:
    """A finder that finds no module. It is asked for most modules that are imported, and so notices what was executed
    unseen."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        for name in tuple(_unseen):
            if name in sys.modules:
                _look_for(name)


def _look_for(name: str) -> None:
    """Acts on the module `name` where it was executed unseen; waits where that goes on."""
    module = sys.modules.get(name)
    if module is None or name not in _unseen or _is_lazy(module):
        return
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        _unseen.discard(name)
        _call_once_initialized(name, spec)
    elif not _is_under_way(module):
        _executed(name, module)


def _is_lazy(module: Any) -> bool:
    """Whether the module is one of importlib.util.LazyLoader's that is not executed yet. To look into it executes
    it."""
    util = sys.modules.get("importlib.util")
    return util is not None and type(module) is getattr(util, "_LazyModule", None)


def _is_under_way(module: Any) -> bool:
    """Whether this thread executes the module, or is about to, without the import system."""
    frame: FrameType | None = sys._getframe()
    names = getattr(module, "__dict__", None)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_globals is names and frame.f_code.co_name == "<module>":
            return True
        if frame.f_code.co_name == "exec_module" and frame.f_locals.get("module") is module:
            return True
        frame = frame.f_back
    return True


def _call_once_initialized(name: str, spec: Any) -> None:
    """importlib sets `_initializing` of the module's spec to False at the end of its import, as the last thing, also
    where the import fails: the module is then gone."""

    class Watched(type(spec)):  # type: ignore[misc]
        def __setattr__(self, attribute: str, value: Any) -> None:
            super().__setattr__(attribute, value)
            if attribute == "_initializing" and not value:
                self.__class__ = original
                module = sys.modules.get(name)
                if module is None:
                    _unseen.add(name)  # it may be tried again
                else:
                    _executed(name, module)

    original = type(spec)
    spec.__class__ = Watched
