"""Recorded machines, and copies of them to break. See materialise.py for what a machine is made of.

A base machine has up to 4,000 files and 30 machines are made of it: a base is laid out once in a test process, and a
machine that is only read shares the base's files by hard links.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.materialise import materialise


class Shelf:
    """Recorded machines laid out below a folder, each once, to be read only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Path] = {}

    def machine(self, name: str) -> Path:
        if name not in self._made:
            root = self.folder / name
            self._made[name] = materialise(name, root, lambda base, root: _link_tree(self.machine(base), root))
        return self._made[name]

    def copy(self, name: str, folder: Path) -> Path:
        """A copy in the folder, to be changed."""
        subprocess.run(["cp", "-a", self.machine(name), folder / name], check=True)  # a fifth of shutil.copytree's time
        return folder / name


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("machines"))


@pytest.fixture(scope="session")
def machine(shelf: Shelf) -> Callable[[str], Path]:
    """The folder of a recorded machine, to be read only: all tests share it."""
    return shelf.machine


@pytest.fixture
def copy_of(tmp_path: Path, shelf: Shelf) -> Callable[[str], Path]:
    """A copy of a recorded machine, to change a byte in."""
    return lambda name: shelf.copy(name, tmp_path)


def log_xid(machine: Path, at: float) -> None:
    """It is now, the machine is up for a day, and the only Xid in the kernel's log is `at` seconds from now."""
    (machine / "laggard/facts.json").write_text(json.dumps({"time": time.time()}))
    (machine / "proc/uptime").write_text("86400.00 1.00\n")
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
    (machine / "laggard/kmsg").write_text(f"3,0,{round((86400 + at) * 1e6)},-;{line}\n")


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
