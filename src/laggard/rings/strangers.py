"""Strangers at the ranks' own ports. Pure.

gloo and NCCL have no passwords: who connects to a rank's port before another rank does can be taken for it. The
exchange then fails, and that says nothing about a node. So ranks tell, over the coordinator, which ends their
connections have: one that a rank took from an end which no rank has is a stranger's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from laggard.rings.messages import Connected

_MAX_ENDS: Final = 1 << 20
_ENDPOINT: Final = re.compile(r"\[([0-9A-Fa-f.:]{2,45})\]:(\d{1,5})\b")
"""The end that gloo names in an error: `Connection closed by peer [127.0.0.1]:4711`."""


class Strangers:
    def __init__(self) -> None:
        self._ends: set[str] = set()
        self._taken: dict[int, tuple[str, ...]] = {}

    def note(self, rank: int, told: Connected) -> None:
        if len(self._ends) < _MAX_ENDS:
            self._ends.update(told.ends)
        self._taken[rank] = told.taken

    def found(self, ranks: Iterable[int], errors: Iterable[str] = ()) -> tuple[str, ...]:
        """Returns the ends that are connected to `ranks`, or that their `errors` name, and that no rank has."""
        seen = {end for rank in ranks for end in self._taken.get(rank, ())}
        named = {f"{host.removeprefix('::ffff:')}:{port}" for text in errors for host, port in _ENDPOINT.findall(text)}
        return tuple(sorted((seen | named) - self._ends))


def strangers_text(ends: tuple[str, ...], who: str) -> str:
    more = f" and {len(ends) - 3} more" if len(ends) > 3 else ""
    return (
        f"{who} failed while strangers were connected to its ranks' ports ({', '.join(ends[:3])}{more}): "
        "see who runs there, and measure again"
    )
