"""Runs a programme step after step, at several severities of its faults at once, on arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simulator.programme import Programme

Floats = npt.NDArray[np.float64]


class Durations(NamedTuple):
    """What each item and each transfer takes without faults, and what a fault adds at severity 1.

    `items`, `item_faults` and `late` are (steps, items): seconds of computing, seconds that the fault adds to them,
    and by how much later than its joint's end this member ends. `joints` and `joint_faults` are (steps, joints),
    seconds. An infinite one never ends.
    """

    items: Floats
    item_faults: Floats
    late: Floats
    joints: Floats
    joint_faults: Floats


class Times(NamedTuple):
    """When each item was ready and when it ended, (steps, items), and when each rank's step began and ended, (steps,
    ranks); seconds since the first step's begin, on a clock that no rank has. inf: never."""

    ready: Floats
    end: Floats
    entered: Floats
    left: Floats


def step_ends(programme: Programme, durations: Durations, severities: Floats) -> Floats:
    """Returns when the last rank ended each step at each severity, (steps, severities)."""
    steps = len(durations.items)
    found = np.empty((steps, len(severities)))
    entry = np.zeros((programme.layout.world_size, len(severities)))
    clock = buffer(programme, len(severities))
    for step in range(steps):
        run_step(programme, durations, step, severities, entry, clock, None)
        entry = clock[programme.exits]
        found[step] = entry.max(axis=0)
    return found


def run(programme: Programme, durations: Durations) -> Times:
    """Returns the times of every item with the faults at severity 1."""
    steps, items = durations.items.shape
    ranks = programme.layout.world_size
    times = Times(*(np.empty((steps, count)) for count in (items, items, ranks, ranks)))
    entry = np.zeros((ranks, 1))
    clock = buffer(programme, 1)
    ready = np.empty((items, 1))
    for step in range(steps):
        times.entered[step] = entry[:, 0]
        run_step(programme, durations, step, np.ones(1), entry, clock, ready)
        entry = clock[programme.exits]
        times.ready[step], times.end[step], times.left[step] = ready[:, 0], clock[:items, 0], entry[:, 0]
    return times


def buffer(programme: Programme, severities: int) -> Floats:
    """Room for the ends of all items, for the ranks' entries, and for what comes before nothing."""
    clock = np.zeros((len(programme.items) + programme.layout.world_size + 1, severities))
    clock[-1] = -np.inf
    return clock


def run_step(
    programme: Programme,
    durations: Durations,
    step: int,
    severities: Floats,
    entry: Floats,
    clock: Floats,
    ready: Floats | None,
) -> None:
    """Fills `clock` with the ends of the step's items, and `ready` with when each could begin. A recv of a buffered
    message is ready when its rank came to it, which the caller takes from its first predecessor."""
    count = len(programme.items)
    clock[count:-1] = entry
    items = durations.items[step][:, None] + scaled(durations.item_faults[step], severities)
    joints = durations.joints[step][:, None] + scaled(durations.joint_faults[step], severities)
    late = durations.late[step][:, None]
    before = programme.before
    for first, middle, last, starts, numbers, counts in programme.levels:
        came = clock[before[first:last]].max(axis=1)
        if ready is not None:
            ready[first:last] = came
        cut = middle - first
        clock[first:middle] = came[:cut] + items[first:middle]
        if len(numbers):
            ends = np.maximum.reduceat(came[cut:], starts, axis=0) + joints[numbers]
            clock[middle:last] = np.repeat(ends, counts, axis=0) + late[middle:last]


def scaled(faults: Floats, severities: Floats) -> Floats:
    """Returns the faults' seconds at each severity; an infinite one is infinite at every severity but 0."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(faults[:, None] * severities[None, :], nan=0.0, posinf=np.inf)
