"""What comes of asking one agent: its answer, or one line that says why there is none."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ports import free_port

from laggard.collector.scrape.fetch import AnswerReader, FetchFailure, fetch

MAX_BYTES = 1000
BODY = b'{"a":1}'
AGENTS = (
    b"HTTP/1.1 200 OK\r\nDate: Sat, 28 Nov 2026 00:00:00 GMT\r\nContent-Length: 7\r\nConnection: close\r\n\r\n" + BODY
)

ANSWERS = (
    AGENTS,
    AGENTS[:-1],
    AGENTS + b"more than was said",
    AGENTS[:40],
    AGENTS.replace(b"Content-Length: 7", b"content-length:7   "),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 007"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: -7"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 7, 7"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 7\r\nContent-Length: 7"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 7\r\nContent-Length: 6"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length : 7"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 7\r\nTransfer-Encoding: chunked"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 7\r\nContent-Encoding: gzip"),
    AGENTS.replace(b"Content-Length: 7", b"Content-Length: 7\r\nContent-Encoding: Identity"),
    AGENTS.replace(b"Content-Length: 7\r\n", b""),
    AGENTS.replace(b"Date: ", b"Date: \r\n folded "),
    AGENTS.replace(b"Date: ", b"Date: \xc3\xa4 "),
    AGENTS.replace(b"Date: ", b"Date: \x00 "),
    AGENTS.replace(b"200 OK", b"200"),
    AGENTS.replace(b"200 OK", b"200 "),
    AGENTS.replace(b"200 OK", b"204 No Content"),
    AGENTS.replace(b"200 OK", b"2000 OK"),
    AGENTS.replace(b"200 OK", b"500 Oh"),
    AGENTS.replace(b"200 OK", b"426 Upgrade Required"),
    AGENTS.replace(b"HTTP/1.1", b"HTTP/1.0"),
    AGENTS.replace(b"HTTP/1.1", b"HTTP/2"),
    AGENTS.replace(b"\r\n", b"\n"),
    b"HTTP/1.1 100 Continue\r\n\r\n" + AGENTS,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    b"\x00\xffnot what was asked for" * 10,
    b"\x15\x03\x01\x00\x02\x02\x46",
    b"",
)


def read(pieces: list[bytes], max_bytes: int = MAX_BYTES) -> bytes | FetchFailure | None:
    reader = AnswerReader(max_bytes)
    for piece in (*pieces, b""):
        if (found := reader.read(piece)) is not None:
            return found
    return None


@st.composite
def pieces_of_answers(draw: st.DrawFn) -> list[bytes]:
    """An answer of the list, perhaps with a few bytes of it changed, cut into pieces."""
    answer = bytearray(draw(st.sampled_from(ANSWERS)))
    for _ in range(draw(st.integers(0, 2)) if answer else 0):
        place = draw(st.integers(0, len(answer) - 1))
        answer[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from((b"", b"\r", b"\n", b":", b"\x00", b"9"))
        )
    cuts = sorted(draw(st.lists(st.integers(0, len(answer)), max_size=3)))
    edges = [0, *cuts, len(answer)]
    return [bytes(answer[begin:end]) for begin, end in zip(edges, edges[1:], strict=False) if end > begin]


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(pieces_of_answers())
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(pieces: list[bytes]) -> None:
    """It is the body or a failure in words; an end that came early is one, too."""
    found, whole = read(pieces), read([b"".join(pieces)] if pieces else [])
    assert (found == whole) or all(isinstance(it, FetchFailure) and it.state == "garbage" for it in (found, whole))


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_whole_and_byte_by_byte(answer: bytes) -> None:
    found, bytewise = read([answer] if answer else []), read([answer[at : at + 1] for at in range(len(answer))])
    assert found == bytewise and (found in (BODY, b"{}\n") or not isinstance(found, bytes))


def test_an_answer_is_bounded_before_it_is_there() -> None:
    too_large = FetchFailure("garbage", "an answer of more than 6 bytes")
    assert read([AGENTS], 6) == too_large and read([AGENTS], 7) == BODY
    assert AnswerReader(6).read(AGENTS[: -len(BODY)]) == too_large, "nothing of it is waited for"
    in_chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3\r\n{}\n\r\n" * 3
    assert read([in_chunks], 6) == too_large
    endless = b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000
    found = read([endless[place : place + 4096] for place in range(0, len(endless), 4096)])
    assert isinstance(found, FetchFailure) and found.reason.startswith("not HTTP: ")


@contextlib.asynccontextmanager
async def _served(answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL at which `answer` is given what was asked."""

    under_way = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(asyncio.current_task())
        await answer(await reader.readuntil(b"\r\n\r\n"), writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*under_way)


async def _asked(
    answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]], *, name: str = "127.0.0.1"
) -> bytes | FetchFailure:
    """What comes of asking who answers so, under that name."""
    async with _served(answer) as url:
        return await fetch(url.replace("127.0.0.1", name) + "/api?x=1", 60.0, MAX_BYTES)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_what_is_asked_and_answered_over_a_socket(name: str) -> None:
    heads: list[bytes] = []

    async def in_pieces(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        for piece in (AGENTS[:30], AGENTS[30:-3], AGENTS[-3:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)

    async def half(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(AGENTS[:-1])

    async def nothing(_: bytes, __: asyncio.StreamWriter) -> None:
        return

    async def reset(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    assert await _asked(in_pieces, name=name) == BODY
    assert heads[0].startswith(b"GET /api?x=1 HTTP/1.1\r\nHost: " + name.encode() + b":")
    assert b"Accept-Encoding: identity\r\n" in heads[0] and b"Authorization" not in heads[0]
    cut_off = await _asked(half, name=name)
    assert isinstance(cut_off, FetchFailure) and cut_off.state == "garbage" and "without sending" in cut_off.reason
    assert await _asked(nothing, name=name) == FetchFailure("down", "it closed the connection")
    assert await _asked(reset, name=name) == FetchFailure("down", "the connection broke: connection reset by peer")


async def test_a_large_answer_comes_whole() -> None:
    body = bytes(range(256)) * 20_000

    async def large(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async with _served(large) as url:
        assert await fetch(url, 60.0, len(body)) == body


async def test_who_is_not_there() -> None:
    refused = FetchFailure("down", "no connection: connection refused")
    port = free_port()
    assert await fetch(f"http://127.0.0.1:{port}/", 60.0, MAX_BYTES) == refused
    assert await fetch(f"http://localhost:{port}/", 60.0, MAX_BYTES) == refused
    with socket.socket() as listening:  # its queue is full: Linux answers no SYN, as a host that is off
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                asks = stack.enter_context(socket.socket())
                asks.setblocking(False)
                asks.connect_ex(listening.getsockname())
            found = await fetch(url, 0.3, MAX_BYTES)
    assert found == FetchFailure("down", "no connection: the host does not answer")


async def test_a_token_goes_along_and_no_line_of_another() -> None:
    heads: list[bytes] = []

    async def answers(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(AGENTS)

    async with _served(answers) as url:
        assert await fetch(url, 60.0, MAX_BYTES, method="POST", token="two words") == BODY
        for wrong in ({"token": "secret\r\nX: y"}, {"token": "\xe4"}):
            found = await fetch(url, 60.0, MAX_BYTES, **wrong)
            assert isinstance(found, FetchFailure) and found.state == "down"
        found = await fetch(f"{url}/a b", 60.0, MAX_BYTES)
        assert isinstance(found, FetchFailure) and found.state == "down"
    assert len(heads) == 1 and heads[0].startswith(b"POST / HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer two words\r\nContent-Length: 0\r\n\r\n" in heads[0]


async def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(AGENTS)
        writer.close()

    server = await asyncio.start_server(handle, "::1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await fetch(f"http://[::1]:{port}/", 60.0, MAX_BYTES) == BODY
    server.close()
