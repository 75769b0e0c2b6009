"""An HTTP server with a thread for each connection and a limit on connections. At the limit one is closed for the
newest: the oldest of the address that connected the most of late. An honest client connects every few seconds, and its
connection takes milliseconds, so that slow clients and those that connect without end displace one another. At the
limit on the bytes of responses that are being sent, the oldest is closed.

A client that asks to keep its connection, as a collector does that comes every few seconds, keeps one where the server
does that. While it waits for the next question it has none of the places of those that ask, and what it asks then is
let in as a new connection is."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from laggard.kit.http_message import Connection, HttpError, Request, Response, read_request, send_response
from laggard.kit.shares import OWN_MACHINE, Shares, client_of, is_of_own_machine

if TYPE_CHECKING:
    from laggard.kit.tls_server import ServerTls, TlsConnection


log = logging.getLogger("laggard.http")

MAX_CONNECTIONS: Final = 32
MAX_UNSENT_BYTES: Final = 64 << 20
"""The most bytes of all responses together that clients have yet to take."""

HANDSHAKE_SECONDS: Final = 5.0
KEPT_SECONDS: Final = 60.0
"""The longest time that a kept connection waits for the next question."""

MAX_KEPT_SECONDS: Final = 600.0
"""The time from which on a connection is closed after the next answer: so long may a certificate be over."""

PROBE_PATHS: Final = ("/-/healthy", "/-/ready")
_TLS_HANDSHAKE: Final = b"\x16"  # the first byte of a client's (RFC 8446, 5.1)
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

Handler = Callable[[Request], Response]
ErrorHandler = Callable[[HttpError], Response]


class Server:
    """Serves on a thread of its own until it is stopped, at most `max_connections` at once. `handle` may raise
    HttpError; `handle_error` makes the response of one. `tls`: where given, it serves nothing else. `max_kept`: so many
    connections more may wait for the next question, one of a client."""

    def __init__(
        self,
        listener: socket.socket,
        handle: Handler,
        handle_error: ErrorHandler,
        max_connections: int = MAX_CONNECTIONS,
        tls: ServerTls | None = None,
        max_unsent_bytes: int = MAX_UNSENT_BYTES,
        max_kept: int = 0,
    ) -> None:
        self._listener = listener
        self._handle = handle
        self._handle_error = handle_error
        self._tls = tls
        self._open: dict[socket.socket, str] = {}  # whose each is, oldest first
        self._kept: dict[socket.socket, str] = {}  # those that wait for a question: whose each is, oldest first
        self._max_kept = max_kept
        self._shares = Shares()
        self._unsent: dict[socket.socket, int] = {}  # bytes of the responses that are being sent, oldest first
        self._max_unsent_bytes = max_unsent_bytes
        self._threads = threading.BoundedSemaphore(2 * max_connections + max_kept)
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self.turned_away = 0
        """Connections that were closed for a newer one, or had no thread, so far."""

    @property
    def kept(self) -> int:
        """The connections that wait for the next question now."""
        return len(self._kept)

    def start(self) -> None:
        threading.Thread(target=self._accept_all, name="http", daemon=True).start()

    def stop(self) -> None:
        """Stops accepting, and shuts down the connections that are open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for connection in (*self._open, *self._kept):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept_all(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):  # stopped
                    return
                if error.errno in _OUT_OF_RESOURCES:
                    time.sleep(0.1)
                continue
            own = is_of_own_machine(connection, str(address[0]))
            self._admit(connection, OWN_MACHINE if own else client_of(str(address[0])))

    def _admit(self, connection: socket.socket, client: str) -> None:
        with self._lock:
            if not self._take_place(connection, client):
                connection.close()
                return
        self._threads.acquire()  # evicted connections' threads need a moment to end
        try:
            threading.Thread(target=self._serve, args=(connection,), name="connection", daemon=True).start()
        except RuntimeError:  # the system has no thread to give
            self.turned_away += 1
            self._threads.release()
            self._close(connection)

    def _take_place(self, connection: socket.socket, client: str) -> bool:
        """Counts it among those that are served. False where there is no place for it."""
        self._shares.add(client, 1.0)
        if len(self._open) >= self._max_connections:
            self.turned_away += 1
            if not self._make_place(client):
                log.warning("a connection of %s was refused: all places are taken", client)
                return False
        self._open[connection] = client
        return True

    def _make_place(self, client: str) -> bool:
        """Closes a connection for one of `client`. False where `client` has none, and connected more than all others:
        the new one has to go."""
        now = time.monotonic()
        share = {each: self._shares.of(each, now) for each in {client, *self._open.values()}}
        most = max(share.values())
        oldest = next((each for each, whose in self._open.items() if share[whose] >= most), None)
        if oldest is None:
            return False
        log.warning("a connection of %s was closed for a newer one", self._open[oldest])
        self._evict(oldest)
        return True

    def _make_room(self, connection: socket.socket, size: int) -> None:
        """Closes those that have been sending the longest where the response of `size` bytes is one too many."""
        with self._lock:
            while self._unsent and sum(self._unsent.values()) + size > self._max_unsent_bytes:
                oldest = next(iter(self._unsent))
                del self._unsent[oldest]
                log.warning("a connection was closed to make room: it had not taken its answer")
                self.turned_away += 1
                self._evict(oldest)
            self._unsent[connection] = size

    def _evict(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        with contextlib.suppress(OSError):  # its own thread may be closing it
            connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, plain: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                if not self._tls:
                    self._converse(plain, self._handle)
                elif not _begins_tls(plain):
                    self._respond(plain, _refuse_plain, plain, keeps=False)
                else:
                    secure = self._tls.shake_hands(plain, HANDSHAKE_SECONDS)
                    handle = self._handle if self._tls.allows(secure) else self._refuse_name
                    self._converse(plain, handle, secure)
        finally:
            self._close(plain)
            self._threads.release()

    def _refuse_name(self, request: Request) -> Response:
        if self._tls and self._tls.answers_probes and request.path in PROBE_PATHS:
            return self._handle(request)
        raise HttpError(HTTPStatus.FORBIDDEN, "the client's certificate has none of the names that may ask here")

    def _converse(self, plain: socket.socket, handle: Handler, secure: TlsConnection | None = None) -> None:
        """Answers, and again while the connection is kept. `secure`: what is spoken over `plain`, where that is TLS."""
        began = time.monotonic()
        while True:
            keeps = self._max_kept > 0 and time.monotonic() - began < MAX_KEPT_SECONDS
            if not self._respond(plain, handle, secure or plain, keeps) or not self._is_asked_again(plain):
                return
            if secure is not None and self._tls is not None:
                if not self._tls.is_current(secure):  # who may ask, or what is shown, has changed since the handshake
                    return
                secure.receive_more()

    def _respond(self, plain: socket.socket, handle: Handler, connection: Connection, keeps: bool) -> bool:
        """Returns whether the connection is kept, which it is at most where `keeps`."""
        with_body = True
        try:
            request = read_request(connection)
            if request is None:
                return False
            with_body = request.method != "HEAD"
            keeps = keeps and request.keeps
            response = handle(request._replace(connection=plain))
        except HttpError as error:
            response, keeps = self._handle_error(error), False
        self._make_room(plain, len(response.body) if with_body else 0)
        send_response(connection, response, with_body, keeps)
        return keeps

    def _is_asked_again(self, connection: socket.socket) -> bool:
        """Waits, without a place, until the client begins to ask. False where it does not, or there is no place."""
        with self._lock:
            self._unsent.pop(connection, None)
            client = self._open.pop(connection, None)
            if client is None:  # closed for a newer one
                return False
            self._keep(connection, client)
        connection.settimeout(KEPT_SECONDS)
        try:
            asks = bool(connection.recv(1, socket.MSG_PEEK))
        except OSError:
            asks = False
        with self._lock:
            was_kept = self._kept.pop(connection, None) is not None
            return asks and was_kept and self._take_place(connection, client)

    def _keep(self, connection: socket.socket, client: str) -> None:
        """Closes the one that the client has kept already, or, at the limit, the one that has waited the longest."""
        over = [each for each, whose in self._kept.items() if whose == client]
        if not over and len(self._kept) >= self._max_kept:
            over = [next(iter(self._kept))]
        for each in over:
            del self._kept[each]
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._kept[connection] = client

    def _close(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
            self._kept.pop(connection, None)
            self._unsent.pop(connection, None)
        connection.close()


def _begins_tls(connection: socket.socket) -> bool:
    connection.settimeout(HANDSHAKE_SECONDS)
    return connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE


def _refuse_plain(_: Request) -> Response:
    raise HttpError(HTTPStatus.UPGRADE_REQUIRED, "this port speaks TLS: write https:// before its name")
