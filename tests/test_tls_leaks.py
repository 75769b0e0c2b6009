"""Thousands of clients that break off their TLS handshake, in every way, leave nothing in agent and collector."""

from __future__ import annotations

import collections
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil
import pytest
from support.certificates import SECONDS, Daemon, Files, Start, client

from laggard.kit.http_client import get

FIRST, MORE = 800, 2400
OPEN = 40
"""So many are left half open, which is more than an agent has places."""
MAX_GROWTH = 8 << 20
"""Of anonymous memory, for MORE clients: a handshake's state in OpenSSL takes some ten thousand bytes, and 2400 of them
three times this."""
SLACK = 8
"""Descriptors and threads that come and go with the probes' rounds."""
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset

DAEMONS = (("agent",), ("collector", "--target", "127.0.0.1:9"))


class Held(NamedTuple):
    """What a daemon holds. Its children are not counted."""

    descriptors: int
    threads: int
    memory: int

    @classmethod
    def by(cls, process: psutil.Process) -> Held:
        with open(f"/proc/{process.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return cls(process.num_fds(), process.num_threads(), int(fields["RssAnon"].split()[0]) << 10)


def hello() -> bytes:
    """What a client sends first."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def leaves(connection: socket.socket, greeting: bytes) -> None: ...


def breaks_off(connection: socket.socket, greeting: bytes) -> None:
    connection.sendall(greeting[:1])
    _reset(connection)


def breaks_off_after_its_hello(connection: socket.socket, greeting: bytes) -> None:
    connection.sendall(greeting)
    _reset(connection)


def breaks_off_when_it_was_answered(connection: socket.socket, greeting: bytes) -> None:
    connection.sendall(greeting)
    connection.recv(100)
    _reset(connection)


def speaks_no_tls(connection: socket.socket, greeting: bytes) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")


def sends_rubbish(connection: socket.socket, greeting: bytes) -> None:
    connection.sendall(b"\x16\x03\x01\x00\x10" + b"rubbish" * 3)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(100)


WAYS: tuple[Callable[[socket.socket, bytes], None], ...] = (
    leaves,
    breaks_off,
    breaks_off_after_its_hello,
    breaks_off_when_it_was_answered,
    speaks_no_tls,
    sends_rubbish,
)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def break_off(daemon: Daemon, count: int) -> None:
    """So many clients, one after the other, of which every seventh stays half open for a while."""
    greeting = hello()
    half_open: collections.deque[socket.socket] = collections.deque()
    for number in range(count):
        connection = socket.create_connection(("127.0.0.1", daemon.port), SECONDS)
        way = number % (len(WAYS) + 1)
        with contextlib.suppress(ConnectionError):
            if way < len(WAYS):
                WAYS[way](connection, greeting)
            else:
                connection.sendall(greeting[: len(greeting) // 2])
                half_open.append(connection)
                if len(half_open) > OPEN:
                    half_open.popleft().close()
                continue
        connection.close()
    for connection in half_open:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", DAEMONS, ids=("agent", "collector"))
def test_broken_handshakes_leave_neither_descriptors_nor_threads_nor_memory(
    words: tuple[str, ...], files: Files, start: Start
) -> None:
    config = files.config(client_ca_file="ca.pem", client_auth_type="RequireAndVerifyClientCert")
    daemon = start(*words, "--web.config.file", config)
    process, tls = psutil.Process(daemon.process.pid), client(files, "client")
    break_off(daemon, FIRST)
    before = settled(daemon, process, Held(64, 64, 0))
    break_off(daemon, MORE)
    after = settled(
        daemon, process, before._replace(descriptors=before.descriptors + SLACK, threads=before.threads + SLACK)
    )
    assert after.memory - before.memory < MAX_GROWTH, (before, after)
    assert get(f"{daemon.url}/-/healthy", SECONDS, tls).body == b"healthy\n"
    assert "Traceback" not in daemon.said() and daemon.said().count("\n") < 12


def settled(daemon: Daemon, process: psutil.Process, most: Held) -> Held:
    """What the daemon holds once it holds no more connections, and no more descriptors and threads than `most`."""
    deadline = time.monotonic() + SECONDS
    while True:
        held, open_now = Held.by(process), connections(process, daemon.port)
        if not open_now and held.descriptors <= most.descriptors and held.threads <= most.threads:
            return held
        assert time.monotonic() < deadline, (held, most, open_now)
        time.sleep(0.05)


def connections(process: psutil.Process, port: int) -> int:
    """The daemon's sockets of clients, closed ones that it has not let go of included."""
    found = process.net_connections("tcp")
    return sum(each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in found if each.laddr)
