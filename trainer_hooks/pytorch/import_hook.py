"""Calls a function once a module has been imported, whenever that is: hooks must not import what the script does
not."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def after_import(name: str, act: Callable[[ModuleType], None]) -> None:
    """Calls act(module) right after the first import of the module `name`; at once where it is imported already. A
    module whose import goes on is waited for: where torch starts the hooks, what imports torch may be half there."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None:
        sys.meta_path.insert(0, _Finder(name, act))
    elif getattr(spec, "_initializing", False):
        _call_once_initialized(spec, act)
    else:
        act(module)


def _call_once_initialized(spec: Any, act: Callable[[ModuleType], None]) -> None:
    """importlib sets `_initializing` of the module's spec to False at the end of its import, as the last thing, also
    where the import fails: the module is then gone."""

    class Watched(type(spec)):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and not value:
                self.__class__ = original
                module = sys.modules.get(self.name)
                if module is not None:
                    act(module)

    original = type(spec)
    spec.__class__ = Watched


class _Finder(importlib.abc.MetaPathFinder):
    """Leaves it to the other finders to find the module, and hooks only its loader."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            _call_after_exec(spec.loader, self._act)
        return spec


def _call_after_exec(loader: Any, act: Callable[[ModuleType], None]) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        act(module)

    loader.exec_module = exec_module
