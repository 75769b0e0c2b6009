"""Reads an HTTP answer as its bytes come, bounded in size. Pure.

What agents answer has one form: status 200, a length, plain headers. A head of that form is read here, in a tenth of
the CPU time that h11 takes; whatever else comes is h11's to read, from its first byte on, and to refuse.
"""

from __future__ import annotations

import re
from typing import Final

import h11

from laggard.collector.scrape.failure import FetchFailure
from laggard.http.client import SPEAKS_TLS

_HEAD: Final = re.compile(rb"HTTP/1\.1 200 [ -~]*\r\n(?:[!#-'*+.0-9A-Z^-z|~-]+:[\t -~]*\r\n)+\r\n")
"""A head that holds nothing but what RFC 9112 allows, and not all of that. `match` takes time that grows with the
head's length alone: no part of it can be read in two ways."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n")
_ENCODED: Final = (b"\r\ntransfer-encoding:", b"\r\ncontent-encoding:")

MAX_HEAD_BYTES: Final = 16 << 10
"""The largest head: as h11 has it."""


class AnswerReader:
    """One answer, of which `max_bytes` of body are taken at most."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head = b""
        self._parts: list[bytes] = []
        self._wanted = 0  # bytes of the body
        self._got = 0
        self._http: h11.Connection | None = None
        self._body = bytearray()

    def read(self, data: bytes) -> bytes | FetchFailure | None:
        """Takes the bytes that came next; none: the other side has ended. Returns the body once it is whole, or why
        there is none; None: more has to come."""
        try:
            return self._read(data)
        except h11.RemoteProtocolError as error:
            return FetchFailure("garbage", f"not HTTP: {error}")

    @property
    def leaves_open(self) -> bool:
        """Whether the other side keeps the connection after this answer, of which nothing is left to read."""
        return (
            b"\r\nconnection: keep-alive\r\n" in self._head.lower() and self._http is None and self._got == self._wanted
        )

    def _read(self, data: bytes) -> bytes | FetchFailure | None:
        if self._http is not None:
            return self._read_any(data)
        if not self._head:
            return self._begin(data)
        if not data:  # cut off
            return self._hand_over(data)
        self._parts.append(data)
        self._got += len(data)
        return self._whole()

    def _begin(self, data: bytes) -> bytes | FetchFailure | None:
        """Reads the head: an agent sends it in one piece, before its body or with it."""
        found = _HEAD.match(data, 0, MAX_HEAD_BYTES)
        length = _length(found[0].lower()) if found else None
        if found is None or length is None:
            return self._hand_over(data)
        if length > self._max_bytes:
            return _too_large(self._max_bytes)
        self._head, self._wanted = found[0], length
        self._parts.append(data[found.end() :])
        self._got = len(data) - found.end()
        return self._whole()

    def _whole(self) -> bytes | None:
        """The body, where it is there: what comes behind it is not looked at."""
        if self._got < self._wanted:
            return None
        return b"".join(self._parts)[: self._wanted]

    def _hand_over(self, data: bytes) -> bytes | FetchFailure | None:
        """Has h11 read what came so far, and all that comes."""
        self._http = h11.Connection(h11.CLIENT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
        self._http.send(h11.EndOfMessage())
        before = b"".join((self._head, *self._parts))
        found = self._read_any(before) if before else None
        return self._read_any(data) if found is None else found

    def _read_any(self, data: bytes) -> bytes | FetchFailure | None:
        assert self._http is not None
        self._http.receive_data(data)
        while (event := self._http.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            if isinstance(event, h11.Response) and (failure := _unusable(event)):
                return failure
            if isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._max_bytes:
                    return _too_large(self._max_bytes)
            elif isinstance(event, h11.EndOfMessage):
                return bytes(self._body)
        return None


def _length(head: bytes) -> int | None:
    """The length of the body by a head in lower case; None where it is not told in the simplest way."""
    found = _LENGTH.search(head)
    if found is None or head.count(b"\r\ncontent-length:") > 1 or any(name in head for name in _ENCODED):
        return None
    return int(found[1])


def _too_large(max_bytes: int) -> FetchFailure:
    return FetchFailure("garbage", f"an answer of more than {max_bytes} bytes")


def _unusable(response: h11.Response) -> FetchFailure | None:
    if response.status_code == 426:
        return FetchFailure("down", SPEAKS_TLS)
    if response.status_code != 200:
        return FetchFailure("garbage", f"HTTP {response.status_code}")
    if dict(response.headers).get(b"content-encoding", b"identity").lower() != b"identity":
        return FetchFailure("garbage", "a compressed answer, which was not asked for")
    return None
