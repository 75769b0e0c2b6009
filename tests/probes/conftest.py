"""Recorded machines, and copies of them to break."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

MACHINES = Path(__file__).resolve().parents[1] / "machines"


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a recorded machine, to change a byte in."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(MACHINES / name, tmp_path / name))

    return copy
