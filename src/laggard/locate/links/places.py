"""Finds the place in the network that explains which channels are slow and which are not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Channel
from laggard.locate.slow.peers import node_numbers

MISFIT_SHARE = 0.25
"""The share of the channels through a place that may be fast."""

ROUNDING_TOLERANCE = 1e-9
"""The relative difference below which sums differ by rounding alone."""


class Place(NamedTuple):
    """Something that transfers go through. `channels` are the numbers of those that would be slow with it."""

    # nic, link, node, machines, rail, in_node, among, group; uplinks: a switch's; apart, beside: a nic that other
    # transfers of a ring's members tell; shared: a nic of several ranks
    kind: str
    columns: tuple[int, ...]
    channels: frozenset[int]


class Explanation(NamedTuple):
    """The places of one kind that explain equally well which channels are slow."""

    places: tuple[Place, ...]
    explained: frozenset[int]  # channels that are slow

    def with_all(self, slow: Set[int]) -> Explanation:
        """The same with all of the channels `slow` that go through the places."""
        return self._replace(explained=frozenset.union(*(place.channels for place in self.places)) & slow)


def explain(
    timings: JobTimings,
    channels: Sequence[Channel],
    slow: Mapping[int, float],
    tested: frozenset[int],
    equals: Sequence[frozenset[int]],
) -> Explanation | None:
    """The places that explain most of what `slow` channels cost (seconds, by their number), and through which few of
    those that were `tested` are fast. What costs more counts more: waiting for a slow link shows in other pairs, too.
    `equals` are the channels that were compared with each other. None where no place fits."""
    best: list[Place] = []
    most = 0.0
    for place in _places(timings, channels, frozenset(slow)):
        told_apart = _told_apart(place, equals)
        explained = told_apart & tested & slow.keys()
        fast = len(told_apart & (tested - slow.keys()))
        affected = len(explained) + fast
        if not explained or fast > MISFIT_SHARE * affected:
            continue
        worth = sum(slow[number] for number in explained) * (1 - fast / affected)
        if worth > most * (1 + ROUNDING_TOLERANCE):
            best, most = [place], worth
        elif worth > most * (1 - ROUNDING_TOLERANCE) and place.kind == best[0].kind:
            best.append(place)
    if not best:
        return None
    return Explanation(tuple(best), frozenset()).with_all(slow.keys())


def _told_apart(place: Place, equals: Sequence[frozenset[int]]) -> frozenset[int]:
    """Those of the place's channels that would be slower than an equal one if the place were slow. Where all equal ones
    go through it, as all data-parallel groups do through a rail, they would be slow together, and none stand out."""
    compared = (each for each in equals if not each <= place.channels)
    return place.channels & frozenset().union(*compared)


def _places(timings: JobTimings, channels: Sequence[Channel], slow: frozenset[int]) -> Iterator[Place]:
    """The places that any slow channel goes through, the smallest first: of those that fit equally well the first is
    taken."""
    machine = node_numbers(timings.nodes)
    crossing = frozenset(
        number for number, each in enumerate(channels) if len(set(machine[list(each.columns)].tolist())) > 1
    )
    through = _by_column(channels)
    suspects = sorted({column for number in slow & crossing for column in channels[number].columns})
    for column in suspects:
        yield Place("nic", (column,), through[column] & crossing)
    yield from _links(channels, slow & crossing, through, machine)
    for node in sorted({int(machine[column]) for column in suspects}):
        columns = tuple(np.flatnonzero(machine == node).tolist())
        yield Place("node", columns, _union(through, columns) & crossing)
    yield from _machine_links(channels, slow & crossing, crossing, machine)
    yield from _rails(machine, channels, through, crossing, suspects)
    within = {int(machine[channels[number].columns[0]]) for number in slow - crossing}
    for node in sorted(within):
        columns = tuple(np.flatnonzero(machine == node).tolist())
        yield Place("in_node", columns, _union(through, columns) - crossing)
    yield from _among(channels, slow & crossing, crossing, machine)
    for number in sorted(slow):  # a way between two of its members, which no other channel uses
        columns = channels[number].columns
        yield Place("group", columns, frozenset.intersection(*(through[column] for column in columns)))


def _by_column(channels: Sequence[Channel]) -> dict[int, frozenset[int]]:
    through: dict[int, set[int]] = {}
    for number, channel in enumerate(channels):
        for column in channel.columns:
            through.setdefault(column, set()).add(number)
    return {column: frozenset(numbers) for column, numbers in through.items()}


def _union(through: dict[int, frozenset[int]], columns: Sequence[int]) -> frozenset[int]:
    return frozenset().union(*(through.get(column, frozenset()) for column in columns))


def _links(
    channels: Sequence[Channel], slow: frozenset[int], through: dict[int, frozenset[int]], machine: np.ndarray
) -> Iterator[Place]:
    """The ways between two ranks that send to each other."""
    pairs = {tuple(sorted(channels[number].columns)) for number in slow if len(channels[number].columns) == 2}
    for one, other in sorted(pairs):
        yield Place("link", (one, other), through[one] & through[other])


def _machine_links(
    channels: Sequence[Channel], slow: frozenset[int], crossing: frozenset[int], machine: np.ndarray
) -> Iterator[Place]:
    """The ways between two machines of which several channels are slow. What goes over more machines than these two is
    not asked: it may go another way."""
    between: dict[frozenset[int], list[int]] = {}
    for number in crossing:
        ends = frozenset(machine[list(channels[number].columns)].tolist())
        if len(ends) == 2:
            between.setdefault(ends, []).append(number)
    for _, numbers in sorted(between.items(), key=lambda it: sorted(it[0])):
        if len(slow.intersection(numbers)) > 1:
            columns = sorted({column for number in numbers for column in channels[number].columns})
            yield Place("machines", tuple(columns), frozenset(numbers))


def _among(
    channels: Sequence[Channel], slow: frozenset[int], crossing: frozenset[int], machine: np.ndarray
) -> Iterator[Place]:
    """The ways among the machines of several slow groups, each of which goes over all of them."""
    over: dict[frozenset[int], list[int]] = {}
    for number in crossing:
        over.setdefault(frozenset(machine[list(channels[number].columns)].tolist()), []).append(number)
    for machines, numbers in sorted(over.items(), key=lambda it: sorted(it[0])):
        if len(machines) > 2 and len(slow.intersection(numbers)) > 1:
            columns = sorted({column for number in numbers for column in channels[number].columns})
            yield Place("among", tuple(columns), frozenset(numbers))


def _rails(
    machine: np.ndarray,
    channels: Sequence[Channel],
    through: dict[int, frozenset[int]],
    crossing: frozenset[int],
    suspects: Sequence[int],
) -> Iterator[Place]:
    """The NICs of the same number in all machines, taken to be those of the ranks of that place on their machine. What
    all transfers between machines go through is no rail but the network, as where each machine has one rank: it would
    fit nearly everything."""
    order = np.argsort(machine, kind="stable")
    first = np.searchsorted(machine[order], machine[order])
    local = np.empty(len(machine), np.int64)
    local[order] = np.arange(len(machine)) - first
    for number in sorted({int(local[column]) for column in suspects}):
        columns = tuple(np.flatnonzero(local == number).tolist())
        rail = _union(through, columns) & crossing
        if rail != crossing:
            yield Place("rail", columns, rail)
