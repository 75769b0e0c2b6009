"""Accepts connections, a thread each, and never too many: where all places are taken, the oldest connection makes room
for the newest. An honest client's takes milliseconds, so that slow ones are in nobody's way but each other's."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from laggard.http.message import Answer, BadRequest, Request, read_request, send_answer

MOST_CONNECTIONS: Final = 32
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

Handler = Callable[[Request], Answer]
Refusal = Callable[[BadRequest], Answer]


class Server:
    """Serves on a thread of its own until it is stopped, at most `most` clients at once."""

    def __init__(self, listener: socket.socket, handle: Handler, refuse: Refusal, most: int = MOST_CONNECTIONS) -> None:
        self._listener = listener
        self._handle = handle
        self._refuse = refuse
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._threads = threading.BoundedSemaphore(2 * most)
        self._most = most
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._accept_all, name="http", daemon=True).start()

    def stop(self) -> None:
        """Accepts nobody any more; who is being served is hung up on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):  # stopped
                    return
                if error.errno in _OUT_OF_RESOURCES:
                    time.sleep(0.1)
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._open) >= self._most:
                self._evict(next(iter(self._open)))
            self._open[connection] = None
        self._threads.acquire()  # those evicted need a moment to notice
        try:
            threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()
        except RuntimeError:  # no thread to be had
            self._threads.release()
            self._close(connection)

    def _evict(self, connection: socket.socket) -> None:
        del self._open[connection]
        with contextlib.suppress(OSError):  # it may be closing by itself
            connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                self._answer(connection)
        finally:
            self._close(connection)
            self._threads.release()

    def _answer(self, connection: socket.socket) -> None:
        with_body = True
        try:
            request = read_request(connection)
            if request is None:
                return
            with_body = request.method != "HEAD"
            answer = self._handle(request)
        except BadRequest as error:
            answer = self._refuse(error)
        send_answer(connection, answer, with_body)

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
        connection.close()
