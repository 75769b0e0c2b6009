"""A small real name server: it answers over UDP for one name, with the addresses that a test gives it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
A, AAAA = 1, 28


class NameServer:
    """`addresses` are what it answers, IPv4 alone; none of them: there is no such name. `failing`: it cannot tell."""

    def __init__(self, name: str, host: str) -> None:
        self.addresses: list[str] = []
        self.failing = False
        self.asked = 0
        self._name = name
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
            other.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            self.asked += 1
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        """The header and question come back as they were, with an answer for each address (RFC 1035, 4.1)."""
        end = query.index(b"\0", 12) + 5
        name = b".".join(labels(query[12:end])).decode()
        (kind,) = struct.unpack_from("!H", query, end - 4)
        known = name == self._name and bool(self.addresses)
        status = SERVER_FAILURE if self.failing else NO_ERROR if known else NO_SUCH_NAME
        found = self.addresses if status == NO_ERROR and kind == A else []
        header = query[:2] + struct.pack("!HHHHH", 0x8180 | status, 1, len(found), 0, 0)
        records = [struct.pack("!HHHIH", 0xC00C, A, 1, 5, 4) + socket.inet_aton(address) for address in found]
        return header + query[12:end] + b"".join(records)


def labels(question: bytes) -> Iterator[bytes]:
    place = 0
    while length := question[place]:
        yield question[place + 1 : place + 1 + length]
        place += 1 + length
