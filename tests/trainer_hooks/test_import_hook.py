"""Hooks that wait for an import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

INNER = """
from laggard.trainer_hooks.pytorch.import_hook import after_import
seen = []
after_import({name!r}, lambda module: seen.append(module.initialize()))
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_that_is_half_imported_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """As deepspeed is where it imports torch, which starts the hooks."""
    name, inner = f"half_imported_{int(fails)}", f"imported_by_half_{int(fails)}"
    (tmp_path / f"{inner}.py").write_text(INNER.format(name=name))
    end = "raise OSError('no')" if fails else "def initialize(): return 'whole'"
    (tmp_path / f"{name}.py").write_text(f"import {inner}\n{end}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if fails:
        with pytest.raises(OSError, match="no"):
            importlib.import_module(name)
    else:
        importlib.import_module(name)
    seen = sys.modules[inner].seen  # type: ignore[attr-defined]
    assert seen == ([] if fails else ["whole"]), "the hook saw a module that was not whole, or none"
