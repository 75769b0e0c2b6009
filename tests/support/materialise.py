"""Makes the recorded machine tests/data/machines/NAME into a folder that `--host-root` takes.

A machine's expect.json says which findings are expected on it, and may say what it is made of:

    "base": "NAME"          the machine whose files this one's files replace; a base may have a base
    "absent": ["path", ..]  files and folders of the base that this machine lacks
    "change": {"path": {"gpus/3/minor": 7, ..}, ..}
                            values to replace in JSON files, by their place
    "unlisted": 4           the GPU that NVML lists no more: those after it move up
    "only": ["probe", ..]   run only these probes
    "profile": "NAME"       run the gate with this profile

A machine's files are in its folder, or together in tree.txt (see archive.py), or both: then single files win. To add a
fault, add a folder with an expect.json and the few files that differ. The machine is named after its folder.
"""

import functools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from laggard.probes.nvml.model import NVML_PATH
from support.archive import unpack
from support.paths import MACHINES

_OWN = ("expect.json", "tree.txt")


def names() -> list[str]:
    """The names of all recorded machines."""
    return sorted(path.parent.name for path in MACHINES.glob("*/expect.json"))


@functools.cache
def expectation(name: str) -> dict[str, Any]:
    """The expect.json of the machine `name`, to be read only."""
    return dict(json.loads((MACHINES / name / "expect.json").read_text()))


def materialise(name: str, root: Path, copy_base: Callable[[str, Path], object] | None = None) -> Path:
    """Makes the machine in `root`, which is created, and returns `root`. `copy_base` copies a base machine there; by
    default the base is made from its data. No file of a base is written to: it may be a hard link (see machines.py)."""
    root.mkdir(parents=True, exist_ok=True)
    expected = expectation(name)
    if "base" in expected:
        (copy_base or materialise)(expected["base"], root)
    for path in expected.get("absent", ()):
        _remove(root / path)
    folder = MACHINES / name
    if (folder / "tree.txt").exists():
        unpack((folder / "tree.txt").read_text(), root)
    for path in sorted(folder.iterdir()):
        if path.name not in _OWN:
            _copy_over(path, root / path.name)
    for path, changes in expected.get("change", {}).items():
        change_json(root / path, changes)
    if "unlisted" in expected:
        unlist_gpu(root, expected["unlisted"])
    _write_text(root / "proc/sys/kernel/hostname", name + "\n")
    return root


def change_json(path: Path, changes: Mapping[str, Any]) -> None:
    """Replaces values of the JSON file at `path`, by their place: {"gpus/3/minor": 7}."""
    document = json.loads(path.read_text())
    for path_in_json, value in changes.items():
        *keys, last = (int(key) if key.isdecimal() else key for key in path_in_json.split("/"))
        place = document
        for key in keys:
            place = place[key]
        place[last] = value
    _replace(path, json.dumps(document))


def unlist_gpu(root: Path, index: int) -> None:
    """Takes GPU `index` out of NVML's list, as where the driver could not start it. Minor numbers stay."""
    path = root / NVML_PATH.lstrip("/")
    nvml = json.loads(path.read_text())
    nvml["gpus"] = [{**gpu, "index": place} for place, gpu in enumerate(_without(nvml["gpus"], index))]
    for access in ("p2p_read", "p2p_write"):
        nvml[access] = [_without(row, index) for row in _without(nvml[access], index)]
    _replace(path, json.dumps(nvml))


def _without(values: list[Any], index: int) -> list[Any]:
    return values[:index] + values[index + 1 :]


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text)


def _replace(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)


def _copy_over(source: Path, target: Path) -> None:
    """Copies `source` over what is there. A symlink in the place of a folder is followed, as on the machine."""
    if source.is_dir() and not source.is_symlink():
        target.mkdir(exist_ok=True)
        for path in source.iterdir():
            _copy_over(path, target / path.name)
    else:
        target.unlink(missing_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()  # raises where expect.json names what the base does not have
