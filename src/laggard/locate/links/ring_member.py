"""Tells which member of a slow ring has the slow adapter, by what else goes through it. Pure.

A ring is as slow as its slowest edge, and all of its members look alike. But each member may send to ranks of other
stages as well: through a slow adapter that takes longer than what other ranks of its machine send to the same machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from laggard.locate.links.channels import Channel
from laggard.locate.links.pairs import PAIR_ROLE, ROUND_TRIP_ROLE
from laggard.locate.links.transfers import Category, Ways
from laggard.locate.medians import median, median_over_steps

MIN_BESIDE: Final = 3
"""The least number of other pairs between the same two machines that a pair is compared with."""

BESIDE_RATIO: Final = 1.1
"""The least ratio of a pair's time to that of those beside it which a slow adapter shows."""

ALIKE_RATIO: Final = 1.05
"""The largest ratio of the pairs of all other members of the ring: these have the same place on their machines, and so
the same way to their adapters."""


def slow_beside_others(ways: Ways, machine: NDArray[np.int64], columns: frozenset[int]) -> int | None:
    """The one of a ring's members, by `columns`, all of whose sends and receives take BESIDE_RATIO times as long as
    those of other ranks between the same two machines. `machine` [R]: the number of each rank's machine. None where
    there is none, or another member is nearly so slow."""
    ratios = dict(_least_ratios(ways, machine, columns))
    slow = [column for column, ratio in ratios.items() if ratio >= BESIDE_RATIO]
    between = [ratio for column, ratio in ratios.items() if column not in slow and ratio > ALIKE_RATIO]
    return slow[0] if len(slow) == 1 and not between else None


def _least_ratios(ways: Ways, machine: NDArray[np.int64], columns: frozenset[int]) -> Iterator[tuple[int, float]]:
    of_column: dict[int, list[float]] = defaultdict(list)
    for category in ways.categories:
        if ways.channels[category.channels[0]].role not in (PAIR_ROLE, ROUND_TRIP_ROLE):
            continue
        for places in _between_two_machines(category, ways.channels, machine).values():
            if len(places) > MIN_BESIDE:
                _add_ratios(category, ways.channels, places, of_column)
    yield from ((column, min(of_column[column])) for column in sorted(columns & of_column.keys()))


def _between_two_machines(
    category: Category, channels: Sequence[Channel], machine: NDArray[np.int64]
) -> Mapping[frozenset[int], list[int]]:
    """The places in the category of the pairs between each two machines."""
    found: dict[frozenset[int], list[int]] = defaultdict(list)
    for place, number in enumerate(category.channels):
        ends = frozenset(machine[list(channels[number].columns)].tolist())
        if len(ends) == 2:
            found[ends].append(place)
    return found


def _add_ratios(
    category: Category, channels: Sequence[Channel], places: Sequence[int], of_column: dict[int, list[float]]
) -> None:
    level = median_over_steps(category.most[:, list(places)])
    ranks = [frozenset(channels[category.channels[place]].columns) for place in places]
    for own, those in enumerate(ranks):
        others = np.array([level[other] for other, its in enumerate(ranks) if not its & those])
        if len(others) >= MIN_BESIDE and np.isfinite(level[own]):
            ratio = float(level[own]) / max(median(others), 1e-9)
            for column in those:
                of_column[column].append(ratio)
