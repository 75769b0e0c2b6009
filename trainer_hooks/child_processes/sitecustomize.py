"""Hooks a Python process that was started under `laggard run`, as soon as it executes torch.

Python imports the first `sitecustomize` in its path when it starts, whatever it starts for. So this one imports nothing
before torch does, takes its folder out of the path, runs the sitecustomize that it hides, and does nothing more where
laggard is not installed.
"""

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

_waits = [True]  # for torch: hooked once is enough


class _Torch:
    """A finder that finds no module. By what it is asked for it knows that torch is being executed, by whatever
    loader."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith("torch."):  # a part of it: torch itself came before
            _hook()


def _watch_loaders() -> None:
    """Hooks exec_module() of the loaders of files, which all inherit one: of a module that is only looked for it never
    hears. As in laggard's import hook, its frame belongs to importlib's, so that no traceback shows it."""
    owner = next(each for each in SourceFileLoader.__mro__ if "exec_module" in vars(each))
    original = owner.exec_module  # type: ignore[attr-defined]

    def exec_module(self: object, module: object) -> None:
        if getattr(module, "__name__", "") != "torch" or not _waits:
            return original(self, module)  # type: ignore[no-any-return]
        if owner.exec_module is exec_module:  # type: ignore[attr-defined]
            owner.exec_module = original  # type: ignore[attr-defined]
        _hook()
        owner.exec_module(self, module)  # type: ignore[attr-defined]

    exec_module.__code__ = exec_module.__code__.replace(co_filename=original.__code__.co_filename)
    exec_module.__qualname__, exec_module.__module__ = original.__qualname__, original.__module__
    owner.exec_module = exec_module  # type: ignore[attr-defined]


def _hook() -> None:
    """Torch is about to be executed, or is being so."""
    if not _waits:
        return
    _waits.clear()
    try:
        from laggard.trainer_hooks.attach import hook_process

        hook_process()
        if sys.meta_path[1:2] == [_Torch]:  # laggard's has come before it: who goes through the list misses none
            sys.meta_path.remove(_Torch)
    except Exception:  # another environment, without laggard
        return


def _run_hidden() -> None:
    """Runs the sitecustomize that Python would have found."""
    spec = PathFinder.find_spec(__name__)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules[__name__] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _here]
    sys.meta_path.insert(0, _Torch)
    _watch_loaders()
    _run_hidden()
