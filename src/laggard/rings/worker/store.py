"""The store by which the ranks of a group find one another: torch's interface, over the ring's own channel.

torch's TCPStore listens on all addresses of a machine and has no password, so that every user who reaches it can write
over the addresses of ranks. Here what ranks tell one another goes to the supervisor by a pipe, and on by the
coordinator's connections.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from laggard.rings.worker.channel import Channel


def make_store(torch: Any, channel: Channel, name: str, seconds: float) -> Any:
    """Returns a `torch.distributed.Store` of the group `name`, in which a rank waits for others for `seconds` at most.
    It has to be kept for as long as the group lives, since torch calls it from threads of its own."""

    class ChannelStore(torch.distributed.Store):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._known: dict[str, bytes] = {}
            self._thread = threading.get_ident()

        def set(self, key: str, value: bytes | str) -> None:
            channel.put(f"{name}/{key}", value.encode() if isinstance(value, str) else bytes(value))

        def get(self, key: str) -> bytes:
            return self._wait_for(key, seconds)

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            for key in keys:
                self._wait_for(key, seconds if timeout is None else timeout.total_seconds())

        def check(self, keys: Sequence[str]) -> bool:
            """NCCL's watchdog asks, every second, whether another rank has a reason to stop: the coordinator would
            say so."""
            return all(key in self._known for key in keys)

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def has_extended_api(self) -> bool:
            return False

        def clone(self) -> Any:
            return self

        def _wait_for(self, key: str, seconds: float) -> bytes:
            if threading.get_ident() != self._thread:
                raise RuntimeError("the store of a ring answers the rank's own thread alone")
            if key not in self._known:
                self._known[key] = channel.get(f"{name}/{key}", seconds)
            return self._known[key]

    return ChannelStore()
