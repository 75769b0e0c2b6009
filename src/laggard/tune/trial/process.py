"""One trial's command as a process group with a deadline: killed wholly, its output bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

_MAX_OUTPUT_BYTES: Final = 4 << 20
_GRACE_SECONDS: Final = 5.0
"""The time between asking a group to end and killing it: a launcher takes its remote ranks along."""
_PIECE: Final = 64 << 10


class Ended(NamedTuple):
    """The end of a command. `status` is negative for a signal, None where it was killed at its deadline."""

    status: int | None
    output: str
    """Standard output, at most 4 MiB: the first and the last 2 MiB."""
    errors: str
    seconds: float


class _Output(threading.Thread):
    """Reads a pipe to its end, and keeps its beginning and its end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._pipe, self._head, self._tail = pipe, bytearray(), bytearray()
        self.start()

    def run(self) -> None:
        half = _MAX_OUTPUT_BYTES // 2
        while piece := os.read(self._pipe.fileno(), _PIECE):
            room = max(0, half - len(self._head))
            self._head += piece[:room]
            self._tail += piece[room:]
            del self._tail[:-half]

    def text(self) -> str:
        """Returns what there is. A process that left its group may hold the pipe open: it is not waited for."""
        self.join(_GRACE_SECONDS)
        return (bytes(self._head) + bytes(self._tail)).decode("utf-8", "replace")


def run_command(words: Sequence[str], environ: Mapping[str, str], folder: Path, deadline_seconds: float) -> Ended:
    """Runs the command in its own process group and in `folder`. Raises OSError where it cannot be started. Whatever
    ends this call ends the group, an interrupt as well."""
    began = time.monotonic()
    with subprocess.Popen(
        words,
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout and process.stderr
        outputs = [_Output(process.stdout), _Output(process.stderr)]
        status: int | None = None
        try:
            status = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
        output, errors = (each.text() for each in outputs)
    return Ended(status, output, errors, time.monotonic() - began)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends all of the group, also what its leader left behind: it would slow the next trial down."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        _wait_for_group(process, _GRACE_SECONDS)
    process.wait()


def _wait_for_group(process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        process.poll()  # reaps the leader: a zombie keeps its group alive
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
