"""Ranks that wait for one another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set


def knot(waits_for: Mapping[int, Set[int]]) -> frozenset[int]:
    """Who waits in a circle, for others that wait in turn for it, with who waits between two circles; empty where
    there is none. `waits_for`: by who waits, whom for, all of them."""
    forward = {one: set(others) & waits_for.keys() for one, others in waits_for.items()}
    leading_there = _with_a_way_on(forward)
    backward: dict[int, set[int]] = {one: set() for one in leading_there}
    for one in leading_there:
        for other in forward[one] & leading_there:
            backward[other].add(one)
    return frozenset(_with_a_way_on(backward))


def _with_a_way_on(ways: Mapping[int, Set[int]]) -> set[int]:
    """Those from which one can walk for ever. Each way is looked at once: thousands may wait in a row."""
    left = {one: len(others) for one, others in ways.items()}
    comes_from: dict[int, list[int]] = {}
    for one, others in ways.items():
        for other in others:
            comes_from.setdefault(other, []).append(one)
    ends = [one for one, count in left.items() if not count]
    while ends:
        end = ends.pop()
        del left[end]
        for one in comes_from.get(end, ()):
            left[one] -= 1
            if not left[one]:
                ends.append(one)
    return set(left)
