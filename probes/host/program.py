"""Runs one program of the site's as root, bounded in time and size: argv without a shell, an environment of a few
variables, no input. It stays in the process group of the probe's own process, with which the runner kills what is left.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import subprocess

MAX_OUTPUT_BYTES: Final = 1 << 16
"""The size of a pipe (pipe(7)). Nobody reads while the program runs: one that prints more waits, until it is killed."""

ENVIRON: Final[Mapping[str, str]] = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}
_KILL_SECONDS: Final = 0.05


class ProgramEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The end of a program: what it printed on standard output, and its exit status (-N: killed by signal N); None: it
    did not end by itself. `problem`: what is wrong with it as a program, for the end of a sentence. `left`: its number,
    where it survives SIGKILL."""

    output: str = ""
    status: int | None = None
    problem: str = ""
    left: int = 0


def run_program(command: Sequence[str], text: str, seconds: float, environ: Mapping[str, str]) -> ProgramEnd:
    """Runs it for `seconds` at most. `text`: its standard input. `environ`: more variables. Raises OSError."""
    if problem := written_by_others(command[0]):
        return ProgramEnd(problem=problem)
    import subprocess  # slow, and only where a site has checks

    source, (pipe, output) = os.memfd_create("input"), os.pipe()
    os.pwrite(source, text.encode(), 0)
    try:
        process = subprocess.Popen(
            command, stdin=source, stdout=output, stderr=subprocess.DEVNULL, cwd="/", env={**ENVIRON, **environ}
        )
    except OSError as error:
        return ProgramEnd(problem=f"cannot be run: {error.strerror}; it has to be executable, with a `#!` if a script")
    os.close(output)
    status, left = _wait(process, seconds), 0
    if status is None:
        process.kill()
        left = process.pid if _wait(process, _KILL_SECONDS) is None else 0
    os.set_blocking(pipe, False)
    data = _content(pipe) or b""
    problem = f"did not end within {seconds:.3g} s and was killed" if status is None else ""
    if len(data) >= MAX_OUTPUT_BYTES:
        problem = f"prints {MAX_OUTPUT_BYTES >> 10} KiB and more: one line is wanted"
    elif not problem and _content(pipe) is None:
        problem = "leaves a process behind that holds its output: start that with `>/dev/null 2>&1`"
    return ProgramEnd(data.decode(errors="replace"), status, problem, left)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    from subprocess import TimeoutExpired

    with contextlib.suppress(TimeoutExpired):
        return process.wait(seconds)
    return None


def _content(pipe: int) -> bytes | None:
    """All that is in the pipe; None where that is nothing, and a process can still write into it."""
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, MAX_OUTPUT_BYTES)
    return None


def written_by_others(path: str) -> str:
    """The reason why root uses no file at `path`; empty where nobody but root can change it: neither the file nor, by a
    folder above it, what stands in its place."""
    try:
        for place in {os.path.abspath(path), os.path.realpath(path)}:
            while place != (above := os.path.dirname(place)):
                about, at, place = os.stat(place), place, above
                is_shared = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and about.st_gid)
                is_sticky = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX  # as /tmp: each keeps his own
                if about.st_uid or (is_shared and not is_sticky):
                    return f"is not used by root, since others may write {at}: chown root and chmod go-w it"
    except OSError as error:
        return f"cannot be used: {error.strerror}; put it there, or take its line out"
    return ""
