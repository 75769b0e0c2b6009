"""A TCP connection to a name, whose addresses are tried one after the other: asyncio's own."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from laggard.collector.scrape.transport import Asker

_SECOND_ADDRESS_SECONDS: Final = 0.25
"""The time after which the next address of a name is tried as well (RFC 8305, 5)."""


class NamedTransport(asyncio.Protocol):
    """Connects once connect() is awaited; tells `asker` what comes of it."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self._transport: asyncio.Transport | None = None

    async def connect(self, name: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, name, port, happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS)
        except (OSError, ValueError) as error:
            self.asker.not_connected(error)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.asker.connected(self)

    def data_received(self, data: bytes) -> None:
        self.asker.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.asker.connection_lost(exc)
