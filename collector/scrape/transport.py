"""A question to an agent goes over a transport: TCP to an address, TCP to a name, or TLS over either. Each tells who
asks, on the event loop, what comes of it; several questions may go over one, one after the other."""

from __future__ import annotations

from typing import Protocol


class Asker(Protocol):
    """The one who asks. `connected` and `not_connected`: one of them is called, once; then the others."""

    def connected(self, transport: Transport) -> None: ...

    def not_connected(self, error: Exception) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class Transport(Protocol):
    """`asker`: who is told; another one may take its place. abort() tells nobody."""

    asker: Asker

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...
