"""Connections that are kept between two questions, where the agent keeps them, too."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

import pytest
from support.certificates import Files

from laggard.collector.scrape import connections as kept_connections
from laggard.collector.scrape.connections import KeptConnections, Slots
from laggard.collector.scrape.fetch import FetchFailure, fetch
from laggard.kit.http_message import HttpError, Request, Response, bind
from laggard.kit.http_server import Server
from laggard.kit.tls_server import ServerTls, ServerTlsSettings

KEEPS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}"
CLOSES = KEEPS.replace(b"keep-alive", b"close")
Answer = Callable[[int, int, asyncio.StreamWriter], Awaitable[bool]]


class Agents:
    """What answers at `url`. `answer`: given the number of the connection and of the question on it, writes, and says
    whether it reads on. `questions`: how many each connection brought."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.questions: list[int] = []
        self.tasks: set[asyncio.Task[None] | None] = set()
        self.writers: list[asyncio.StreamWriter] = []
        self._answer = answer

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        self.writers.append(writer)
        number = len(self.questions)
        self.questions.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.questions[number] += 1
                if not await self._answer(number, self.questions[number], writer):
                    break
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def agents(answer: Answer) -> AsyncIterator[Agents]:
    found = Agents(answer)
    server = await asyncio.start_server(found.handle, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield found
    finally:
        server.close()
        for writer in found.writers:
            writer.close()
        await asyncio.gather(*found.tasks)


async def keeps(_: int, __: int, writer: asyncio.StreamWriter) -> bool:
    writer.write(KEEPS)
    return True


async def closes(_: int, __: int, writer: asyncio.StreamWriter) -> bool:
    writer.write(CLOSES)
    return False


async def asked(
    answer: Answer, times: int, *, most: int = 9, name: str = "127.0.0.1", **more: Any
) -> tuple[list[Any], list[int]]:
    """What comes of asking so often, one after the other, and how many questions each connection brought."""
    connections = KeptConnections(most)
    found: list[Any] = []
    async with agents(answer) as there:
        for _ in range(times):
            url = there.url.replace("127.0.0.1", name)
            found.append(await fetch(url, 60.0, 100, kept=connections, **more))
            await asyncio.sleep(0)
        connections.close()
        return found, there.questions


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_one_connection_brings_all_questions(name: str) -> None:
    assert await asked(keeps, 5, name=name) == ([b"{}"] * 5, [5])


async def test_agents_of_old_close_and_are_asked_as_ever() -> None:
    assert await asked(closes, 3) == ([b"{}"] * 3, [1, 1, 1])


async def test_where_nothing_is_to_be_kept_nothing_is() -> None:
    assert await asked(keeps, 3, most=0) == ([b"{}"] * 3, [1, 1, 1])


async def test_what_changes_something_is_never_asked_over_a_connection_that_may_be_gone() -> None:
    assert await asked(keeps, 3, method="POST") == ([b"{}"] * 3, [1, 1, 1])


async def test_an_agent_that_was_started_anew_is_asked_again_at_once() -> None:
    async def forgets(_: int, question: int, writer: asyncio.StreamWriter) -> bool:
        if question == 1:
            writer.write(KEEPS)
        return question == 1

    assert await asked(forgets, 3) == ([b"{}"] * 3, [2, 2, 1])


async def test_it_is_asked_again_once() -> None:
    async def answers_first(connection: int, question: int, writer: asyncio.StreamWriter) -> bool:
        if connection == 0 and question == 1:
            writer.write(KEEPS)
        return connection == 0 and question == 1

    assert await asked(answers_first, 2) == ([b"{}", FetchFailure("down", "it closed the connection")], [2, 1])


async def test_half_an_answer_is_not_asked_for_again() -> None:
    async def half(_: int, question: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(KEEPS if question == 1 else KEEPS[:-1])
        return question == 1

    found, questions = await asked(half, 2)
    assert found[0] == b"{}" and found[1].state == "garbage" and questions == [2]


@pytest.mark.parametrize("beyond", [b"{}", KEEPS])
async def test_who_says_more_than_was_asked_for_is_not_kept(beyond: bytes) -> None:
    async def says_more(_: int, __: int, writer: asyncio.StreamWriter) -> bool:
        writer.write(KEEPS + beyond)
        return True

    assert await asked(says_more, 3) == ([b"{}"] * 3, [1, 1, 1])


async def test_who_says_more_later_is_dropped() -> None:
    connections = KeptConnections()
    async with agents(keeps) as there:
        assert await fetch(there.url, 60.0, 100, kept=connections) == b"{}"
        there.writers[0].write(KEEPS)
        await asyncio.wait(there.tasks)  # the collector closed it
        assert await fetch(there.url, 60.0, 100, kept=connections) == b"{}"
        assert there.questions == [1, 1]
        connections.close()


async def test_what_waits_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connections, "IDLE_SECONDS", -1.0)
    connections = KeptConnections()
    async with agents(keeps) as there:
        for _ in range(2):
            assert await fetch(there.url, 60.0, 100, kept=connections) == b"{}"
        assert there.questions == [1, 1]
        connections.drop_old()
        await asyncio.wait(there.tasks)


async def test_a_silent_agent_is_slow() -> None:
    async def falls_silent(_: int, question: int, writer: asyncio.StreamWriter) -> bool:
        if question == 1:
            writer.write(KEEPS)
        return True

    connections = KeptConnections()
    async with agents(falls_silent) as there:
        assert await fetch(there.url, 60.0, 100, kept=connections) == b"{}"
        found = await fetch(there.url, 0.2, 100, kept=connections)
        assert found == FetchFailure("slow", "no complete answer within 0.2 s")
        await asyncio.wait(there.tasks)  # nobody waits for it: it is closed


async def test_a_late_answer_leaves_a_connection_that_can_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laggard.collector.scrape.connections.PATIENCE_SECONDS", 0.0)

    async def late(_: int, __: int, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.05)
        writer.write(KEEPS)
        return True

    connections, slots = KeptConnections(), Slots(1)
    async with agents(late) as there:
        for _ in range(3):
            async with slots.one() as slot:
                assert await fetch(there.url, 60.0, 100, slot=slot, kept=connections) == b"{}"
        assert there.questions == [3]
        connections.close()


class Counting:
    """A real server of agents, which counts those who ask: each connection has a thread of its own."""

    def __init__(self, tls: ServerTls | None) -> None:
        self.threads: list[threading.Thread] = []
        listener = bind("127.0.0.1:0")
        self.server = Server(listener, self._handle, self._refuse, tls=tls, max_kept=4)
        self.port = listener.getsockname()[1]

    def _handle(self, request: Request) -> Response:
        self.threads.append(threading.current_thread())
        return Response(HTTPStatus.OK, "application/json", request.path.encode())

    def _refuse(self, error: HttpError) -> Response:
        return Response(error.status, "text/plain", b"")


@contextlib.contextmanager
def counting(tls: ServerTls | None = None) -> Iterator[Counting]:
    found = Counting(tls)
    found.server.start()
    try:
        yield found
    finally:
        found.server.stop()


async def test_a_real_server_keeps() -> None:
    connections = KeptConnections()
    with counting() as there:
        for place in range(4):
            found = await fetch(f"http://127.0.0.1:{there.port}/{place}", 60.0, 100, kept=connections)
            assert found == b"/%d" % place
        assert len(set(there.threads)) == 1
        assert await fetch(f"http://127.0.0.1:{there.port}/9", 60.0, 100) == b"/9"
        assert len(set(there.threads)) == 2
        connections.close()


async def test_over_tls_until_certificates_change(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may ask is decided anew at once: a kept connection ends where its handshake would be another."""
    for name, value in files.environment("client").items():
        monkeypatch.setitem(os.environ, name, value)
    folder = files.folder
    tls = ServerTls(ServerTlsSettings(str(folder / "server.pem"), str(folder / "server.key")))
    connections = KeptConnections()
    with counting(tls) as there:

        async def ask() -> int:
            for host in ("127.0.0.1", "localhost"):
                url = f"https://{host}:{there.port}/x"
                assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
            return len(set(there.threads))

        # The server keeps one of a client: each of the two names takes the other's, and is asked again.
        assert await fetch(f"https://127.0.0.1:{there.port}/x", 60.0, 100, "localhost", kept=connections) == b"/x"
        before = await ask()
        url = f"https://localhost:{there.port}/x"
        assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
        assert len(set(there.threads)) == before
        files.write("server", files.authority.issue_cert("127.0.0.1", "localhost"))
        assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
        assert len(set(there.threads)) == before + 1
        with monkeypatch.context() as none:
            none.setattr(kept_connections, "MAX_KEPT_TLS", 0)
            assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
            assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
        assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
        assert len(set(there.threads)) == before + 3, "one that there was, and two that were not kept"
        files.write("client", files.authority.issue_cert("collector.example"))
        assert await fetch(url, 60.0, 100, kept=connections) == b"/x"
        assert len(set(there.threads)) == before + 4, "the collector shows another certificate"
        connections.close()
