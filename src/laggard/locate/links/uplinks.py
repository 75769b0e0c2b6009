"""Finds the machines whose ways to all others are slow, as those behind one switch are. Pure.

Which machines are behind one switch is not known. Where every slow way is one of several from the same machine, and
nothing is fast between these machines and others, they are what the slow ways have in common. So are the machines of
one side, where transfers among themselves are fast, and all that leads to the other side is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

MAX_DESIGN_RATIO: Final = 25.0
"""The ratio of the times of equal ways up to which they may differ by design: NVLink 5 moves 900 GB/s of a GPU each
way, an adapter of 400 Gbit/s 50 (NVIDIA, GB200 NVL72)."""

MAX_OVERSUBSCRIPTION: Final = 10.0
"""The same where the faster ones are no faster than an adapter. Switches above a pod carry a seventh of what is below
them (The Llama 3 Herd of Models, 3.3.1), and others may use them at the same time."""

MAX_ADAPTER_RATE: Final = 100e9
"""The bytes a second of an adapter of 800 Gbit/s: what is faster went through NVLink."""

Machines = frozenset[int]
"""The numbers of the machines that a transfer goes among: two of a way."""


def is_beyond_design(ratio: float, rate: float) -> bool:
    """Whether ways that take `ratio` times as long as equal ones are broken, and not longer by design. `rate`: what the
    equal ones move, in bytes a second, for each member on a machine; nan: not known."""
    return ratio >= (MAX_OVERSUBSCRIPTION if rate <= MAX_ADAPTER_RATE else MAX_DESIGN_RATIO)


def behind_a_switch(slow: Set[Machines], fast: Set[Machines]) -> Machines:
    """The machines of which the ways to others are slow: of the `slow` ways each has one of them at one end, and no
    `fast` one leads away from them. Each of them has two slow ways at least, or the fast ones join them to one side,
    and what is slow leads to others. Empty where there is one such machine alone, and where it may be either end."""
    ends = _neighbours(slow)
    centres = frozenset(machine for machine, others in ends.items() if len(others) > 1)
    apart = all(len(way) == 2 and len(way & centres) == 1 for way in slow)
    leads_away = any(0 < len(way & centres) < len(way) for way in fast)
    if apart and len(centres) > 1 and not leads_away:
        return centres
    return _one_side(slow, fast) if len(slow) > 1 else frozenset()


def _one_side(slow: Set[Machines], fast: Set[Machines]) -> Machines:
    """The machines beside the largest side, if all `slow` transfers lead from them to it, and they are fewer."""
    side = {machine: frozenset((machine,)) for machine in frozenset[int]().union(*slow, *fast)}
    for machines in fast:
        joined = frozenset[int]().union(*(side[machine] for machine in machines))
        side.update(dict.fromkeys(joined, joined))
    largest = max(side.values(), key=len)
    rest = frozenset(side) - largest
    apart = all(machines & largest and machines & rest for machines in slow)
    return rest if apart and 1 < len(rest) < len(largest) else frozenset()


def _neighbours(slow: Iterable[Machines]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for machines in slow:
        for machine in machines:
            found.setdefault(machine, set()).update(machines - {machine})
    return found
