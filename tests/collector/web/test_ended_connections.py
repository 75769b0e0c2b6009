"""A connection that has ended leaves nothing behind, also where nobody looks for circles of objects. In theirs hung the
buffers of TLS, of some 85 KB each."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from support.certificates import Files, client
from uvicorn.server import ServerState

from laggard.collector.web.acceptor import after_handshake
from laggard.collector.web.connections import BoundedProtocol, bounded
from laggard.kit.tls import ServerTls, ServerTlsSettings

COUNT = 20
SECONDS = 120.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


def leaves(connection: socket.socket) -> None: ...


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def begins_to_ask(connection: socket.socket) -> None:
    connection.sendall(b"GET / HT")


def asks(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def takes_no_answer(connection: socket.socket) -> None:
    connection.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" * 2)
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    body = bytes(8 << 20) if scope["path"] == "/large" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def no_circles_found() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_circles_found")
@pytest.mark.parametrize("way", [leaves, resets, begins_to_ask, asks, takes_no_answer])
@pytest.mark.parametrize("over", ["plain", "tls"])
async def test_nothing_is_left_of_a_connection(
    over: str, way: Callable[[socket.socket], None], files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[weakref.ref[BoundedProtocol]] = []
    kind = bounded(4 * COUNT, 4 * COUNT)

    class Noted(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(weakref.ref(self))

    tls = ServerTls(ServerTlsSettings(str(files.folder / "server.pem"), str(files.folder / "server.key")))
    make = after_handshake(Noted, tls) if over == "tls" else Noted
    config = uvicorn.Config(answer, log_config=None, lifespan="off")
    config.load()
    context = client(files) if over == "tls" else None
    loop, state = asyncio.get_running_loop(), ServerState()
    protocol: Callable[[], asyncio.Protocol] = lambda: make(config=config, server_state=state, app_state={})  # noqa: E731
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    await loop.run_in_executor(None, visit, server.sockets[0].getsockname()[1], way, context)
    deadline = time.monotonic() + SECONDS
    while len(made) < COUNT or any(each() is not None for each in made):
        assert time.monotonic() < deadline, f"{sum(each() is not None for each in made)} of {len(made)} are left"
        await asyncio.sleep(0.05)
    server.close()
    assert not [each for each in caplog.messages if "Exception" in each]


def visit(port: int, way: Callable[[socket.socket], None], context: ssl.SSLContext | None) -> None:
    for _ in range(COUNT):
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
            way(connection)
