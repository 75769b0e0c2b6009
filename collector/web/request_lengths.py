"""Requests say how long their body is, or have none.

A body in chunks costs the collector a step of the parser for each chunk, which may hold one byte: 16 KiB of those stop
the event loop for longer than a hundred questions of gates. No client of the collector sends any.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import h11

_ENCODING: Final = b"transfer-encoding"
_LENGTH: Final = b"content-length"


class LengthsOnly(h11.Connection):
    """h11's reader of requests; one with Transfer-Encoding is an error before any of its body is read. `refused` is
    then its answer's status."""

    refused: HTTPStatus | None = None

    def __init__(self) -> None:
        super().__init__(h11.SERVER)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if _ENCODING in names:
                # With both, a proxy may have seen another end of the request (RFC 9112, 6.3).
                both = _LENGTH in names
                self.refused = HTTPStatus.BAD_REQUEST if both else HTTPStatus.LENGTH_REQUIRED
                raise h11.RemoteProtocolError("a body in chunks")
        return event

    def refusal(self) -> bytes:
        """The answer to a request that is none, or is refused; the connection ends with it."""
        status = self.refused or HTTPStatus.BAD_REQUEST
        text = b"no HTTP request\n" if self.refused is None else b"say how long the body is: Content-Length alone\n"
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        return head.encode() + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(text), text)
