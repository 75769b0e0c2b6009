"""What the ranks of a ring tell one another before they exchange data: addresses, and NCCL's unique id.

It goes over the coordinator, whose connections are authenticated. A torch store would listen on all addresses, and has
no password: whoever reaches it can put other addresses in the place of a rank's. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from laggard.rings.messages import MAX_PART_BYTES, Put, Value, Want

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
