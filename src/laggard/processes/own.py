"""The way in which laggard starts a process of its own. Standard library only."""

from __future__ import annotations

import os
import sys
from typing import Final

_START: Final = (
    "import runpy, sys; del sys.path[0]; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def own_process(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs a module of this laggard, as `python -m` does. The child finds laggard also where this
    Python finds it by a launcher alone; and it imports nothing from the working directory,
    which any user may write."""
    flags = [flag for flag, is_set in (("-s", sys.flags.no_user_site), ("-E", sys.flags.ignore_environment)) if is_set]
    return (sys.executable, *flags, "-c", _START, _ROOT, module, *words)
