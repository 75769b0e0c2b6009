"""Finds the steps where nothing tells when one ends: training repeats the same row of collectives. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

REPEATS: Final = 3


def smallest_period(tokens: Sequence[Hashable], repeats: int = REPEATS, least: int = 0) -> int | None:
    """Returns the smallest p such that the last `repeats` * p tokens are the same p tokens again and again, for at
    least `least` tokens; None where there is no such p.

    With the tokens read from the end, that is the smallest p at which the row agrees with itself, moved by p, for
    (repeats - 1) * p tokens: the Z function gives that for every p, in time linear in the tokens."""
    backwards = list(reversed(tokens))
    agreement = _z(backwards)
    for p in range(1, len(backwards) // repeats + 1):
        if agreement[p] >= max((repeats - 1) * p, least - p):
            return p
    return None


def _z(tokens: Sequence[Hashable]) -> list[int]:
    """The number of tokens, for each place, that are the same from there on as from the beginning on (Gusfield's Z
    algorithm)."""
    count = len(tokens)
    found = [0] * (count + 1)
    left = right = 0
    for place in range(1, count):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < count and tokens[length] == tokens[place + length]:
            length += 1
        found[place] = length
        if place + length > right:
            left, right = place, place + length
    return found
