"""laggard-ask, compiled once for all tests, and stand-ins for the agent that it asks."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.paths import REPOSITORY

SOURCE = REPOSITORY / "deploy" / "slurm" / "laggard-ask.c"
SECONDS = 60.0


@pytest.fixture(scope="session")
def laggard_ask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, or a skipped test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = tmp_path_factory.mktemp("laggard-ask") / "laggard-ask"
    words = ("-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE))
    subprocess.run([compiler, *words], check=True)
    return program


class StandIn:
    """Stands in for an agent at `path`: `answers` gets the connection and the question, which it keeps in `asked`."""

    def __init__(self, path: Path, answers: Callable[[socket.socket, bytes], None]) -> None:
        self.asked: list[str] = []
        self._answers = answers
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(512)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(SECONDS)
                question = connection.recv(4096)
                self.asked.append(question.decode())
                self._answers(connection, question)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS)


@contextlib.contextmanager
def agent_that_says(path: Path, text: bytes) -> Iterator[StandIn]:
    """Says `text` to each question, over HTTP to curl, and hangs up."""

    def answers(connection: socket.socket, question: bytes) -> None:
        head = b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" if question.startswith(b"GET ") else b""
        connection.sendall(head + text)

    stand_in = StandIn(path, answers)
    try:
        yield stand_in
    finally:
        stand_in.close()


def as_user(uid: int, path: Path, text: bytes) -> int:
    """Starts a process of the user `uid` that says `text` to each question at `path`, and returns its number. The user
    need not be able to write there: the kernel notes who calls listen(2), and not who has bound."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    ready, listens = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(uid)
            listener.listen(8)
            os.write(listens, b"x")
            while True:
                connection, _ = listener.accept()
                connection.recv(4096)
                connection.sendall(text)
                connection.close()
        finally:
            os._exit(0)
    listener.close()
    os.close(listens)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    return pid
