"""Finds between which machines a link has become slow: the places that all transfers which take longer go through, and
none that does not. Pure.

Which ways a collective of many ranks takes is not known; between which machines is. So several places may remain, and
all of them are told.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.locate.links.channels import Channel


class RisenPlace(NamedTuple):
    """The place that became slow. `kind`: nic (of the rank in `columns`), node (the network of one machine), link
    (between two machines), sides (between the machines of one side and of another), among (some way among the
    machines), in_node (the links within one). `columns`: the ranks of these machines."""

    kind: str
    columns: tuple[int, ...]


def risen_place(
    channels: Sequence[Channel], machine: NDArray[np.int64], risen: Set[int], calm: Set[int], steady: Set[int]
) -> RisenPlace | None:
    """The place that explains which channels rose (by number), and which equal ones did not. `machine` [R]: the number
    of each rank's machine. `steady`: channels of other kinds that did not rise. None where no machine is in all that
    rose, and nothing else goes between machines as fast as before: it is the network as a whole."""
    on = {number: _machines(channels[number], machine) for number in {*risen, *calm, *steady}}
    if any(len(on[number]) == 1 for number in risen):
        return _within(channels, on, risen)
    common = frozenset[int].intersection(*(on[number] for number in risen))
    crossing = {number for number in calm if len(on[number]) > 1}
    if not common:
        return _between_sides(machine, [on[number] for number in risen], [on[number] for number in {*calm, *steady}])
    adapters = _adapters(channels, machine, risen, crossing)
    nodes = common - frozenset().union(*(on[number] for number in crossing))
    ways = {frozenset(pair) for pair in itertools.combinations(sorted(common), 2)} - {on[it] for it in crossing}
    if len(adapters) == 1 and not nodes:
        return RisenPlace("nic", (adapters[0],))
    if len(nodes) == 1:
        return _place("node", channels, machine, risen, nodes)
    left = nodes or frozenset().union(*ways) or common
    return _place("link" if len(left) == 2 else "among", channels, machine, risen, left)


def _machines(channel: Channel, machine: NDArray[np.int64]) -> frozenset[int]:
    return frozenset(machine[list(channel.columns)].tolist())


def _between_sides(
    machine: NDArray[np.int64], risen: Sequence[frozenset[int]], fast: Sequence[frozenset[int]]
) -> RisenPlace | None:
    """The way between sides of the network, as a switch's uplinks: on each side transfers between machines are as fast
    as before, and all that rose goes from one side to another. None where nothing between machines is fast."""
    if not any(len(each) > 1 for each in fast):
        return None
    side = {number: frozenset((number,)) for number in frozenset().union(*risen, *fast)}
    for machines in fast:
        joined = frozenset().union(*(side[number] for number in machines))
        side.update(dict.fromkeys(joined, joined))
    ends = {side[number] for machines in risen for number in machines}
    apart = all(len({side[number] for number in machines}) == 2 for machines in risen)
    if apart:
        return RisenPlace("sides", tuple(np.flatnonzero(np.isin(machine, sorted(frozenset().union(*ends)))).tolist()))
    return RisenPlace("among", tuple(np.flatnonzero(np.isin(machine, sorted(frozenset().union(*risen)))).tolist()))


def _within(channels: Sequence[Channel], on: Mapping[int, frozenset[int]], risen: Set[int]) -> RisenPlace | None:
    """The links within a machine, which all that rose goes through; those between machines go through them, too."""
    common = frozenset[int].intersection(*(on[number] for number in risen))
    if len(common) != 1:
        return None
    inside = [number for number in risen if len(on[number]) == 1]
    return RisenPlace("in_node", tuple(sorted({column for number in inside for column in channels[number].columns})))


def _adapters(
    channels: Sequence[Channel], machine: NDArray[np.int64], risen: Set[int], crossing: Set[int]
) -> list[int]:
    """The ranks that all which rose goes through, and no calm transfer for certain: a rank that is alone on its machine
    in a group uses its own adapter there."""
    shared = frozenset[int].intersection(*(frozenset(channels[number].columns) for number in risen))
    used: set[int] = set()
    for number in crossing:
        columns = np.array(channels[number].columns)
        here = machine[columns]
        used.update(columns[np.bincount(here)[here] == 1].tolist())
    return sorted(shared - used)


def _place(
    kind: str, channels: Sequence[Channel], machine: NDArray[np.int64], risen: Set[int], on: frozenset[int]
) -> RisenPlace:
    through = {column for number in risen for column in channels[number].columns}
    return RisenPlace(kind, tuple(sorted(column for column in through if int(machine[column]) in on)))
