"""Who makes room at an agent where many connect, and what is remembered of each address."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from support.rows import rows

from laggard.kit import http_server as server_module
from laggard.kit.http_message import BACKLOG, Request, Response, bind
from laggard.kit.http_server import Server
from laggard.kit.shares import HALF_LIFE_SECONDS, Shares, client_of, is_of_own_machine

PLACES = 4
ELSEWHERE = ("127.0.0.1", "127.0.0.2")
"""Stand for other machines' addresses."""


@pytest.fixture
def held() -> threading.Event:
    """Until it is set, no request is answered."""
    return threading.Event()


@pytest.fixture
def server(held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    def is_local(connection: socket.socket, address: str) -> bool:
        return address not in ELSEWHERE and is_of_own_machine(connection, address)

    monkeypatch.setattr(server_module, "is_of_own_machine", is_local)

    def handle(_: Request) -> Response:
        held.wait(120)
        return Response(HTTPStatus.OK, "text/plain", b"here\n")

    def refuse(_: Exception) -> Response:
        return Response(HTTPStatus.BAD_REQUEST, "text/plain", b"no\n")

    listener = bind("127.0.0.1:0")
    running = Server(listener, handle, refuse, max_connections=PLACES)
    running.start()
    yield listener.getsockname()
    held.set()
    running.stop()


def connect(server: tuple[str, int], address: str) -> socket.socket:
    return socket.create_connection(server, 60, (address, 0))


def test_who_connects_without_end_displaces_none_but_their_own(server: tuple[str, int], held: threading.Event) -> None:
    """A user of the node, or another machine, who opens connections without end; and the collector, which asks once."""
    with contextlib.ExitStack() as stack:
        for _ in range(2 * PLACES):
            stack.enter_context(connect(server, "127.0.0.2"))
        collector = stack.enter_context(connect(server, "127.0.0.1"))
        collector.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        last = [stack.enter_context(connect(server, "127.0.0.2")) for _ in range(10 * PLACES)]
        for each in last[:-PLACES]:
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b"", "it made room"
        held.set()
        assert collector.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_a_user_of_the_machine_is_one_client_with_each_address_of_the_loopback_interface(
    server: tuple[str, int], held: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """With each of which the user has connected once, and so less than the collector has."""
    with contextlib.ExitStack() as stack:
        for _ in range(3):  # the collector has asked before
            connect(server, "127.0.0.1").close()
        flood = [stack.enter_context(connect(server, f"127.9.0.{number}")) for number in range(1, 3 * PLACES)]
        for each in flood[:-PLACES]:
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b"", "it made room"
        collector = stack.enter_context(connect(server, "127.0.0.1"))
        collector.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        last = [stack.enter_context(connect(server, f"127.9.1.{number}")) for number in range(1, 3 * PLACES)]
        for each in last[:-PLACES]:
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b"", "it made room"
        held.set()
        assert collector.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert "a connection of 127.0.0.0/8 was closed for a newer one" in caplog.messages


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_who_is_of_this_machine(own: str) -> None:
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    if ":" in own and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((own, 0), family=family))
        stack.enter_context(socket.create_connection(listener.getsockname()[:2], 60))
        accepted = stack.enter_context(listener.accept()[0])
        assert is_of_own_machine(accepted, own), "the address at both ends"
        assert is_of_own_machine(accepted, "127.200.3.4") and is_of_own_machine(accepted, "::ffff:127.200.3.4")
        for other in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", ""):
            assert not is_of_own_machine(accepted, other)
        accepted.close()
        assert not is_of_own_machine(accepted, own), "it is gone"


def test_many_connections_wait_until_they_are_accepted() -> None:
    """Where fewer fit, the kernel drops the first packet of a collector's connection behind a flood of others."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(bind("127.0.0.1:0"))
        waiting = [
            stack.enter_context(socket.create_connection(listener.getsockname(), 0.9)) for _ in range(BACKLOG // 2)
        ]
        listener.settimeout(5.0)
        accepted = [stack.enter_context(listener.accept()[0]) for _ in waiting]
        assert {each.getsockname() for each in waiting} == {each.getpeername() for each in accepted}


def test_half_of_it_is_gone_after_a_while() -> None:
    shares = Shares()
    assert [shares.add("10.0.0.1", 8.0, 100.0), shares.add("10.0.0.1", 0.0, 100.0 + HALF_LIFE_SECONDS)] == [
        0.0,
        8.0 / 2,
    ]
    assert shares.of("10.0.0.1", 100.0 + 20 * HALF_LIFE_SECONDS) == 0.0
    assert shares.of("10.0.0.2", 100.0) == 0.0


def test_of_many_addresses_those_that_took_the_most_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laggard.kit.shares.MAX_ADDRESSES", 8)
    shares = Shares()
    shares.add("10.0.0.9", 5.0, 0.0)
    for number in range(100):
        shares.add(f"10.0.1.{number}", 1.0, 0.0)
    assert shares.of("10.0.0.9", 0.0) == 5.0
    assert sum(shares.of(f"10.0.1.{number}", 0.0) > 0 for number in range(100)) < 8


@rows("agent/clients")
def test_all_addresses_of_one_machine_are_one_client(address: str, client: str) -> None:
    assert client_of(address) == client
