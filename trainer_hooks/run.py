"""`laggard run SCRIPT [ARGS]`: runs the script as `python SCRIPT ARGS` does, with the hooks installed.

Works wherever a launcher starts `python`: `torchrun --no-python laggard run train.py`, `srun laggard run train.py`; and
in front of a launcher: `laggard run torchrun train.py`. The Python processes that are started here are hooked, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from laggard.kit.environment import ENV_ANSWER, ENV_RECORD_DIR
from laggard.kit.errors import UsageError
from laggard.trainer_hooks import child_processes
from laggard.trainer_hooks.attach import hook_process, is_disabled
from laggard.trainer_hooks.main_module import is_runnable, run_module, run_script, show_the_scripts_frames_alone
from laggard.trainer_hooks.record.ending import note_ending

_PYTHON_SUFFIXES: Final = (".py", ".pyc", ".pyw", ".pyz")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "laggard run [--record DIR [--quiet]] (SCRIPT | LAUNCHER | -m MODULE) [ARGS]"
    parser.add_argument("--record", metavar="DIR", help="also write a recording, one file a rank, for `locate --trace`")
    parser.add_argument("--quiet", action="store_true", help="do not print at the end what the recording says")
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module, as `python -m` does"
    )
    parser.add_argument("--launchers-word", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="a Python script, or a launcher such as torchrun")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER).required = False


def main(arguments: argparse.Namespace) -> int:
    """Runs the script in this process, or becomes the launcher. What it raises and prints, and its exit status, are the
    same as without laggard. Raises UsageError where there is no such script."""
    if not arguments.script and not arguments.module:
        raise UsageError("name a script, or -m and a module")
    if arguments.record:
        os.environ[ENV_RECORD_DIR] = str(Path(arguments.record).absolute())
        os.environ.setdefault(ENV_ANSWER, "0" if arguments.quiet else "1")
    hook_child_processes(os.environ)
    program = None if arguments.module else _program(arguments.script)
    if program is not None:
        _become(program, [arguments.script, *arguments.arguments])
    hook_process()
    try:
        if arguments.module:
            run_module(arguments.module[0], [*arguments.launchers_word, *arguments.module[1:]])
        else:
            run_script(arguments.script, [*arguments.launchers_word, *arguments.arguments])
    except UsageError:
        raise
    except BaseException as error:
        note_ending(error)
        _tell_of_missing_torch(error)
        show_the_scripts_frames_alone()
        raise
    return 0


def hook_child_processes(environ: MutableMapping[str, str]) -> None:
    """Has every Python process that is started with `environ` hook itself when it imports torch: the ranks of a
    launcher, and those that a script starts. Does nothing where LAGGARD_OFF is set."""
    folder, others = str(Path(child_processes.__file__).absolute().parent), environ.get("PYTHONPATH", "")
    if not is_disabled() and folder not in others.split(os.pathsep):
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, others)))


def _tell_of_missing_torch(error: BaseException) -> None:
    """`laggard` of another environment than the one that trains is an easy mistake."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        hint = "install laggard in the environment that trains, and put that environment's bin first in PATH"
        print(f"laggard: this laggard's python has no torch: {sys.executable}; {hint}", file=sys.stderr)


def _program(word: str) -> str | None:
    """The path of the program that `word` means where it is not a Python script: a launcher, a shell script."""
    if os.path.isfile(word):
        return None if _is_python(word) else word
    return None if is_runnable(word) else shutil.which(word)


def _is_python(path: str) -> bool:
    """Whether Python can run the file: all can, but a binary and what names another interpreter."""
    with open(path, "rb") as file:
        head = file.read(256).partition(b"\n")[0]
    binary = head.startswith(b"\x7fELF")
    return path.endswith(_PYTHON_SUFFIXES) or not (binary or (head.startswith(b"#!") and b"python" not in head))


def _become(program: str, words: list[str]) -> None:
    """Puts the program in the place of this process. Raises UsageError where the machine does not run it."""
    try:
        os.execv(program, words)
    except OSError as error:
        raise UsageError(f"cannot run {program}: {error.strerror}") from None
