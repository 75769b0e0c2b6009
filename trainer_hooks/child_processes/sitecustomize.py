"""Hooks a Python process that was started under `laggard run`, as soon as it imports torch.

Python imports the first `sitecustomize` in its path when it starts, whatever it starts for. So this one imports nothing
before torch does, takes its folder out of the path, runs the sitecustomize that it hides, and does nothing more where
laggard is not installed.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder


class _Torch:
    """Finds no module: by what it is asked for it knows when torch is imported."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        try:
            from laggard.trainer_hooks.auto_attach import hook_process

            hook_process()
        except Exception:  # another environment, without laggard
            return None
        from importlib.util import find_spec

        return find_spec(name)  # by the finder that was put in just now


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
    _run_hidden()
