"""The steps of all ranks of an answer as columns: who reads them needs no time a step. Standard library only: an agent
holds no numpy."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from laggard.constants import PHASES
from laggard.rankfile import Step
from laggard.wire.ranks import PackedSteps

_COLUMNS = 5 + len(PHASES)
_FORMATS = {0: "", 4: "I", 8: "Q"}
"""The format of a number in struct, by its width in bytes."""


def pack(steps: Sequence[Sequence[Step]]) -> PackedSteps:
    """The steps of each rank, which is_valid_step() lets pass."""
    columns = list(zip(*_numbers(steps), strict=True)) or [()] * _COLUMNS
    widths = tuple(_width(max(column, default=0)) for column in columns)
    packed = [
        struct.pack(f"<{len(column)}{_FORMATS[width]}", *column)
        for column, width in zip(columns, widths, strict=True)
        if width
    ]
    return PackedSteps(tuple(map(len, steps)), widths, b"".join(packed))


def _numbers(steps: Sequence[Sequence[Step]]) -> Iterator[tuple[int, ...]]:
    for of_rank in steps:
        for step, start, end, phases, waited, work in of_rank:
            yield step, start, end - start, waited, work, *phases


def _width(largest: int) -> int:
    """The bytes that a number of a column takes: 4 hold 4.29 s."""
    return 0 if not largest else 4 if largest < 1 << 32 else 8
