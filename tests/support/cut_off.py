"""A stretch of network that can be cut: what is sent is taken, and nothing comes out of it, as where a network drops
packets. A stand-in: no connection breaks by itself, however long it is cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

_MAX_BYTES: Final = 1 << 16

Address = tuple[str, int] | str
"""HOST and port, or the path of a Unix socket."""


class CutOff:
    """Passes connections to `place` on to `target`, but for the time in which it is cut."""

    def __init__(self, place: Address, target: Address) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._listener = _socket(place)
        self._listener.bind(place)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.mend()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.wait()
        server = _socket(self._target)
        with client, server, contextlib.suppress(OSError):
            server.connect(self._target)
            back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
            back.start()
            self._pass_on(client, server)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_MAX_BYTES):
                self._open.wait()
                sink.sendall(data)
        self._open.wait()
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _socket(place: Address) -> socket.socket:
    found = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    if not isinstance(place, str):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return found
