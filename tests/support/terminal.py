"""A process on a terminal of its own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 200.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """Standard input, output and error of a process, or with `only_error` its standard error alone; the output is then
    a pipe, `process.stdout`."""

    def __init__(
        self,
        command: list[str],
        lines: int,
        columns: int,
        environ: dict[str, str] | None = None,
        only_error: bool = False,
    ) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        unset = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CLICOLOR")}
        output = subprocess.PIPE if only_error else theirs
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if only_error else theirs,
            stdout=output,
            stderr=theirs,
            env={**unset, "TERM": "xterm-256color", **(environ or {})},
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + LONG
        self.seen = ""
        while text not in self.plain():
            assert time.monotonic() < until, f"{text!r} was not drawn: {self.plain()[-2000:]}"
            self.seen += os.read(self._fd, 65536).decode(errors="replace")

    def read_to_the_end(self) -> str:
        """All that was drawn, with its escapes."""
        drawn = b""
        while piece := self._read():
            drawn += piece
        self.process.wait(LONG)
        self.seen = drawn.decode()
        return self.seen

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 65536)
        except OSError:  # EIO: the other side is closed
            return b""

    def plain(self) -> str:
        """What was drawn since the last wait, without escapes."""
        return without_escapes(self.seen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        os.close(self._fd)


def without_escapes(text: str) -> str:
    return _ESCAPES.sub("", text)


@contextmanager
def terminal(
    command: list[str],
    lines: int = 40,
    columns: int = 120,
    environ: dict[str, str] | None = None,
    only_error: bool = False,
) -> Iterator[Terminal]:
    opened = Terminal(command, lines, columns, environ, only_error)
    try:
        yield opened
    finally:
        opened.close()
