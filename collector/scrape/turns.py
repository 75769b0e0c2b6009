"""The order in which a round asks the agents. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

EARLY_SHARE: Final = 1 / 3
"""The share of a round in which all are asked that did not answer in time in the last one."""


def in_turn(failed: Sequence[T], others: Sequence[T]) -> Iterator[T]:
    """Those that `failed` in the last round among the first of the others. Each may take all the time that an agent
    has: asked last, one alone would make the round longer by that. All of them at once would hold all places."""
    between = max(1, int(EARLY_SHARE * len(others) / len(failed))) if failed else 1
    rest = iter(others)
    for each in failed:
        yield each
        yield from islice(rest, between)
    yield from rest
