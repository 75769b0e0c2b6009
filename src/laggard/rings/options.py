"""The options of a ring's measurement, as a typed value: all nodes of a ring have the same one, and none is a command
line."""

from __future__ import annotations

import msgspec

from laggard.rings.bandwidth import sweep_sizes


class RingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ops: tuple[str, ...] = ("all_reduce",)
    min_bytes: int = 1 << 10
    max_bytes: int = 64 << 20
    factor: int = 4
    seconds: float = 20.0
    """The time for which the sweep measures, all sizes together."""
    pairs: bool = False
    """True: pairs of nodes are measured in place of the sweep."""
    pair_bytes: int = 0
    """The message size of pairs; 0: by the device."""
    suspect: str = ""
    """The name of the only node that pairs are to judge: it is measured with each of the others, in both places."""
    gang: bool = False
    """True: those who came in time measure without the others, and each node is told what it is accused of."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return sweep_sizes(self.min_bytes, self.max_bytes, self.factor)


def first_difference(own: RingOptions, other: RingOptions) -> str:
    """Names the first option that differs, with both values; empty where none does."""
    for name in RingOptions.__struct_fields__:
        mine, theirs = getattr(own, name), getattr(other, name)
        if mine != theirs:
            return f"{name} {_text(theirs)} in place of {_text(mine)}"
    return ""


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
