"""Recorded machines: tests/data/machines/NAME, made into a folder that `--host-root` takes.

expect.json of a machine says what is to be found on it, and may say what it is made of:

    "base": "NAME"          that machine, with the files of this one over it; a base may have a base
    "absent": ["path", ..]  files and folders of the base that this machine lacks
    "change": {"path": {"gpus/3/minor": 7, ..}, ..}
                            values in JSON files, by the way to them
    "only": ["probe", ..]   run these probes alone
    "profile": "NAME"       run the gate with this profile

A machine's files stand in its folder as they are, or together in tree.txt (see archive.py), or both: single files
win. Adding a fault is a folder with an expect.json and the few files that differ. The machine's name is the folder's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.archive import unpack
from support.paths import MACHINES

_OWN = ("expect.json", "tree.txt")


def names() -> list[str]:
    return sorted(path.parent.name for path in MACHINES.glob("*/expect.json"))


def expectation(name: str) -> dict[str, Any]:
    return dict(json.loads((MACHINES / name / "expect.json").read_text()))


def materialise(name: str, root: Path, lay_base: Callable[[str, Path], object] | None = None) -> Path:
    """Makes the machine in `root`, which is created, and returns `root`. `lay_base` puts a base machine there; without
    it the base is made anew. No file that a base has is written to: it may be a hard link (see machines.py)."""
    root.mkdir(parents=True, exist_ok=True)
    expected = expectation(name)
    if "base" in expected:
        (lay_base or materialise)(expected["base"], root)
    for path in expected.get("absent", ()):
        _remove(root / path)
    folder = MACHINES / name
    if (folder / "tree.txt").exists():
        unpack((folder / "tree.txt").read_text(), root)
    for path in sorted(folder.iterdir()):
        if path.name not in _OWN:
            _lay(path, root / path.name)
    for path, changes in expected.get("change", {}).items():
        _change(root / path, changes)
    _lay_text(root / "proc/sys/kernel/hostname", name + "\n")
    return root


def _change(path: Path, changes: dict[str, Any]) -> None:
    document = json.loads(path.read_text())
    for way, value in changes.items():
        *steps, last = (int(step) if step.isdecimal() else step for step in way.split("/"))
        place = document
        for step in steps:
            place = place[step]
        place[last] = value
    _replace(path, json.dumps(document))


def _lay_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)


def _lay(source: Path, target: Path) -> None:
    """Copies over what is there. A symlink in the way of a folder is followed, as it would be on the machine."""
    if source.is_dir() and not source.is_symlink():
        target.mkdir(exist_ok=True)
        for path in source.iterdir():
            _lay(path, target / path.name)
    else:
        target.unlink(missing_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()  # what was not there is a mistake in expect.json
