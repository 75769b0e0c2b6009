"""Values that are alike: those with the same key together, and the one that most of several peers have, the norm for a
value where nothing else says what it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")


def grouped(values: Iterable[V], key: Callable[[V], T]) -> dict[T, list[V]]:
    """The values of each key, in their order."""
    found: dict[T, list[V]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found


def peer_groups(values: Iterable[V], key: Callable[[V], T]) -> list[list[V]]:
    """The values in groups of peers, which have the same key. A value that is alone with its own, beside such a group,
    has no peers and is left out: a display card beside the GPUs that compute."""
    groups = list(grouped(values, key).values())
    return [group for group in groups if len(group) > 1] or groups


def with_peers(values: Iterable[V], key: Callable[[V], T]) -> tuple[V, ...]:
    """The values of peer_groups(), in no groups."""
    return tuple(value for group in peer_groups(values, key) for value in group)


def majority(values: Iterable[T], fewest: int = 1) -> T | None:
    """The value that more than half have. None where there is no such value, or where there are fewer than `fewest`
    values."""
    counts = Counter(values)
    if not counts or counts.total() < fewest:
        return None
    value, count = counts.most_common(1)[0]
    return value if 2 * count > counts.total() else None
