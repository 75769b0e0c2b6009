"""Another program's output, bounded in time and size: it is started without a shell, and killed, with all that it
started, where it takes too long or prints without end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Final

MAX_OUTPUT_BYTES: Final = 16 << 20


class ProgramFailed(Exception):
    """The program cannot be run, or does not end. The text names it and says why."""


def output_of(command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """Returns what `command` prints, to either stream, and its exit status. Raises ProgramFailed."""
    expired = threading.Event()
    with _start(command, os.environ if environ is None else environ) as process:
        late = threading.Timer(seconds, _give_up, (process, expired))
        late.daemon = True
        late.start()
        try:
            assert process.stdout is not None
            output = process.stdout.read(MAX_OUTPUT_BYTES + 1)
            if len(output) > MAX_OUTPUT_BYTES:
                _kill(process)
            status = process.wait()
        finally:
            late.cancel()
    if len(output) > MAX_OUTPUT_BYTES:
        raise ProgramFailed(f"{command[0]} prints more than {MAX_OUTPUT_BYTES} bytes")
    if expired.is_set():
        raise ProgramFailed(f"{command[0]} did not answer within {seconds:g} s")
    return output, status


def _start(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Raises ProgramFailed."""
    try:
        return subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ProgramFailed(f"{command[0]}: {(error.strerror or str(error)).lower()}") from None


def _give_up(process: subprocess.Popen[bytes], expired: threading.Event) -> None:
    expired.set()
    _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with all that it started, as long as it was not waited for: from then on its number may be
    somebody else's."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
