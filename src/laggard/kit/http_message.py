"""HTTP/1.1 messages, read and written with bounds; the headers of pages; and where a daemon listens."""

from __future__ import annotations

import contextlib
import email.utils
import errno
import re
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from laggard.kit.errors import UsageError

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
    request. HTTP/1.1 keeps one also where nobody says anything: most clients ask once. `connection`: over which it
    came, by which the kernel knows who asks."""

    method: str
    path: str
    query: str
    accept: str
    authorization: str = ""
    keeps: bool = False
    connection: socket.socket | None = None


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


# The headers that every answer of every laggard server carries. Standard library only: training imports this module.
#
# What agents, jobs and nodes report is escaped before it is shown. Should that ever fail, the browser still runs none
# of it.

Headers = tuple[tuple[str, str], ...]

BASE: Final[Headers] = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""The headers that do not depend on the answer. A server sends NO_PAGE or page(), which add the policy of the
content."""

NO_PAGE: Final[Headers] = (*BASE, ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"))
"""The headers of JSON, metrics and errors, which load nothing."""


def page(policy: str) -> Headers:
    """The headers of a web page. `policy` lists what the page may load, as in `style-src 'self'; img-src 'self'`;
    everything else is forbidden."""
    content = f"default-src 'none'; {policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return (*BASE, ("Content-Security-Policy", content))


# Listening sockets. A daemon binds its socket before anything else runs, so that a busy port is a usage error.

BACKLOG: Final = 1024
"""Connections that the kernel holds until a daemon accepts them. Beyond them it drops the first packet of a connection,
and its client tries again a second later."""


def bind(address: str, setting: str = "--web.listen-address") -> socket.socket:
    """Returns a listening socket on `HOST:PORT`, `:PORT` (every interface) or `[IPV6]:PORT`; port 0 is any free one.
    Raises UsageError, whose text names `setting` as the place to choose another address."""
    host, port = split_address(address)
    try:
        listener = listen(host, port, BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:  # a label of a host name may be too long for IDNA
        raise UsageError(_message(address, error, setting)) from None
    # Accepted connections inherit the option (tcp(7)). asyncio leaves it off where a socket was made without naming
    # TCP, and then a response that is written in two parts waits 40 ms for the client's delayed acknowledgement of the
    # first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port; an empty host is every interface. Raises UsageError."""
    host, separator, port = address.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UsageError(f"cannot read listen address {address!r}: write an IPv6 address in brackets, [::1]:{port}")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise UsageError(f"cannot read listen address {address!r}: write HOST:PORT, or :PORT for every interface")
    return host, int(port)


def url_of(listener: socket.socket, tls: object = None) -> str:
    """Returns the URL of the socket, with the real port where port 0 was asked for. `tls`: where given, it is https."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Returns one listening socket, so that there is one port: of IPv6 and IPv4 where the host is empty and the machine
    has both. `backlog`: how many connections may wait, else Python's own number. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is switched off on this machine, or the port is busy: IPv4 will tell
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def _message(address: str, error: Exception, setting: str) -> str:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return f"{address} is in use; stop what listens there or choose another with {setting}"
    reason = getattr(error, "strerror", None) or error
    return f"cannot listen on {address}: {reason}; choose another with {setting}"
