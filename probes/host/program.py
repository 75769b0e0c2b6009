"""Runs one program of the site's as root, bounded in time and size: argv without a shell, an environment of three
variables, no input. It stays in the process group of the probe's own process, with which the runner kills what is left.
"""

from __future__ import annotations

import os
import select
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

MAX_OUTPUT_BYTES: Final = 1 << 18
"""The first line counts; NHC prints some hundred bytes for each line of its configuration."""

ENVIRON: Final[Mapping[str, str]] = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}
_LOOK_SECONDS: Final = 0.02
"""The time between two looks whether the program has ended, while it prints nothing."""


class ProgramEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The end of a program: what it printed on standard output, and its exit status (-N: killed by signal N); None: it
    did not end by itself. `problem`: what is wrong with it as a program, for the end of a sentence. `left`: its number,
    where it survives SIGKILL."""

    output: str = ""
    status: int | None = None
    problem: str = ""
    left: int = 0


def run_program(command: Sequence[str], text: str, seconds: float, environ: Mapping[str, str]) -> ProgramEnd:
    """Runs it for `seconds` at most. `text`: its standard input; empty: none. `environ`: more variables."""
    if problem := written_by_others(command[0]):
        return ProgramEnd(problem=problem)
    deadline = time.monotonic() + seconds
    source = os.memfd_create("input") if text else os.open(os.devnull, os.O_RDONLY)
    try:
        if text:
            os.pwrite(source, text.encode(), 0)
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**ENVIRON, **environ},
            cwd="/",
        )
    except OSError as error:
        return ProgramEnd(problem=f"cannot be run: {error.strerror}; it has to be executable, with a `#!` if a script")
    finally:
        os.close(source)
    output, problem = _follow(process, deadline)
    status = process.poll()
    if status is None:
        process.kill()
        problem = problem or f"did not end within {seconds:g} s and was killed"
    return ProgramEnd(output.decode(errors="replace"), status, problem, 0 if _is_gone(process) else process.pid)


def _follow(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, str]:
    """What it prints until it ends, or until `deadline` (monotonic seconds); and what is wrong with that."""
    assert process.stdout is not None
    pipe, data, is_open = process.stdout.fileno(), bytearray(), True
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None  # first: what it printed before that is in the pipe
        if is_open and poller.poll(0 if has_ended else _LOOK_SECONDS * 1000):
            part = os.read(pipe, 1 << 16)
            data += part
            is_open = bool(part)
            if len(data) > MAX_OUTPUT_BYTES:
                return bytes(data), f"prints more than {MAX_OUTPUT_BYTES} bytes: one line is wanted"
        elif has_ended:
            held = "ended, and left a process behind that holds its output: start that with `>/dev/null 2>&1`"
            return bytes(data), held if is_open else ""
        elif not is_open:
            time.sleep(_LOOK_SECONDS)
    return bytes(data), ""


def _is_gone(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def written_by_others(path: str) -> str:
    """The reason why the file at `path` is not used by a process of root's; empty where nobody but root can change it:
    neither the file nor, by a folder above it, what stands in its place."""
    try:
        for place in _on_the_way(path):
            about = os.stat(place)
            is_shared = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and about.st_gid)
            is_sticky = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX  # as /tmp: each keeps his own
            if about.st_uid or (is_shared and not is_sticky):
                return f"is not used by root, since others may write {place}: chown root and chmod go-w {place}"
    except OSError as error:
        return f"cannot be used: {error.strerror}; put it there, or take its line out"
    return ""


def _on_the_way(path: str) -> Iterator[str]:
    for place in {os.path.abspath(path), os.path.realpath(path)}:
        while place != "/":
            yield place
            place = os.path.dirname(place)
    yield "/"
