"""Recorded machines, and copies of them to break. See materialise.py for what a machine is made of.

A base machine has up to 4,000 files and 30 machines are made of it: a base is laid out once in a test process, and a
machine that is only read shares the base's files by hard links.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.materialise import materialise


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a recorded machine, to be read only: all tests share it."""
    folder = tmp_path_factory.mktemp("machines")
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = materialise(name, folder / name, lambda base, root: _link_tree(make(base), root))
        return made[name]

    return make


@pytest.fixture
def copy_of(tmp_path: Path, machine: Callable[[str], Path]) -> Callable[[str], Path]:
    """A copy of a recorded machine, to change a byte in."""

    def copy(name: str) -> Path:
        subprocess.run(["cp", "-a", machine(name), tmp_path / name], check=True)  # a fifth of shutil.copytree's time
        return tmp_path / name

    return copy


def _link_tree(source: Path, target: Path) -> None:
    """Lays out `source` at `target`, with hard links for its files. `target` exists and is empty."""
    with os.scandir(source) as entries:
        for entry in entries:
            place = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                place.mkdir()
                _link_tree(Path(entry.path), place)
            else:
                os.link(entry.path, place, follow_symlinks=False)
