"""Finds the machines whose ways to all others are slow, as those behind one switch are. Pure.

Which machines are behind one switch is not known. Where every slow way is one of several from the same machine, and
nothing is fast between these machines and others, they are what the slow ways have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final

MAX_DESIGN_RATIO: Final = 25.0
"""The ratio of the times of equal ways up to which they may differ by design: NVLink 5 moves 900 GB/s of a GPU each
way, an adapter of 400 Gbit/s 50 (NVIDIA, GB200 NVL72)."""

Way = frozenset[int]
"""The numbers of the two machines that a transfer goes between."""


def behind_a_switch(slow: Mapping[Way, float], fast: Set[Way]) -> frozenset[int]:
    """The machines of which the ways to others are slow: of `slow` ways, with the ratio of their times to equal ones',
    each has one of them at one end, and each of them has two of the ways at least. Empty where there is one such
    machine alone, where the ways may differ by design, or where one of the `fast` ways leads away from them."""
    if not slow or min(slow.values()) < MAX_DESIGN_RATIO or any(len(way) != 2 for way in slow):
        return frozenset()
    ends = _neighbours(slow)
    centres = frozenset(machine for machine, others in ends.items() if len(others) > 1)
    apart = all(len(way & centres) == 1 for way in slow)
    leads_away = any(len(way & centres) == 1 for way in fast)
    return centres if apart and len(centres) > 1 and not leads_away else frozenset()


def _neighbours(slow: Iterable[Way]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for way in slow:
        one, other = way
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found
