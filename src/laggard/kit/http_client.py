"""One small GET or POST with one deadline for the whole exchange, name resolution included. Standard library only:
importing http.client alone would take a third of the gate's start."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from laggard.kit.address import without_login
from laggard.kit.errors import UsageError

if TYPE_CHECKING:
    import ssl


MAX_BYTES: Final = 4 << 20
_MAX_REASON_BYTES: Final = 300
_UNAVAILABLE: Final = "503"
_MISDIRECTED: Final = "421"
"""The HTTP status Misdirected Request. A daemon that is asked under a name that it does not have says so, and what to
do about it."""
SPEAKS_TLS: Final = "it speaks TLS: write https:// before its name"


class NoResponse(Exception):
    """There is no response to use. The text says why."""


class Busy(NoResponse):
    """The other side is there, and has no answer for now: it took the connection and closed it, did not answer in time,
    or says so."""


class NotReached(NoResponse):
    """No connection came about in time, and nothing said why: the other side is away, or has so many that new ones are
    dropped."""


class _Closed(Busy):
    """The other side closed the connection and said nothing."""


class _Request(NamedTuple):
    method: str
    url: str
    body: bytes | None = None


class ClientResponse(NamedTuple):
    body: bytes
    headers: Mapping[str, str]  # names in lower case


def get(url: str, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> ClientResponse:
    """Returns a complete response with status 200 and at most MAX_BYTES, headers included. `tls`: of https, where it is
    not http.tls.client_context(). Raises NoResponse otherwise, within `timeout_seconds`."""
    return _ask(_Request("GET", url), timeout_seconds, tls)


def post(url: str, body: bytes, timeout_seconds: float) -> ClientResponse:
    """Sends JSON, as get(). NoResponse has what the other side says to a refusal."""
    return _ask(_Request("POST", url, body), timeout_seconds)


def _ask(request: _Request, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> ClientResponse:
    results: list[ClientResponse | NoResponse] = []
    reached = threading.Event()

    def exchange() -> None:
        try:
            results.append(_exchange(request, time.monotonic() + timeout_seconds, tls, reached))
        except NoResponse as error:
            results.append(error)
        except TimeoutError:
            return
        except ConnectionError as error:
            kind = Busy if reached.is_set() else NoResponse
            results.append(kind(error.strerror or type(error).__name__))
        except (OSError, ValueError) as error:
            results.append(NoResponse(getattr(error, "strerror", None) or str(error) or type(error).__name__))

    # In a thread, because no timeout bounds getaddrinfo; a daemon thread does not keep the process from ending.
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    if not results:
        kind = Busy if reached.is_set() else NotReached
        raise kind(f"no complete answer within {timeout_seconds:.3g} s")
    result = results[0]
    if isinstance(result, NoResponse):
        raise result
    return result


def _exchange(
    request: _Request, deadline: float, tls: ssl.SSLContext | None, reached: threading.Event
) -> ClientResponse:
    """`reached` is set as soon as there is a connection."""
    parts = urlsplit(request.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NoResponse(f"{without_login(request.url)!r} is no http address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname, port), timeout=_remaining(deadline)) as plain:
        reached.set()
        if parts.scheme == "https":
            return _over_tls(plain, parts, request, deadline, tls)
        return _converse(plain, parts, request, deadline)


def _over_tls(
    plain: socket.socket, parts: SplitResult, request: _Request, deadline: float, tls: ssl.SSLContext | None
) -> ClientResponse:
    import ssl

    from laggard.kit.tls import CLOSED, client_context, failure_text

    try:
        with (tls or client_context()).wrap_socket(plain, server_hostname=parts.hostname) as connection:
            return _converse(connection, parts, request, deadline)
    except (_Closed, ConnectionError):
        raise Busy(CLOSED) from None
    except ssl.SSLError as error:
        raise NoResponse(failure_text(error)) from None
    except UsageError as error:
        raise NoResponse(str(error)) from None


def _converse(connection: socket.socket, parts: SplitResult, request: _Request, deadline: float) -> ClientResponse:
    body = request.body
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    head = f"{request.method} {target} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    connection.sendall(f"{head}\r\n".encode("latin-1") + (body or b""))
    return _parse(_receive_all(connection, deadline), request)


def _receive_all(connection: socket.socket, deadline: float) -> bytes:
    data = bytearray()
    while True:
        connection.settimeout(_remaining(deadline))
        chunk = connection.recv(1 << 16)
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > MAX_BYTES:
            raise NoResponse(f"an answer of more than {MAX_BYTES} bytes")


def _parse(data: bytes, request: _Request) -> ClientResponse:
    if not data:
        raise _Closed("it closed the connection without an answer")
    head, separator, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    words = status_line.split(" ", 2)
    if not separator or len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise NoResponse("not an HTTP answer")
    if words[1] == "426":
        raise NoResponse(SPEAKS_TLS)
    if words[1] != "200":
        told = request.body is not None or words[1] == _MISDIRECTED
        reason = _one_line(body[:_MAX_REASON_BYTES]) if told else ""
        kind = Busy if words[1] == _UNAVAILABLE else NoResponse
        raise kind(f"HTTP {words[1]}" + (f": {reason}" if reason else ""))
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if headers.get("content-length") != str(len(body)):
        raise NoResponse("an answer that is not complete")
    return ClientResponse(body, headers)


def _one_line(body: bytes) -> str:
    """The words of another side, which may pretend to be more lines than one."""
    text = " ".join(body.decode("ascii", "replace").split())
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining
