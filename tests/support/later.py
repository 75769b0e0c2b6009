"""A module that is imported when it is first used. The suite forks hundreds of times, and a process that has torch in
it takes twenty times as long to fork."""

import importlib
from typing import Any

import pytest

IMPORTED_TORCH = pytest.StashKey[bool]()  # whether collecting the tests did


class Later:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks every global of a test module whether it wraps or mocks something
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
