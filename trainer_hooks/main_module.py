"""Runs a training script as the process's `__main__`, as `python SCRIPT`, `python FOLDER` and `python -m MODULE` do.

The standard library's runpy is not enough: it takes `__main__` back when the script's last line is done, while its
threads and atexit handlers still run, and pickle its classes by that name; and it leaves `__file__` relative.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from laggard.kit.errors import UsageError


def is_runnable(path: str) -> bool:
    """Whether Python can run what is at `path` as a script."""
    return os.path.isfile(path) or PathFinder.find_spec("__main__", [os.path.join(os.getcwd(), path)]) is not None


def run_script(path: str, arguments: list[str]) -> None:
    """Runs the script at `path`: a source file, a .pyc, or a folder or ZIP file with a `__main__` in it. Raises
    UsageError where there is none, else what the script raises."""
    full = os.path.join(os.getcwd(), path)  # as Python makes it: neither normalised nor resolved
    sys.argv = [path, *arguments]
    spec = PathFinder.find_spec("__main__", [full])
    if spec is not None:
        _put_first_in_path(full)
        return _run(_code_of(spec), spec, spec.origin or full, spec.loader)
    if not os.path.isfile(full):
        what = f"{path} is a directory without a __main__.py" if os.path.isdir(full) else f"no script at {path}"
        raise UsageError(what)
    _put_first_in_path(os.path.dirname(os.path.realpath(full)))
    if full.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", full)
        return _run(compiled.get_code("__main__"), None, full, compiled)
    with io.open_code(full) as file:
        source = file.read()
    _run(compile(source, full, "exec", dont_inherit=True), None, full, SourceFileLoader("__main__", full))


def run_module(name: str, arguments: list[str]) -> None:
    """Runs the module `name`, of a package its `__main__`. Raises UsageError where there is none."""
    sys.argv = ["-m", *arguments]  # what a package's own __init__ finds there
    _put_first_in_path(os.getcwd())
    spec = _find_module(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = _find_module(name)
    if spec is None or spec.origin is None:
        raise UsageError(f"no module named {name}")
    sys.argv[0] = spec.origin
    _run(_code_of(spec), spec, spec.origin, spec.loader)


def _find_module(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):  # it, or a package that it is in
            return None
        raise


def _code_of(spec: ModuleSpec) -> CodeType | None:
    loader: Any = spec.loader
    code: CodeType | None = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    return code


def _put_first_in_path(folder: str) -> None:
    """Puts `folder` where Python has put the folder of laggard's own command; not where it was told to put none."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = folder


def _run(code: CodeType | None, spec: ModuleSpec | None, file: str, loader: Any) -> None:
    if code is None:
        raise UsageError(f"{file} has no Python code to run")
    module = ModuleType("__main__")
    names = {
        "__annotations__": {},
        "__builtins__": builtins,
        "__cached__": None if spec is None else spec.cached,
        "__file__": file,
        "__loader__": loader,
        "__package__": None if spec is None else spec.parent,
        "__spec__": spec,
    }
    had = vars(sys.modules["__main__"])  # not every Python has all of them
    vars(module).update({name: value for name, value in names.items() if name in had or value})
    sys.modules["__main__"] = module  # for good
    exec(code, vars(module))


def show_the_scripts_frames_alone() -> None:
    """Has the traceback of the exception that is on its way out begin where a bare Python's does: in the script."""
    show = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.last_traceback = error.__traceback__ = traceback = _below_this_file(traceback)
        show(kind, error, traceback)

    sys.excepthook = shown


def _below_this_file(traceback: TracebackType | None) -> TracebackType | None:
    """The entries of a traceback after the last one of this file."""
    below, entry = traceback, traceback
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == __file__:
            below = entry.tb_next
        entry = entry.tb_next
    return below
