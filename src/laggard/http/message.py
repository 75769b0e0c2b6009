"""One HTTP/1 request and its response. What a client may send is bounded in bytes and in time before it is parsed. The
connection is closed after the response, but for a client that asks in so many words to keep it, where the server
does."""

from __future__ import annotations

import contextlib
import email.utils
import re
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

MAX_HEAD_BYTES: Final = 8_192
MAX_TARGET_LENGTH: Final = 1_024
HEAD_SECONDS: Final = 5.0
RESPONSE_SECONDS: Final = 10.0

_COPIED_BYTES: Final = 1 << 16
"""The largest body that is copied to be sent in one piece with its head."""

_HEAD_END: Final = b"\r\n\r\n"
_MAX_DISCARDED_READS: Final = 16
_LINGER_SECONDS: Final = 1.0
_REQUEST_LINE: Final = re.compile(r"([!-~]+) ([!-~]+) HTTP/1\.\d")


class Connection(Protocol):
    """A socket, or what is spoken over one."""

    def settimeout(self, seconds: float | None, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...


class Request(NamedTuple):
    """`keeps`: whether the client asks in so many words for the connection to be kept, and has sent nothing beyond this
    request. HTTP/1.1 keeps one also where nobody says anything: most clients ask once."""

    method: str
    path: str
    query: str
    accept: str
    authorization: str = ""
    keeps: bool = False


class Response(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class HttpError(Exception):
    """The request gets an error as its response: `status`, with the exception's text as the reason."""

    def __init__(self, status: HTTPStatus, reason: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self._headers = headers

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that the error's response has to have, such as Allow: RFC 9110, 15.5.6."""
        if not self._headers and self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            return (("Allow", "GET, HEAD"),)
        return self._headers


def read_request(connection: Connection) -> Request | None:
    """Returns None where the client left without a request. Raises HttpError; OSError where the connection broke."""
    found = _read_head(connection, time.monotonic() + HEAD_SECONDS)
    if found is None:
        return None
    head, _, beyond = found.partition(_HEAD_END)
    request = _parse(head)
    return request._replace(keeps=request.keeps and not beyond)


def send_response(connection: Connection, response: Response, with_body: bool, keeps: bool = False) -> None:
    """`keeps`: whether the connection is there for another request after this. Raises OSError where the client is gone,
    or does not take the response within RESPONSE_SECONDS."""
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Date: {email.utils.formatdate(usegmt=True)}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        f"Connection: {'keep-alive' if keeps else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    connection.settimeout(RESPONSE_SECONDS)  # for the whole response: sendall's timeout is not per packet
    body = response.body if with_body else b""
    if len(body) > _COPIED_BYTES:
        connection.sendall(head)  # it fits in the socket's buffer
        connection.sendall(body)
    else:
        connection.sendall(head + body)
    if not keeps:
        _say_goodbye(connection)
        linger(connection)


def _read_head(connection: Connection, deadline: float) -> bytes | None:
    head = bytearray()
    while _HEAD_END not in head:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise HttpError(HTTPStatus.REQUEST_TIMEOUT, f"no complete request within {HEAD_SECONDS:g} s")
        connection.settimeout(remaining)
        try:
            data = connection.recv(4096)
        except TimeoutError:
            continue
        if not data:
            return None
        head += data
        if len(head) > MAX_HEAD_BYTES:
            reason = f"a request's head has at most {MAX_HEAD_BYTES} bytes"
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
    return bytes(head)


def _parse(head: bytes) -> Request:
    line, _, rest = head.decode("latin-1").partition("\r\n")
    matched = _REQUEST_LINE.fullmatch(line)
    if not matched or not matched[2].startswith("/"):
        raise HttpError(HTTPStatus.BAD_REQUEST, "not an HTTP/1 request")
    if len(matched[2]) > MAX_TARGET_LENGTH:
        reason = f"a request's target has at most {MAX_TARGET_LENGTH} characters"
        raise HttpError(HTTPStatus.REQUEST_URI_TOO_LONG, reason)
    path, _, query = matched[2].partition("?")
    fields = [
        (name.strip().lower(), value.strip()) for name, _, value in (it.partition(":") for it in rest.split("\r\n"))
    ]
    accept = ",".join(value for name, value in fields if name == "accept")
    authorization = ",".join(value for name, value in fields if name == "authorization")
    return Request(matched[1], path, query, accept, authorization, _keeps(line, fields))


def _keeps(line: str, fields: Sequence[tuple[str, str]]) -> bool:
    """Whether the client asks to keep the connection, after a request that has no body."""
    asked = [value.lower() for name, value in fields if name == "connection"] == ["keep-alive"]
    bodies = [value for name, value in fields if name in ("content-length", "transfer-encoding")]
    return asked and line.endswith("HTTP/1.1") and bodies in ([], ["0"])


def _say_goodbye(connection: Connection) -> None:
    """Tells a client over TLS that this was all: without that, it cannot tell the end from an attack that cuts it."""
    unwrap = getattr(connection, "unwrap", None)  # of TlsConnection, which daemons without TLS do not load
    if unwrap:
        connection.settimeout(_LINGER_SECONDS)
        with contextlib.suppress(OSError, ValueError):
            unwrap()


def linger(connection: Connection) -> None:
    """Reads what the client still sends, within bounds: closing with unread input would reset the connection, and the
    client would lose the response that is on its way."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_LINGER_SECONDS)
        for _ in range(_MAX_DISCARDED_READS):
            if not connection.recv(65_536):
                break
