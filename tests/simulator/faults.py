"""What can be wrong with a machine: which items and transfers it slows or stops, and where."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.layout import Group, Layout
from simulator.network import nics_used, transfer, uses_link
from simulator.programme import BACKWARD, FORWARD, INPUT, OPTIMIZER, PHASES, Programme

Floats = npt.NDArray[np.float64]
Nic = tuple[int, int]

NOTICEABLE_SECONDS = 5e-5  # a transfer that takes less shows no fault of the network

COMPUTING = ("forward", "backward", "optimizer")
SLOW = (
    "slow_gpu",  # all that a GPU computes, or one phase of it
    "slow_host",  # all that the ranks of a node compute
    "slow_cpu",  # only what a node's CPUs do: input, and what is launched
    "slow_input",  # one rank's input
    "pauses",  # now and then a rank stands still, wherever it is
    "garbage",  # now and then its Python collects garbage, in its forward pass
    "slow_nic",  # all transfers through one NIC
    "slow_link",  # all transfers on the way between two NICs
    "slow_rail",  # all transfers through the NICs of one number
    "slow_nvlink",  # all transfers within one node
)
STOPS = (
    "hang_compute",  # a rank stops in its own work, and never comes to the next collective
    "hang_collective",  # a rank comes to a collective, and its device never finishes it, while the others' do
    "hang_network",  # all come to a collective or a pair, and nobody finishes it
    "death",  # a rank is killed
    "death_collective",  # a rank is killed within a collective
    "death_exception",  # a rank ends with an exception, and the launcher ends the others
    "death_node",  # a node goes down with all of its ranks
)
FAULTS = (*SLOW, *STOPS)


class When(NamedTuple):
    """In which steps a fault is there: from `onset` on, in every `every`th (a fraction is fine) or in a random `share`
    of them."""

    onset: int = 0
    every: float = 1.0
    share: float = 1.0

    def steps(self, count: int, draw: np.random.Generator) -> npt.NDArray[np.bool_]:
        steps = np.arange(count)
        turn = np.floor((steps - self.onset) / self.every)
        due = (steps >= self.onset) & (np.floor((steps - 1 - self.onset) / self.every) != turn)
        return due & (draw.random(count) < self.share)


@dataclass(frozen=True)
class Fault:
    """One fault. `size` is by how much it lengthens the steps that it hits (0.1: 10 %); a stop has none. What is not
    given (-1, None) is drawn: the rank or node; the NIC's number within its node; the phase."""

    kind: str
    size: float = 0.0
    rank: int = -1
    phase: str | None = None
    when: When = When()


class Effect(NamedTuple):
    """What a fault adds at severity 1, (steps, items) and (steps, joints), by how much later members end, and the steps
    that it hits."""

    items: Floats
    late: Floats
    joints: Floats
    hit: npt.NDArray[np.bool_]


class Unlocatable(ValueError):
    """Such a fault cannot show, or cannot be located by anyone, in this layout."""


def choose_rank(layout: Layout, fault: Fault, draw: np.random.Generator, taken: set[int]) -> int:
    """Returns the fault's rank, drawn among those whose node has no other fault yet, if there are such."""
    if fault.rank >= 0:
        return fault.rank
    free = [rank for rank in range(layout.world_size) if layout.node(rank) not in taken]
    if not free:
        free = [rank for rank in range(layout.world_size) if -rank - 1 not in taken]
    if fault.kind == "slow_input":
        loading = [rank for rank in free if layout.position(rank)["pp"] in (0, layout.pp - 1)]
        free = loading or free
    return int(draw.choice(free))


def victims_items(programme: Programme, fault: Fault, rank: int) -> npt.NDArray[np.bool_]:
    """Tells which items a slow GPU, host or input slows."""
    layout = programme.layout
    own = programme.rank == rank
    node = np.isin(programme.rank, layout.ranks_of_node(layout.node(rank)))
    ordinary = programme.computes & ~np.isin(programme.block, ("evaluation", "checkpoint"))
    if fault.kind == "slow_gpu":
        found = own & ordinary & ~programme.on_cpu
    elif fault.kind == "slow_host":
        found = node & ordinary
    elif fault.kind == "slow_cpu":
        found = node & ordinary & programme.on_cpu
    elif fault.kind == "slow_input":
        found = own & (programme.phase == INPUT)
    else:
        found = own & ordinary & (programme.phase <= OPTIMIZER)
    if fault.phase is not None:
        found &= programme.phase == PHASES.index(fault.phase)
    if not found.any():
        raise Unlocatable(f"{fault.kind} in {fault.phase or 'any phase'} of rank {rank} slows nothing in {layout.name}")
    return found


def pauses(
    programme: Programme, fault: Fault, rank: int, hit: npt.NDArray[np.bool_], draw: np.random.Generator
) -> Floats:
    places = victims_items(programme, fault, rank)
    if fault.kind == "garbage":
        places &= programme.phase == FORWARD
    indices = np.flatnonzero(places)
    found = np.zeros((len(hit), len(programme.items)))
    weights = programme.seconds[indices] / programme.seconds[indices].sum()
    for step in np.flatnonzero(hit):
        found[step, draw.choice(indices, p=weights)] = draw.uniform(0.7, 1.3)
    return found


def partner(layout: Layout, programme: Programme, nic: Nic, draw: np.random.Generator) -> Nic:
    """Draws the other end of a slow link: a NIC to which some transfer passes from this one."""
    others = sorted(
        {
            other
            for joint in programme.joints
            for other in nics_used(layout, joint.group.ranks)
            if other[0] != nic[0]
            and transfer(layout, joint.op, joint.group.ranks, joint.size).between > NOTICEABLE_SECONDS
            and uses_link(layout, joint.group, joint.op, (nic, other))
        }
    )
    if not others:
        raise Unlocatable(f"no transfer of {layout.name} leaves node {nic[0]} through NIC {nic[1]}")
    return others[int(draw.integers(len(others)))]


class Place(NamedTuple):
    """Where in the network a fault is: the NICs (node, number), or the node whose NVLink it is."""

    kind: str
    nics: tuple[Nic, ...]

    def slows(self, programme: Programme) -> npt.NDArray[np.bool_]:
        """Tells which joints it slows."""
        layout = programme.layout
        found = np.zeros(len(programme.joints), dtype=bool)
        known: dict[tuple[object, str], bool] = {}
        for number, joint in enumerate(programme.joints):
            key = joint.group, joint.op
            if key not in known:
                used = nics_used(layout, joint.group.ranks)
                if self.kind == "slow_link":
                    known[key] = uses_link(layout, joint.group, joint.op, (self.nics[0], self.nics[1]))
                elif self.kind == "slow_nvlink":
                    local = [rank for rank in joint.group.ranks if layout.node(rank) == self.nics[0][0]]
                    known[key] = len(local) > 1
                else:
                    known[key] = bool(used & set(self.nics))
            found[number] = known[key]
        return found


def signature(programme: Programme, place: Place) -> frozenset[Group]:
    """Returns the groups and pairs that a place slows: what two faults share that nobody can tell apart."""
    slowed = place.slows(programme) & (seconds_there(programme, place) > NOTICEABLE_SECONDS)
    return frozenset(programme.joints[number].group for number in np.flatnonzero(slowed))


def seconds_there(programme: Programme, place: Place) -> Floats:
    return programme.inside if place.kind == "slow_nvlink" else programme.between


def choose_place(programme: Programme, fault: Fault, rank: int, draw: np.random.Generator) -> Place:
    layout = programme.layout
    nic = layout.nic(rank)
    if fault.kind == "slow_link":
        return Place(fault.kind, (nic, partner(layout, programme, nic, draw)))
    if fault.kind == "slow_rail":
        return Place(fault.kind, tuple(one for one in layout.nics if one[1] == nic[1]))
    return Place(fault.kind, (nic,))


def alternatives(programme: Programme, place: Place) -> list[Place]:
    """Returns every place that slows just the same groups: none can be told from the others."""
    layout = programme.layout
    own = signature(programme, place)
    if not own:
        raise Unlocatable(f"nothing in {layout.name} passes there")
    passed = sorted(set().union(*(nics_used(layout, group.ranks) for group in own)))
    candidates = [Place("slow_nic", (nic,)) for nic in layout.nics]
    candidates += [Place("slow_link", pair) for pair in itertools.combinations(passed, 2) if pair[0][0] != pair[1][0]]
    candidates += [Place("slow_nvlink", ((node, 0),)) for node in range(layout.nodes)]
    return [one for one in candidates if signature(programme, one) == own]


def stop_item(programme: Programme, fault: Fault, rank: int, draw: np.random.Generator) -> int:
    """Draws the item in which a rank stops: some computing of the phase."""
    phases = [PHASES.index(fault.phase)] if fault.phase else [INPUT, FORWARD, BACKWARD, OPTIMIZER]
    here = (programme.rank == rank) & programme.computes & (programme.seconds > 0)
    places = np.flatnonzero(here & np.isin(programme.phase, phases))
    if not len(places):
        raise Unlocatable(f"rank {rank} has no {fault.phase} in {programme.layout.name}")
    return int(draw.choice(places))


def stop_member(programme: Programme, rank: int, draw: np.random.Generator) -> int:
    """Draws a collective of this rank, by its item."""
    places = [
        index
        for index in np.flatnonzero(programme.rank == rank)
        if programme.items[index].joint is not None and not programme.items[index].message
    ]
    if not places:
        raise Unlocatable(f"rank {rank} of {programme.layout.name} calls no collective")
    return int(draw.choice(places))
