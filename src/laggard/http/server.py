"""An HTTP server with a thread for each connection and a limit on connections. At the limit the oldest connection is
closed for the newest: an honest client's takes milliseconds, so that slow clients only displace one another."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from laggard.http.message import HttpError, Request, Response, read_request, send_response

MAX_CONNECTIONS: Final = 32
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

Handler = Callable[[Request], Response]
ErrorHandler = Callable[[HttpError], Response]


class Server:
    """Serves on a thread of its own until it is stopped, at most `max_connections` at once. `handle` may raise
    HttpError; `handle_error` makes the response of one."""

    def __init__(
        self,
        listener: socket.socket,
        handle: Handler,
        handle_error: ErrorHandler,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._handle_error = handle_error
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._threads = threading.BoundedSemaphore(2 * max_connections)
        self._max_connections = max_connections
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._accept_all, name="http", daemon=True).start()

    def stop(self) -> None:
        """Stops accepting, and shuts down the connections that are open."""
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
            if len(self._open) >= self._max_connections:
                self._evict(next(iter(self._open)))
            self._open[connection] = None
        self._threads.acquire()  # evicted connections' threads need a moment to end
        try:
            threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()
        except RuntimeError:  # the system has no thread to give
            self._threads.release()
            self._close(connection)

    def _evict(self, connection: socket.socket) -> None:
        del self._open[connection]
        with contextlib.suppress(OSError):  # its own thread may be closing it
            connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                self._respond(connection)
        finally:
            self._close(connection)
            self._threads.release()

    def _respond(self, connection: socket.socket) -> None:
        with_body = True
        try:
            request = read_request(connection)
            if request is None:
                return
            with_body = request.method != "HEAD"
            response = self._handle(request)
        except HttpError as error:
            response = self._handle_error(error)
        send_response(connection, response, with_body)

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
        connection.close()
