"""A user's connections that never come to a request, opened again as soon as they are closed: run as a program, as
nobody where root starts it. Words: port, connections at once, addresses, and `tls` or `plain`.

With TLS a third each says nothing, sends its ClientHello and reads no answer, and ends the handshake and then begins a
request without end. Without, half say nothing, and half begin a request."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
import sys
import time

_NOBODY = 65534
_OPENED_AT_ONCE = 20
_TURN_SECONDS = 0.05
_BEGIN_OF_REQUEST = b"GET /metrics HTTP/1.1\r\nX-A: "


class Flood:
    def __init__(self, port: int, most: int, addresses: int, tls: bool) -> None:
        self._port, self._most, self._addresses = port, most, addresses
        self._context = _context() if tls else None
        self._hello = _hello(self._context) if self._context else b""
        self._selector = selectors.DefaultSelector()
        self._number = 0

    def go_on(self) -> None:
        """Opens what is missing, and lets each that was answered or closed go on, or begin anew."""
        for _ in range(_OPENED_AT_ONCE):
            if len(self._selector.get_map()) < self._most:
                self._open()
        for key, _ in self._selector.select(_TURN_SECONDS):
            assert isinstance(key.fileobj, socket.socket)
            try:
                self._step(key.fileobj)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                continue
            except OSError:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()

    def _open(self) -> None:
        self._number += 1
        plain = socket.socket()
        plain.bind((f"127.66.{self._number % self._addresses // 250}.{1 + self._number % self._addresses % 250}", 0))
        plain.setblocking(False)
        if plain.connect_ex(("127.0.0.1", self._port)) not in (0, errno.EINPROGRESS):
            plain.close()
            return
        kind = self._number % 3
        if self._context and kind == 2:
            plain = self._context.wrap_socket(plain, do_handshake_on_connect=False)
        elif kind:
            with contextlib.suppress(OSError):  # loopback: it is connected at once, or refused
                plain.send(self._hello or _BEGIN_OF_REQUEST)
        self._selector.register(plain, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            self._step(plain)

    def _step(self, connection: socket.socket) -> None:
        if isinstance(connection, ssl.SSLSocket):
            if connection.version() is None or not connection.session:
                connection.do_handshake()
                connection.send(_BEGIN_OF_REQUEST)
            connection.send(b"a")
        if not connection.recv(4096):
            raise ConnectionAbortedError


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _hello(context: ssl.SSLContext) -> bytes:
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def main() -> None:
    port, most, addresses = map(int, sys.argv[1:4])
    flood = Flood(port, most, addresses, sys.argv[4] == "tls")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    print("floods", flush=True)
    while True:
        flood.go_on()
        time.sleep(_TURN_SECONDS / 10)


if __name__ == "__main__":
    main()
