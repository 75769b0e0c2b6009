"""Hooks that wait for an import."""

import importlib
import json
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.rows import rows

from laggard.trainer_hooks.wrapping import call_after

INNER = """
from laggard.trainer_hooks.wrapping import after_import
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


SUBJECT = "import colorsys\nimport subject.part\nWHOLE = True\ndef initialize(): return 'whole'\n"

PROGRAM = """
import importlib, importlib.machinery, importlib.util, json, os, sys
hooked = sys.argv[1] == "hooked"
seen = []
if hooked:
    from laggard.trainer_hooks.wrapping import after_import
    after_import("subject", lambda module: seen.append([module.__name__, module.initialize()]))

class InFront:  # finds a module before all other finders do, with a loader of its own
    def __init__(self, name, loader):
        self.name, self.loader = name, loader
    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            where = os.path.abspath("subject/__init__.py")
            return importlib.util.spec_from_file_location(
                name, where, loader=self.loader(name, where), submodule_search_locations=[os.path.dirname(where)])

class Own(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        exec(self.get_code(module.__name__), vars(module))

class Derived(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)

class Chained:
    def __init__(self, name, path):
        self.loader = importlib.machinery.SourceFileLoader(name, path)
    def create_module(self, spec): return None
    def exec_module(self, module): self.loader.exec_module(module)

class Legacy:
    def __init__(self, name, path):
        self.path = path
    def load_module(self, name):
        module = sys.modules[name] = type(sys)(name)
        module.__path__ = [os.path.dirname(self.path)]
        exec(open(self.path).read(), vars(module))
        return module

class Lazy(importlib.util.LazyLoader):
    def __init__(self, name, path):
        super().__init__(importlib.machinery.SourceFileLoader(name, path))

def spec_of(): return importlib.util.find_spec("subject")

def execute(spec, listed=True):
    module = importlib.util.module_from_spec(spec)
    if listed:
        sys.modules["subject"] = module
    spec.loader.exec_module(module)
    return module

{way}
if not sys.modules["subject"].WHOLE:
    raise SystemExit("it was not executed")
import wave  # any that nobody imported before
subject = sys.modules["subject"]
spec = subject.__spec__
of_spec = [str(spec).partition("0x")[0], sorted(vars(spec)) if spec else None, str(type(spec))]
about = [*of_spec, type(subject).__name__, sorted(vars(subject))]
loader = vars(spec.loader) if spec and hasattr(spec.loader, "__dict__") else {{}}
print(json.dumps([seen, about + [str(type(getattr(spec, "loader", None))), sorted(loader)]]))
"""


@rows("hooks/imports")
def test_a_module_is_hooked_however_it_is_executed(tmp_path: Path, way: str, code: str, times: int) -> None:
    """And it looks as it does without the hooks."""
    for folder in ("subject", "compiled/subject"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(SUBJECT)
        (tmp_path / folder / "part.py").write_text("")
        (tmp_path / folder / "other.py").write_text("")
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("subject/__init__.py", SUBJECT)
        archive.writestr("subject/part.py", "")
    for source in tuple((tmp_path / "compiled" / "subject").iterdir()):
        py_compile.compile(str(source), str(source.with_suffix(".pyc")))
        source.unlink()
    if way in ("from a ZIP file", "from bytecode"):
        (tmp_path / "subject").rename(tmp_path / "hidden")
    (tmp_path / "program.py").write_text(PROGRAM.format(way=code))
    (seen, about), (_, bare) = (_run(tmp_path, "program.py", hooked) for hooked in ("hooked", "bare"))
    assert seen == [["subject", "whole"]] * times
    assert about == bare


def _run(folder: Path, *words: str) -> list[list[object]]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: list[list[object]] = json.loads(done.stdout)
    return found


FAILS = """
import sys, warnings
if sys.argv[1] == "hooked":
    from laggard.trainer_hooks.wrapping import after_import
    after_import("torch", print)
import warns
import fails
"""


def test_what_fails_and_warns_in_an_import_is_told_as_without_hooks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FAILS)
    (tmp_path / "warns.py").write_text("import warnings; warnings.warn('old', stacklevel=2)")
    (tmp_path / "fails.py").write_text("import deeper")
    (tmp_path / "deeper.py").write_text("raise ValueError('no')")
    told = [
        subprocess.run([sys.executable, "program.py", each], capture_output=True, text=True, cwd=tmp_path).stderr
        for each in ("hooked", "bare")
    ]
    assert told[0] == told[1] and "program.py:6: UserWarning: old" in told[0]


class Module:
    def __init__(self, module: object, device: str = "cpu") -> None:
        """The library's own words."""
        self.arguments = module, device


def test_after_a_constructor_however_its_arguments_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(Module, "__init__", Module.__init__)  # put back at the end
    call_after(Module, "__init__", lambda _, module, /, *__, **___: made.append(module))
    modules = [Module(1), Module(module=1), Module(1, device="cuda")]
    assert made == modules and modules[2].arguments == (1, "cuda")
    assert Module.__init__.__doc__ == "The library's own words."


def test_after_a_function_its_result_comes_first() -> None:
    library, calls = SimpleNamespace(add=lambda a, b: a + b), []
    call_after(library, "add", lambda result, a, b: calls.append((result, a, b)))
    assert library.add(1, b=2) == 3 and calls == [(3, 1, 2)]


def test_what_a_call_of_ours_raises_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    library = SimpleNamespace(initialize=lambda: "engine")
    call_after(library, "initialize", lambda result: 1 // 0)
    assert library.initialize() == "engine"
    assert "the training goes on without it: ZeroDivisionError" in caplog.text


def test_the_librarys_own_error_passes_and_nothing_is_called_after_it() -> None:
    def refuse() -> None:
        raise ConnectionError

    library, calls = SimpleNamespace(close=refuse), []
    call_after(library, "close", lambda _: calls.append("after"))
    with pytest.raises(ConnectionError):
        library.close()
    assert calls == []
