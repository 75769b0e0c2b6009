"""A server's side of TLS: what a client may send, what that costs, and that it is a socket to those who speak HTTP."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from support.certificates import Files, client

from laggard.kit import tls_server as module
from laggard.kit.tls_server import MAX_RECEIVED_BYTES, ReceivedTooMuch, TlsConnection

SECONDS = 60.0
HANDSHAKE = b"\x16\x03\x01"  # RFC 8446, 5.1: a record's type and version; then comes its length


class Counted:
    """A socket, and how often something was asked of it."""

    def __init__(self, own: socket.socket) -> None:
        self._own, self.reads = own, 0

    def recv(self, size: int) -> bytes:
        self.reads += 1
        return self._own.recv(size)

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)


class Ends(NamedTuple):
    connection: TlsConnection
    plain: Counted
    client: socket.socket
    """Of the client, which has not begun."""


@pytest.fixture
def ends(files: Files) -> Iterator[Ends]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.folder / "server.pem", files.folder / "server.key")
    with contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(each) for each in socket.socketpair())
        there.settimeout(SECONDS)
        plain = Counted(here)
        connection = TlsConnection(plain, context)  # type: ignore[arg-type]
        connection.settimeout(SECONDS)
        yield Ends(connection, plain, there)


@contextlib.contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield
    thread.join(SECONDS)
    assert not thread.is_alive()


def in_records_of_one_byte(message: bytes) -> bytes:
    return b"".join(HANDSHAKE + b"\x00\x01" + bytes([each]) for each in message)


def hello(size: int) -> bytes:
    """A ClientHello that announces so many bytes."""
    return b"\x01" + (size - 4).to_bytes(3, "big") + b"\x03\x03" + bytes(size - 6)


def test_a_hello_in_records_of_one_byte_is_bounded_in_bytes_and_in_system_calls(ends: Ends) -> None:
    def send() -> None:
        with contextlib.suppress(OSError):
            ends.client.sendall(in_records_of_one_byte(hello(30_000)))

    with meanwhile(send):
        with pytest.raises(ReceivedTooMuch):
            ends.connection.do_handshake()
        ends.plain._own.close()
    assert ends.plain.reads <= MAX_RECEIVED_BYTES // 1024, "a socket of Python's ssl would have asked 20,000 times"


def test_it_speaks_as_a_socket_does(ends: Ends, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WRITE_BYTES", 100_000)
    body = bytes(range(256)) * 4000
    heard = bytearray()

    def ask() -> None:
        with client(files).wrap_socket(ends.client, server_hostname="localhost") as secure:
            for part in (b"GE", b"T / ", b"\r\n\r\n"):
                secure.sendall(part)
            while data := secure.recv(65_536):
                heard.extend(data)

    with meanwhile(ask):
        ends.connection.do_handshake()
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += ends.connection.recv(4096)
        ends.connection.sendall(body)
        with contextlib.suppress(OSError):  # the client says nothing at its end, or is gone already
            ends.connection.unwrap()
        ends.connection.shutdown(socket.SHUT_WR)
        assert ends.connection.recv(4096) == b"", "from there on plain, and it has ended"
    assert asked == b"GET / \r\n\r\n" and bytes(heard) == body


def test_a_client_that_goes_is_an_end_and_one_that_waits_a_timeout(ends: Ends, files: Files) -> None:
    went, heard = threading.Event(), threading.Event()

    def wait() -> None:
        secure = client(files).wrap_socket(ends.client, server_hostname="localhost")
        went.wait(SECONDS)
        secure.shutdown(socket.SHUT_WR)  # without a word of TLS
        heard.wait(SECONDS)
        secure.close()

    with meanwhile(wait):
        ends.connection.do_handshake()
        ends.connection.settimeout(0.01)
        with pytest.raises(TimeoutError):
            ends.connection.recv(4096)
        went.set()
        ends.connection.settimeout(SECONDS)
        assert ends.connection.recv(4096) == b""
        heard.set()


def test_who_sends_rubbish_gets_an_alert(ends: Ends) -> None:
    ends.client.sendall(HANDSHAKE + b"\x00\x10" + bytes(16))
    with pytest.raises(ssl.SSLError):
        ends.connection.do_handshake()
    assert ends.client.recv(100)[:1] == b"\x15"  # an alert
