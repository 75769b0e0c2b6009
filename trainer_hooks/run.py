"""`laggard run SCRIPT [ARGS]`: runs the script as `python SCRIPT ARGS` does, with the hooks installed.

Works wherever a launcher starts `python`: `torchrun --no-python laggard run train.py`, `srun laggard run train.py`.
"""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import sys
from pathlib import Path

from laggard.environment import ENV_RECORD_DIR
from laggard.errors import UsageError
from laggard.trainer_hooks.attach import is_disabled
from laggard.trainer_hooks.auto_attach import install_import_hooks
from laggard.trainer_hooks.output.transport_watch import WATCH


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", metavar="DIR", help="also write a recording, one file a rank, for `locate --trace`")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER).required = False


def main(arguments: argparse.Namespace) -> int:
    """Runs the script in this process. What it raises and prints, and its exit status, are the same as without laggard.
    Raises UsageError where there is no such script."""
    if not Path(arguments.script).is_file():
        raise UsageError(f"no script at {arguments.script}")
    if arguments.record:
        os.environ[ENV_RECORD_DIR] = str(Path(arguments.record).absolute())
    if not is_disabled():
        install_import_hooks()
        WATCH.prepare()
        atexit.register(WATCH.close)
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path[0] = str(Path(arguments.script).parent.absolute())  # as `python SCRIPT` has it
    runpy.run_path(arguments.script, run_name="__main__")
    return 0
