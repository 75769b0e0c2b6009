"""docs/openapi: what the daemons answer over HTTP, as their types have it. The tests named test_fuzz.py ask by it."""

from __future__ import annotations

import importlib.util

from support.fuzz import OPENAPI
from support.paths import REPOSITORY


def test_the_descriptions_are_current() -> None:
    spec = importlib.util.spec_from_file_location("openapi", REPOSITORY / "scripts" / "openapi.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = {path.name: path.read_text(encoding="utf-8") for path in OPENAPI.glob("*.json")}
    assert module.texts() == written, "run .venv/bin/python scripts/openapi.py"
