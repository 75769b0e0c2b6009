"""One HTTP request in, one answer out, then the connection is closed. What a client may send is bounded, in bytes and
in time, before it is looked at."""

from __future__ import annotations

import contextlib
import email.utils
import re
import socket
import time
from http import HTTPStatus
from typing import Final, NamedTuple

MOST_HEAD_BYTES: Final = 8_192
MOST_TARGET: Final = 1_024
HEAD_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0

_MOST_IGNORED_PACKETS: Final = 16
_LINGER_SECONDS: Final = 1.0
_REQUEST_LINE: Final = re.compile(r"([!-~]+) ([!-~]+) HTTP/1\.\d")


class Request(NamedTuple):
    method: str
    path: str
    query: str
    accept: str


class Answer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class BadRequest(Exception):
    """What the client sent is no request that is answered here."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def read_request(connection: socket.socket) -> Request | None:
    """None where the client left without asking. Raises BadRequest; OSError where the connection broke."""
    head = _read_head(connection, time.monotonic() + HEAD_SECONDS)
    return None if head is None else _parse(head)


def send_answer(connection: socket.socket, answer: Answer, with_body: bool) -> None:
    """Raises OSError where the client is gone, or does not take the answer in time."""
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Date: {email.utils.formatdate(usegmt=True)}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    connection.settimeout(ANSWER_SECONDS)  # for all of it: sendall's timeout is not per packet
    connection.sendall(head + (answer.body if with_body else b""))
    _linger(connection)


def _read_head(connection: socket.socket, deadline: float) -> bytes | None:
    head = bytearray()
    while b"\r\n\r\n" not in head:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BadRequest(HTTPStatus.REQUEST_TIMEOUT, f"no complete request within {HEAD_SECONDS:g} s")
        connection.settimeout(left)
        try:
            data = connection.recv(4096)
        except TimeoutError:
            continue
        if not data:
            return None
        head += data
        if len(head) > MOST_HEAD_BYTES:
            raise BadRequest(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request's head has at most {MOST_HEAD_BYTES} bytes"
            )
    return bytes(head).partition(b"\r\n\r\n")[0]


def _parse(head: bytes) -> Request:
    line, _, rest = head.decode("latin-1").partition("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if not found or not found[2].startswith("/"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
    if len(found[2]) > MOST_TARGET:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"a request's target has at most {MOST_TARGET} characters")
    path, _, query = found[2].partition("?")
    fields = (field.partition(":") for field in rest.split("\r\n"))
    accept = ",".join(value.strip() for name, _, value in fields if name.strip().lower() == "accept")
    return Request(found[1], path, query, accept)


def _linger(connection: socket.socket) -> None:
    """Closing on unread input would reset the connection, and with it the answer that is still under way."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_LINGER_SECONDS)
        for _ in range(_MOST_IGNORED_PACKETS):
            if not connection.recv(65_536):
                break
