"""One small GET with one deadline for all of it, name look-up included. http.client alone would be a third of the
gate's time to start."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

MOST_BYTES: Final = 4 << 20


class NoAnswer(Exception):
    """There is no answer to use. The text says why."""


class Body(NamedTuple):
    data: bytes
    headers: Mapping[str, str]  # names in lower case


def get(url: str, seconds: float) -> Body:
    """The body of a complete 200 answer of at most MOST_BYTES. Raises NoAnswer within `seconds`."""
    answers: list[Body | NoAnswer] = []
    late = NoAnswer(f"no complete answer within {seconds:g} s")

    def ask() -> None:
        try:
            answers.append(_get(url, time.monotonic() + seconds))
        except NoAnswer as error:
            answers.append(error)
        except TimeoutError:
            answers.append(late)
        except (OSError, ValueError) as error:
            answers.append(NoAnswer(getattr(error, "strerror", None) or str(error) or type(error).__name__))

    # A thread, because no timeout bounds getaddrinfo; as a daemon it does not keep the process from ending.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    answer = answers[0] if answers else late
    if isinstance(answer, NoAnswer):
        raise answer
    return answer


def _get(url: str, until: float) -> Body:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NoAnswer(f"{url!r} is no http address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname, port), timeout=_left(until)) as plain:
        connection = _secured(plain, parts.hostname) if parts.scheme == "https" else plain
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode("latin-1"))
        return _parsed(_received(connection, until))


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _received(connection: socket.socket, until: float) -> bytes:
    data = bytearray()
    while True:
        connection.settimeout(_left(until))
        chunk = connection.recv(1 << 16)
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > MOST_BYTES:
            raise NoAnswer(f"an answer of more than {MOST_BYTES} bytes")


def _parsed(data: bytes) -> Body:
    head, found, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    words = status.split(" ", 2)
    if not found or len(words) < 2 or not words[0].startswith("HTTP/1."):
        raise NoAnswer("not an HTTP answer")
    if words[1] != "200":
        raise NoAnswer(f"HTTP {words[1]}")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if headers.get("content-length") != str(len(body)):
        raise NoAnswer("an answer that is not complete")
    return Body(body, headers)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
