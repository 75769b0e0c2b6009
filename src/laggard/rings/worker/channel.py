"""The two pipes between a rank and its supervisor: commands come on one, reports go on the other."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import Final

from laggard.rings import messages
from laggard.rings.messages import MAX_PART_BYTES, Command, Put, Report, Value, Want

_CHUNK_BYTES: Final = 1 << 16


class Channel:
    """`commands` and `reports` are descriptors. One thread takes commands and values; any may send."""

    def __init__(self, commands: int, reports: int) -> None:
        self._commands, self._reports = commands, reports
        self._data = bytearray()
        self._kept: deque[Command] = deque()
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        data = messages.line(report)
        with self._lock:
            while data:
                data = data[os.write(self._reports, data) :]

    def next_command(self) -> Command | None:
        """Returns the next command; None: the supervisor is gone. A value that nobody waits for any more is left
        out."""
        while True:
            command = self._kept.popleft() if self._kept else self._read(None)
            if not isinstance(command, Value):
                return command

    def put(self, key: str, value: bytes) -> None:
        """Tells the other ranks of the ring `value`, by the coordinator."""
        parts = [value[at : at + MAX_PART_BYTES] for at in range(0, len(value), MAX_PART_BYTES)] or [b""]
        for number, part in enumerate(parts):
            self.send(Put(key, number, len(parts), part))

    def get(self, key: str, seconds: float) -> bytes:
        """Returns what another rank put. Raises TimeoutError."""
        until = time.monotonic() + seconds
        first = self._part(key, 0, until, seconds)
        return first.value + b"".join(self._part(key, part, until, seconds).value for part in range(1, first.parts))

    def _part(self, key: str, part: int, until: float, seconds: float) -> Value:
        self.send(Want(key, part))
        while True:
            command = self._read(until)
            if command is None:
                raise TimeoutError(f"no other rank told {key} within {seconds:.0f} s")
            if not isinstance(command, Value):
                self._kept.append(command)
            elif (command.key, command.part) == (key, part):
                return command

    def _read(self, until: float | None) -> Command | None:
        """Returns None at `until`, and where the supervisor is gone."""
        while True:
            line, end, rest = self._data.partition(b"\n")
            if end:
                self._data = rest
                return messages.read_command(bytes(line))
            if until is not None and not select.select([self._commands], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            chunk = os.read(self._commands, _CHUNK_BYTES)
            if not chunk:
                return None
            self._data += chunk
