"""Which of many new connections get further first, and which are closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import h11
import pytest

from laggard.collector.web import acceptor as module
from laggard.collector.web.acceptor import Acceptor
from laggard.collector.web.connections import LengthsOnly
from laggard.kit.shares import is_of_own_machine

MAX_PENDING = 64


class Connections(asyncio.Protocol):
    """Stands in for the collector's connections: whose got further, in order."""

    def __init__(self, came: list[str]) -> None:
        self._came = came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._came.append(transport.get_extra_info("peername")[0])
        transport.abort()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as made:
        yield made


def accepted(listener: socket.socket, addresses: list[str]) -> tuple[list[str], int]:
    """Whose connections got further, in order, and how many were closed, where all are there before the first is
    taken."""
    came: list[str] = []
    refused: list[int] = []

    async def serve() -> None:
        acceptor = Acceptor(
            listener, lambda: Connections(came), lambda count, address: refused.append(count), MAX_PENDING
        )
        acceptor.start()
        while len(came) + sum(refused) < len(addresses):
            await asyncio.sleep(0.01)
        acceptor.stop()
        await asyncio.sleep(0.1)  # the connections end

    with contextlib.ExitStack() as stack:
        for address in addresses:
            stack.enter_context(socket.create_connection(listener.getsockname(), 60, (address, 0)))
        asyncio.run(asyncio.wait_for(serve(), 120))
    return came, sum(refused)


def test_who_connected_the_least_gets_further_first(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAKE_SECONDS", 60.0)
    monkeypatch.setattr(module, "_BURST_SECONDS", -1.0)
    monkeypatch.setattr(module, "is_of_own_machine", lambda *_: False)  # they stand for other machines
    flood = ["127.0.0.2"] * (MAX_PENDING + 60) + ["127.0.0.3"] * 30
    came, refused = accepted(listener, [*flood, "127.0.0.9"])
    assert came.index("127.0.0.9") <= 2, "it came last, and goes before all but the first of the others"
    assert (len(came), refused) == (MAX_PENDING, 91), "so many wait, and no more"
    assert came.count("127.0.0.3") == 30, "those who connected the most go"


def test_a_user_of_the_machine_with_many_addresses_comes_after_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each of which the user has connected once, and so less than a scraper has that asks every second."""
    monkeypatch.setattr(module, "_TAKE_SECONDS", 60.0)
    monkeypatch.setattr(module, "_BURST_SECONDS", -1.0)
    monkeypatch.setattr(module, "MAX_OF_OWN_MACHINE", 8)
    scraper = "127.0.0.9"
    monkeypatch.setattr(
        module, "is_of_own_machine", lambda to, address: address != scraper and is_of_own_machine(to, address)
    )
    flood = [f"127.9.{number // 250}.{1 + number % 250}" for number in range(4 * MAX_PENDING)]
    came, refused = accepted(listener, [scraper] * 3 + flood + [scraper])
    assert (len(came), refused) == (MAX_PENDING, 3 * MAX_PENDING + 4)
    assert came[: 9 + 4].count(scraper) == 4, "none was closed, and nine of the machine's own at most came before"


def test_of_a_burst_none_is_closed(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BURST_SECONDS", 60.0)
    came, refused = accepted(listener, ["127.0.0.2"] * (4 * MAX_PENDING))
    assert (len(came), refused) == (4 * MAX_PENDING, 0)


def test_a_body_in_chunks_is_refused_before_it_is_read() -> None:
    """Each chunk is a step of the parser: 16 KiB of them, a byte each, stopped the collector for 40 ms."""
    connection = LengthsOnly()
    connection.receive_data(b"POST /api/v1/rings/due HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.receive_data(b"1\r\nx\r\n" * 2000)
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
    assert connection.refusal().startswith(b"HTTP/1.1 411 Length Required\r\n")


def test_what_is_no_request_is_told_so() -> None:
    connection = LengthsOnly()
    connection.receive_data(b"\x16\x03\x01\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
    assert connection.refusal().startswith(b"HTTP/1.1 400 Bad Request\r\n")
