"""The files that `laggard recommend` and `tune` are given: their text, and what `laggard diagnose` says of them.

Diagnosing is a process of its own: its formats are many times this command, and none of them is needed here.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from laggard.deepspeed_config import read_json
from laggard.errors import EXIT_USAGE, UsageError
from laggard.processes.own import own_process
from laggard.wire import WireError, decode
from laggard.wire.diagnosis import Diagnosis

STANDARD_INPUT: Final = "-"
_MAX_BYTES: Final = 1 << 22
"""The most of a file that is looked at here: configurations, environments and laggard's own documents are smaller."""


class GivenFiles:
    """The files by path; standard input is read once, wholly, before anything else is."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._given = sys.stdin.buffer.read() if STANDARD_INPUT in paths else b""

    def text(self, path: str) -> str:
        """The text of a file as it lies there; empty if it is no regular file, too large, or no text. Raises UsageError
        if there is none."""
        if path == STANDARD_INPUT:
            data = self._given
        else:
            try:
                data = _read(path)
            except FileNotFoundError:
                raise UsageError(f"no file {path}") from None
            except OSError as error:
                raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
        return data.decode(errors="replace") if len(data) <= _MAX_BYTES else ""

    def document(self, path: str) -> Mapping[str, object]:
        """The JSON object in a file; empty: there is none."""
        tree = read_json(self.text(path))
        return tree if isinstance(tree, dict) else {}

    def diagnosed(self, paths: Sequence[str]) -> Diagnosis:
        """What `laggard diagnose` says of these files. Raises UsageError."""
        command = own_process("laggard", "diagnose", "--format", "json", "--", *paths)
        done = subprocess.run(command, input=self._given, capture_output=True, check=False)
        try:
            return decode(done.stdout, Diagnosis)
        except WireError:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("laggard: ")
            if done.returncode != EXIT_USAGE:
                said = f"laggard diagnose ended with status {done.returncode}: {said}"
            raise UsageError(said) from None


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
    with open(descriptor, "rb") as file:
        return file.read(_MAX_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
