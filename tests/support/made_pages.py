"""Pages of the docs that a script makes from the code."""

import importlib.util
from types import ModuleType

from support.paths import REPOSITORY


def script(name: str) -> ModuleType:
    """scripts/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expect_current(name: str, page: str) -> str:
    """The text of docs/PAGE, which has to be what scripts/NAME.py makes."""
    written = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    made: str = script(name).page()
    assert made == written, f"run .venv/bin/python scripts/{name}.py > docs/{page}"
    return written
