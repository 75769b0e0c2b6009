"""Asks laggard's reader (`laggard agent --reader`), a process with the privileges that the one who asks lacks.

A question is one line: `pci_config ADDRESS`, `kernel_log`, `rank_processes`, `clock`, `installed_memory`,
`exit_status PID`, `sockets PID`, `job_variables PID`, `rank_stacks UID FOLDER NAME` or `kernel_side UID PID`. The
answer is one line, `ok LENGTH` with so many bytes behind it, or `no REASON`. No question holds a path.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from laggard.kit.environment import ENV_READER

if TYPE_CHECKING:
    import socket

SOCKET: Final = "/run/laggard/reader.sock"

MAX_QUESTION_BYTES: Final = 128
MAX_ANSWER_BYTES: Final = 16 << 20
ANSWER_SECONDS: Final = 1.5
"""The time for a whole answer. Most probes have 2 s: they can then still say that it is the reader who does not
answer."""

_LINE_BYTES: Final = 512
_QUEUE_SECONDS: Final = 0.002


class NoReader(OSError):
    """There is no answer. `strerror` says why, for the end of a sentence."""


def ask(question: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """Returns what the reader answers. Raises NoReader: there is none, it does not answer this user, or it cannot
    tell."""
    path = environ.get(ENV_READER) or SOCKET
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        os.stat(path)
        import socket  # slow, and most gates, which are root's, have no reader to ask

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(ANSWER_SECONDS)
            _connect(connection, path, deadline)
            connection.sendall(question.encode("ascii") + b"\n")
            return _answer(connection, deadline)
    except NoReader:
        raise
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoReader(errno.ENOENT, f"laggard's reader, which may, does not run ({path})") from None
    except TimeoutError:
        raise NoReader(errno.ETIMEDOUT, f"laggard's reader does not answer within {ANSWER_SECONDS:g} s") from None
    except OSError as error:
        raise NoReader(error.errno or errno.EIO, f"laggard's reader does not answer: {error.strerror}") from None


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    """Raises OSError. While others' connections fill the queue, the kernel refuses at once those that may not block."""
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_QUEUE_SECONDS)


def with_reader(error: OSError, question: str) -> bytes:
    """Returns what the reader answers where this process got `error`. Raises OSError with both reasons."""
    try:
        return ask(question)
    except NoReader as reason:
        raise OSError(error.errno, f"{error.strerror}; {reason.strerror}") from None


def _answer(connection: socket.socket, deadline: float) -> bytes:
    data = bytearray()
    while b"\n" not in data and len(data) < _LINE_BYTES:
        data += _receive(connection, deadline)
    line, _, body = bytes(data).partition(b"\n")
    word, _, rest = line.decode("ascii", "replace").partition(" ")
    if word == "no":
        raise NoReader(errno.EACCES, f"laggard's reader says: {rest}")
    if word != "ok" or not rest.isdecimal() or len(rest) > 9 or int(rest) > MAX_ANSWER_BYTES:
        raise NoReader(errno.EPROTO, "laggard's reader answers something else")
    received = bytearray(body)
    while len(received) < int(rest):
        received += _receive(connection, deadline)
    return bytes(received)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    data = connection.recv(1 << 16)
    if not data:
        raise NoReader(errno.EPROTO, "laggard's reader broke off")
    return data
