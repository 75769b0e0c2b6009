"""Connections that are kept, and answers that nobody takes: bounded, in order, and given back."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

import pytest
from support.waiting import wait_for

from laggard.kit import http_server as module
from laggard.kit import shares
from laggard.kit.http_message import HttpError, Request, Response, bind
from laggard.kit.http_server import Server

PLACES, KEPT = 2, 2
QUESTION = b"GET / HTTP/1.1\r\nHost: n1\r\nConnection: %s\r\n\r\n"


class Running(NamedTuple):
    server: Server
    address: tuple[str, int]
    go_on: threading.Event
    """Until it is set, /wait is not answered."""
    waiting: threading.Semaphore
    """Released by each that waits."""


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(module, "is_of_own_machine", lambda *_: False)  # each address stands for a machine
    monkeypatch.setattr(shares, "HALF_LIFE_SECONDS", float("inf"))  # however long a busy machine takes
    go_on, waiting = threading.Event(), threading.Semaphore(0)

    def handle(request: Request) -> Response:
        if request.path == "/wait":
            waiting.release()
            go_on.wait(120)
        return Response(HTTPStatus.OK, "text/plain", b"here")

    def refuse(error: HttpError) -> Response:
        return Response(error.status, "text/plain", b"no")

    listener = bind("127.0.0.1:0")
    server = Server(listener, handle, refuse, max_connections=PLACES, max_kept=KEPT)
    server.start()
    yield Running(server, listener.getsockname(), go_on, waiting)
    go_on.set()
    server.stop()


class Client:
    """One connection, from an address of the loopback interface."""

    def __init__(self, running: Running, number: int) -> None:
        self._socket = socket.create_connection(running.address, 60, (f"127.0.1.{number}", 0))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> bytes:
        data = b""
        while not data.endswith((b"here", b"no")):
            more = self._socket.recv(4096)
            if not more:
                break
            data += more
        return data

    def ask(self, how: bytes = b"keep-alive") -> bytes:
        self.send(QUESTION % how)
        return self.answer()

    def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return self._socket.recv(1) == b""
        return True


def until_kept(running: Running, count: int) -> None:
    """A moment after it has answered, a connection's place is free."""
    wait_for(lambda: running.server.kept == count, lambda: f"{running.server.kept} are kept")


def test_it_is_kept_for_who_says_so(running: Running) -> None:
    with Client(running, 1) as asks:
        for _ in range(3):
            answer = asks.ask()
            assert b"\r\nConnection: keep-alive\r\n" in answer and answer.endswith(b"here")
        assert b"\r\nConnection: close\r\n" in asks.ask(b"close") and asks.is_closed()
    with Client(running, 1) as says_nothing:
        says_nothing.send(b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n")
        assert b"\r\nConnection: close\r\n" in says_nothing.answer() and says_nothing.is_closed()


@pytest.mark.parametrize(
    "question",
    [
        QUESTION % b"keep-alive" + b"GET / HTTP/1.1\r\n",
        QUESTION % b"keep-alive" * 2,
        (QUESTION % b"keep-alive").replace(b"1.1", b"1.0"),
        (QUESTION % b"keep-alive").replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\nabc"),
        (QUESTION % b"keep-alive").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
        QUESTION % b"keep-alive, close",
        b"not a question\r\n\r\n",
    ],
)
def test_what_is_not_one_whole_question_alone_is_the_last(running: Running, question: bytes) -> None:
    with Client(running, 1) as asks:
        asks.send(question)
        assert b"\r\nConnection: close\r\n" in asks.answer() and asks.is_closed()


def test_who_keeps_takes_no_place_of_others(running: Running) -> None:
    """All places are taken by others: they all are answered, and who kept asks again as somebody who comes."""
    with contextlib.ExitStack() as stack:
        keeps = [stack.enter_context(Client(running, number)) for number in (1, 2)]
        assert all(each.ask().endswith(b"here") for each in keeps)
        until_kept(running, 2)
        others = [stack.enter_context(Client(running, 3)) for _ in range(PLACES)]
        for each in others:
            each.send((QUESTION % b"close").replace(b"GET /", b"GET /wait"))
            assert running.waiting.acquire(timeout=120)
        assert running.server.turned_away == 0
        assert keeps[0].ask().endswith(b"here"), "it made its place, as a new connection does"
        assert running.server.turned_away == 1
        running.go_on.set()
        assert others[1].answer().endswith(b"here")


def test_each_client_keeps_one_and_all_together_so_many(running: Running) -> None:
    with contextlib.ExitStack() as stack:

        def keeps(number: int, kept: int) -> Client:
            client = stack.enter_context(Client(running, number))
            assert client.ask().endswith(b"here")
            until_kept(running, kept)
            return client

        first = keeps(1, 1)
        again = keeps(1, 1)
        assert first.is_closed(), "its client has kept another"
        second = keeps(2, 2)
        assert again.ask().endswith(b"here")
        until_kept(running, 2)
        third = keeps(3, 2)
        assert second.is_closed(), "it had waited the longest"
        assert again.ask().endswith(b"here") and third.ask().endswith(b"here")


def test_what_waits_too_long_or_is_too_old_is_closed(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.05)
    with Client(running, 1) as asks:
        assert b"keep-alive" in asks.ask() and asks.is_closed()
    monkeypatch.setattr(module, "MAX_KEPT_SECONDS", 0.0)
    with Client(running, 1) as asks:
        assert b"\r\nConnection: close\r\n" in asks.ask() and asks.is_closed()


def test_a_server_that_stops_closes_them(running: Running) -> None:
    with Client(running, 1) as asks:
        assert asks.ask().endswith(b"here")
        running.server.stop()
        assert asks.is_closed()


MB = 1 << 20
BODY = bytes(8 * MB)


def response(*_: object) -> Response:
    return Response(HTTPStatus.OK, "text/plain", BODY)


def ask(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    connection.recv(16)  # it has begun to answer
    return connection


def take(connection: socket.socket) -> int:
    with connection:
        count = 16
        try:
            while data := connection.recv(MB):
                count += len(data)
        except ConnectionResetError:
            pass
        return count


def test_the_oldest_of_those_that_take_no_answer_make_room() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener, response, response, max_unsent_bytes=20 * MB)
        server.start()
        port = listener.getsockname()[1]
        slow = [ask(port) for _ in range(5)]
        taken = [take(connection) for connection in (ask(port), *slow)]
        assert taken[0] > len(BODY)
        assert [count > len(BODY) for count in taken[1:]] == [False, False, False, False, True]
        assert server.turned_away == 4
        server.stop()


MANY = """
import threading, msgspec
from laggard.kit.daemon import give_memory_back
give_memory_back()
rows = [[number, 1e9 + number, 1.5e9 + number, [.1, .2, .3, .4, .5], .25] for number in range(60_000)]
one_at_a_time, all_hold = threading.Lock(), threading.Barrier(24)
def answer():
    for _ in range(3):
        with one_at_a_time:
            body = msgspec.json.encode(rows)
            kept = [bytes(1000) for _ in range(50)]
        all_hold.wait()
        del body
        all_hold.wait()
threads = [threading.Thread(target=answer) for _ in range(24)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


@pytest.mark.slow
def test_large_answers_are_given_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 57_000  # kB: 40,000; 74,000 where each thread keeps its own
