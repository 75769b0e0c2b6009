"""The folders of probes can be read without a guide: a file is a probe, or probes of one kind; what they are built from
lies in a subfolder."""

import ast
import importlib
from pathlib import Path

import pytest
from support.paths import REPOSITORY

from laggard.probes.active_registry import ACTIVE_PROBES
from laggard.probes.probe import Probe
from laggard.probes.registry import PROBES

FOLDERS = ("active", "gpu", "nccl", "nvlink", "pci", "rdma", "system")
ROOMS = [REPOSITORY / "probes" / name for name in FOLDERS]
FILES = [path for room in ROOMS for path in sorted(room.glob("*.py")) if path.name != "__init__.py"]
ALL_PROBES = (*PROBES, *ACTIVE_PROBES)
PARTS = [path for room in ROOMS for path in sorted(room.glob("*/*.py"))]


def module_of(path: Path) -> str:
    return ".".join(("laggard", *path.relative_to(REPOSITORY).with_suffix("").parts))


def entries(path: Path) -> tuple[Probe, ...]:
    module = importlib.import_module(module_of(path))
    return tuple(module.PROBES) if hasattr(module, "PROBES") else (module.PROBE,)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_file_ends_with_its_registered_probes(path: Path) -> None:
    last = ast.parse(path.read_text()).body[-1]
    assert isinstance(last, ast.AnnAssign) and isinstance(last.target, ast.Name)
    assert last.target.id in ("PROBE", "PROBES") and all(probe in ALL_PROBES for probe in entries(path))


def test_each_registered_probe_has_its_file() -> None:
    names = {probe.name for probe in ALL_PROBES}
    assert sorted(probe.name for path in FILES for probe in entries(path)) == sorted(names)
    assert len(names) == len(ALL_PROBES)


def test_what_probes_are_built_from_imports_no_probe() -> None:
    probes = {module_of(path) for path in FILES}
    for path in PARTS:
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
        assert not ({node.module for node in imports} | names) & probes, path
