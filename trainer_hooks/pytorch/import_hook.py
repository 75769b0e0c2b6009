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
    """Calls act(module) right after the first import of the module `name`; at once where it is imported already."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


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
