"""Stand-ins for the agent that a prolog asks."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS = 60.0
HEAD = b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n"


class StandIn:
    """Stands in for an agent at `path`: `answers` gets the connection, once it has said WAIT. `asked`: the paths of the
    questions."""

    def __init__(self, path: Path, answers: Callable[[socket.socket], None], first: bytes = HEAD + b"WAIT\n") -> None:
        self.asked: list[str] = []
        self._answers, self._first = answers, first
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
            with connection, contextlib.suppress(OSError, IndexError):
                connection.settimeout(SECONDS)
                self.asked.append(connection.recv(4096).decode().split(" ")[1])
                connection.sendall(self._first)
                self._answers(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS)


@contextlib.contextmanager
def agent_that_says(path: Path, text: bytes) -> Iterator[StandIn]:
    """Says `text` to each question, and hangs up."""
    stand_in = StandIn(path, lambda connection: connection.sendall(text))
    try:
        yield stand_in
    finally:
        stand_in.close()
