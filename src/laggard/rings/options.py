"""The options of a ring's measurement, as a typed value: all nodes of a ring have the same one, and none is a command
line."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

# Message sizes and bandwidths as nccl-tests defines them (doc/PERFORMANCE.md, src/*.cu). Pure.
#
# `size` is what nccl-tests prints: the whole buffer of an all-reduce, the larger buffer of the two others. algbw is
# size over time; busbw is algbw times a factor that makes it comparable with the hardware's rate, for any number of
# ranks.

OPS: Final = ("all_reduce", "reduce_scatter", "all_gather")
ELEMENT_BYTES: Final = 4
_ALIGNED_ELEMENTS: Final = 16 // ELEMENT_BYTES
"""The elements to a multiple of which nccl-tests rounds the part of each rank down, where parts are sent: 16 bytes."""
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Counts(NamedTuple):
    """The numbers of elements that a rank sends and receives."""

    sent: int
    received: int

    @property
    def size_bytes(self) -> int:
        return max(self) * ELEMENT_BYTES


def counts(op: str, size_bytes: int, ranks: int) -> Counts:
    """Returns the counts for a size, which is rounded down as nccl-tests does."""
    elements = size_bytes // ELEMENT_BYTES
    if op == "all_reduce":
        return Counts(elements, elements)
    part = elements // ranks // _ALIGNED_ELEMENTS * _ALIGNED_ELEMENTS
    return Counts(part * ranks, part) if op == "reduce_scatter" else Counts(part, part * ranks)


def bus_factor(op: str, ranks: int) -> float:
    """Returns busbw over algbw."""
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def sweep_sizes(first: int, last: int, factor: int) -> tuple[int, ...]:
    """Returns `first`, `first` * `factor` and so on, none above `last`."""
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def parse_size(text: str) -> int:
    """Returns the bytes of `64M`, `1K`, `4096`; units are powers of 1024, as in nccl-tests. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size; write 4096, 64K, 16M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


def size_text(size_bytes: int) -> str:
    """`64M`, `1K`, `100`: the shortest way to write a size that parse_size() reads."""
    for unit in ("G", "M", "K"):
        if size_bytes and size_bytes % _UNITS[unit] == 0:
            return f"{size_bytes // _UNITS[unit]}{unit}"
    return str(size_bytes)


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
