"""Recorded machines, and copies of them to break. See machinery/materialise.py for what a machine is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.materialise import materialise


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a recorded machine, to be read only: all tests share it."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = materialise(name, tmp_path_factory.mktemp("machines") / name)
        return made[name]

    return make


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a recorded machine, to change a byte in."""
    return lambda name: materialise(name, tmp_path / name)
