"""One TCP connection between a supervisor and the coordinator: bounded lines of JSON, signed once both have proved that
they know the ring's token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from laggard.rings import messages
from laggard.rings.authentication import is_proof, line_proof
from laggard.rings.messages import MAX_PART_BYTES, Put, Value, Want

LINE_BYTES: Final = messages.MAX_BYTES + 128
"""The most bytes that a line may have: a message, and its proof."""
BEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 10.0
"""The silence after which a process is gone: ten beats, since a loaded machine may miss a few."""


class Forged(ConnectionError):
    """A line of the connection has no proof that the other side said it."""


class Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._key = b""
        self._own_side = self._other_side = ""
        self._sent = self._received = 0
        self.peer_address = _address(writer.get_extra_info("peername"))
        connection = writer.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def own_address(self) -> str:
        return _address(self._writer.get_extra_info("sockname"))

    def sign_as(self, side: str, key: bytes) -> None:
        """From now on each line has a proof, in both directions. `side`: coordinator, or member."""
        self._key, self._own_side = key, side
        self._other_side = "member" if side == "coordinator" else "coordinator"

    async def read(self, seconds: float | None = None) -> bytes:
        """Returns the next line. Raises ConnectionError at the end, for a line that is too long, and after so many
        seconds of silence (SILENT_SECONDS); and Forged where lines are signed."""
        seconds = SILENT_SECONDS if seconds is None else seconds
        try:
            data = await asyncio.wait_for(self._reader.readline(), seconds)
        except asyncio.TimeoutError:
            raise ConnectionError(f"has been silent for {seconds:g} s") from None
        except ValueError:
            raise ConnectionError("sent a line that is too long") from None
        except OSError as error:
            raise ConnectionError(f"lost its connection ({error.strerror or error})") from None
        if not data.endswith(b"\n"):
            raise ConnectionError("closed its connection")
        return self._proved(data) if self._key else data

    def send(self, message: msgspec.Struct) -> None:
        """Sends without waiting: messages are few, and whoever does not read them is silent, too."""
        if self._writer.is_closing():
            return
        line = messages.line(message)
        if self._key:
            line = line_proof(self._key, self._own_side, self._sent, line) + b" " + line
            self._sent += 1
        self._writer.write(line)

    def _proved(self, data: bytes) -> bytes:
        proof, _, line = data.partition(b" ")
        expected = line_proof(self._key, self._other_side, self._received, line)
        if not is_proof(proof.decode(errors="replace"), expected.decode()):
            raise Forged("has a line in its connection that it did not say: somebody is between")
        self._received += 1
        return line

    def abort(self) -> None:
        """Closes at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Closes once what was sent has left, or after a second."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 1.0)
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)


def _address(name: Sequence[Any] | None) -> str:
    """The address of a socket's end; empty: it has closed already. A socket of IPv6 that takes IPv4 too tells of an
    IPv4 end as ::ffff:10.0.0.1."""
    return str(name[0] if name else "").removeprefix("::ffff:")


async def beat(link: Link) -> None:
    """Sends a sign of life each second until it is cancelled."""
    while True:
        link.send(messages.Beat())
        await asyncio.sleep(BEAT_SECONDS)


# What the ranks of a ring tell one another before they exchange data: addresses, and NCCL's unique id.
#
# It goes over the coordinator, whose connections are authenticated. A torch store would listen on all addresses, and
# has no password: whoever reaches it can put other addresses in the place of a rank's. Pure.

_MAX_KEY_CHARACTERS: Final = 200
_MAX_PARTS: Final = 1 << 10
_MAX_HELD_BYTES: Final = 1 << 28
_ENTRY_BYTES: Final = 500
"""The memory that a part takes beside its value."""

Place = tuple[str, int]


class Addresses:
    """Holds what ranks told, each part once: the first word counts, so that no rank speaks for one that has spoken."""

    def __init__(self) -> None:
        self._values: dict[Place, Value] = {}
        self._waiting: dict[Place, set[int]] = {}
        self._wanted: dict[int, Place] = {}
        self._held_bytes = 0

    def put(self, told: Put) -> tuple[Value, Collection[int]] | None:
        """Returns the value with the ranks that wait for it; None: it is out of bounds, or was told before."""
        place = (told.key, told.part)
        own = _ENTRY_BYTES + len(told.value)
        if place in self._values or not _is_bounded(told) or self._held_bytes + own > _MAX_HELD_BYTES:
            return None
        self._held_bytes += own
        value = self._values[place] = Value(told.key, told.part, told.parts, told.value)
        waiting = self._waiting.pop(place, set())
        for rank in waiting:
            del self._wanted[rank]
        return value, waiting

    def want(self, rank: int, wanted: Want) -> Value | None:
        """Returns the value; None: nobody has told it, and the rank waits for it, and for no other any more."""
        place = (wanted.key, wanted.part)
        before = self._wanted.pop(rank, None)
        if before is not None:
            self._waiting[before].discard(rank)
            if not self._waiting[before]:
                del self._waiting[before]
        value = self._values.get(place)
        if value is None and len(wanted.key) <= _MAX_KEY_CHARACTERS:
            self._wanted[rank] = place
            self._waiting.setdefault(place, set()).add(rank)
        return value


def _is_bounded(told: Put) -> bool:
    return (
        len(told.key) <= _MAX_KEY_CHARACTERS
        and 0 <= told.part < told.parts <= _MAX_PARTS
        and len(told.value) <= MAX_PART_BYTES
    )
