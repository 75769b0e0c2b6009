"""The smallest place in the network that covers the channels which are raised. Pure.

A place is what transfers go through: an adapter, a machine, a rail, the way between machines, a switch. It is at fault
where what goes through it is raised and little of that is fast. Which ways a collective of many ranks takes is not
known, so that several places of a kind may fit equally well: all of them are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.majority import grouped
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import Channel
from laggard.locate.links.raised import Findings
from laggard.locate.medians import distinct
from laggard.locate.shares import MOST
from laggard.locate.slow.steps import node_numbers

ROUNDING_TOLERANCE: Final = 1e-9
"""The relative difference below which sums differ by rounding alone."""

PLACES: Final[Mapping[str, str]] = {
    "adapter": "the network adapter of",
    "rank": "the links of",
    "machine": "the network of the machine of",
    "way": "the way between the machines of",
    "among": "a way among the machines of",
    "rail": "the rail of",
    "within": "the links within the machine of",
    "switch": "the ways to others, as a switch's, of the machines of",
    "group": "a way among",
}
"""The kinds of places, the smallest first."""

Machines = frozenset[int]


class Place(NamedTuple):
    """`channels` are the numbers of those that would be raised with it."""

    kind: str
    columns: tuple[int, ...]
    channels: frozenset[int]


class Explanation(NamedTuple):
    """The places of one kind that cover equally well what is raised, and the raised channels that they cover."""

    places: tuple[Place, ...]
    explained: frozenset[int]

    @property
    def kind(self) -> str:
        return self.places[0].kind

    @property
    def columns(self) -> list[int]:
        return sorted({column for place in self.places for column in place.columns})

    @property
    def is_one_thing(self) -> bool:
        """Whether it is one thing to repair."""
        return len(self.places) == 1 and self.kind not in ("among", "group")


def explain(timings: JobTimings, channels: Sequence[Channel], found: Findings) -> Explanation | None:
    """The place that covers most of what is raised, in seconds, and through which little is fast. What costs more
    counts more: waiting for a slow link shows elsewhere, too. Of kinds of places that cover as much it is the one with
    the fewest ranks in all of them. None where no place fits."""
    fitting, most = dict[str, list[Place]](), 0.0
    for place in _places(timings, channels, found):
        explained = place.channels & found.raised.keys()
        fast = len(place.channels & found.fast)
        affected = len(explained) + fast
        if not explained or fast > (1 - MOST) * affected:
            continue
        worth = sum(found.raised[number].excess for number in explained) * (1 - fast / affected)
        if worth > most * (1 + ROUNDING_TOLERANCE):
            fitting, most = {}, worth
        if worth > most * (1 - ROUNDING_TOLERANCE):
            fitting.setdefault(place.kind, []).append(place)
    if not fitting:
        return None
    best = min(
        fitting.values(), key=lambda places: (len({it for place in places for it in place.columns}), len(places))
    )
    covered = frozenset[int]().union(*(place.channels for place in best))
    return Explanation(tuple(best), covered & found.raised.keys())


def _places(timings: JobTimings, channels: Sequence[Channel], found: Findings) -> Iterator[Place]:
    """The places that any raised channel goes through, the smallest first."""
    machine = node_numbers(timings.nodes)
    on = [frozenset(machine[list(channel.columns)].tolist()) for channel in channels]
    crossing = frozenset(number for number, machines in enumerate(on) if len(machines) > 1)
    through = _by_column(channels)
    raised = frozenset(found.raised)
    suspects = sorted({column for number in raised & crossing for column in channels[number].columns})
    for kind, of_rank in (("adapter", np.arange(len(machine))), ("machine", machine), ("rail", _local(machine))):
        for each in distinct(of_rank[suspects]).tolist():
            columns = np.flatnonzero(of_rank == each).tolist()
            over = _union(through, columns) & crossing
            # what all transfers between machines go through is no rail but the network
            if kind != "rail" or over != crossing:
                yield Place(kind, tuple(columns), over)
    for column in sorted({each for number in raised for each in channels[number].columns}):
        yield Place("rank", (column,), through[column])
    yield from _ways(channels, raised & crossing, crossing, on)
    for node in sorted({min(on[number]) for number in raised - crossing}):
        columns = np.flatnonzero(machine == node).tolist()
        yield Place("within", tuple(columns), _union(through, columns) - crossing)
    yield from _switches(machine, on, raised & crossing, (found.fast | found.equal) & crossing, crossing)
    for number in sorted(raised):  # a way between two of its members, which no other channel uses
        members = channels[number].columns
        shared = frozenset.intersection(*(through[column] for column in members))
        yield Place("group", members, shared)


def _by_column(channels: Sequence[Channel]) -> dict[int, frozenset[int]]:
    pairs = ((column, number) for number, channel in enumerate(channels) for column in channel.columns)
    return {column: frozenset(number for _, number in its) for column, its in grouped(pairs, lambda it: it[0]).items()}


def _union(through: Mapping[int, frozenset[int]], columns: Iterable[int]) -> frozenset[int]:
    return frozenset().union(*(through.get(column, frozenset()) for column in columns))


def _ways(
    channels: Sequence[Channel], raised: frozenset[int], crossing: frozenset[int], on: Sequence[Machines]
) -> Iterator[Place]:
    """The ways between two machines, and those among more that several raised channels go over, each over all."""
    over = grouped(sorted(crossing), lambda number: on[number])
    for machines, numbers in sorted(over.items(), key=lambda it: (len(it[0]), sorted(it[0]))):
        if len(raised.intersection(numbers)) > (len(machines) > 2):
            columns = sorted({column for number in numbers for column in channels[number].columns})
            yield Place("way" if len(machines) == 2 else "among", tuple(columns), frozenset(numbers))


def _local(machine: NDArray[np.int64]) -> NDArray[np.int64]:
    """[R]: the place of each rank on its machine. Adapters of the same place, in all machines, are a rail."""
    order = np.argsort(machine, kind="stable")
    local = np.empty(len(machine), np.int64)
    local[order] = np.arange(len(machine)) - np.searchsorted(machine[order], machine[order])
    return local


def _switches(
    machine: NDArray[np.int64],
    on: Sequence[Machines],
    raised: frozenset[int],
    fast: frozenset[int],
    crossing: frozenset[int],
) -> Iterator[Place]:
    """The sides of the network, in each of which transfers between machines are fast: what leads to others goes over
    its switch. The largest side is the rest of the network."""
    side = {node: frozenset((node,)) for number in raised | fast for node in on[number]}
    for number in fast:
        joined = frozenset[int]().union(*(side[node] for node in on[number]))
        side.update(dict.fromkeys(joined, joined))
    for machines in sorted(set(side.values()), key=lambda it: (len(it), sorted(it)))[:-1]:
        if len(machines) > 1:
            leading = frozenset(number for number in crossing if on[number] & machines and on[number] - machines)
            yield Place("switch", tuple(np.flatnonzero(np.isin(machine, sorted(machines))).tolist()), leading)
